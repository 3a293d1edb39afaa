"""A stand-in for Claude Code in `delegate demo --linear`: fixes the demo's bug and reports it as Claude Code would.

Run as a program by the demo's runner. It has no model, and uses only the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PAUSE = 0.4  # seconds between two steps, so that a person can follow
SESSION = "3f1d6c52-7f0e-4c44-9d0b-0a4b6b1f8a44"
MODEL = "claude-sonnet-4-5"
WRONG, RIGHT = "(1 - discount_percent)", "(1 - discount_percent / 100)"
SUMMARY = "A discount of 50 took off fifty times the price. `total` divides it by 100 now; the tests pass."
STEPS = ("Find where the discount is applied", "Divide it by 100", "Run the tests")


def main() -> None:
    if "--version" in sys.argv:
        sys.stdout.write("0.0.0 (stand-in of the demo)\n")
        return
    sys.stdin.readline()  # the prompt
    write({"type": "system", "subtype": "init", "model": MODEL, "cwd": str(Path.cwd())})
    show_plan(0)
    call("Read", file_path="shop.py")
    show_plan(1)
    shop = Path("shop.py")
    shop.write_text(shop.read_text().replace(WRONG, RIGHT))
    call("Edit", file_path="shop.py", old_string=WRONG, new_string=RIGHT)
    show_plan(2)
    call("Bash", command="python3 -m unittest")
    subprocess.run(["python3", "-m", "unittest"], capture_output=True, check=False)
    show_plan(3)
    say({"type": "text", "text": SUMMARY})
    usage = {"input_tokens": 12_400, "output_tokens": 3_100}
    result = {"is_error": False, "result": SUMMARY, "num_turns": 4, "total_cost_usd": 0.0}
    write({"type": "result", "subtype": "success", "usage": usage, **result})
    sys.stdin.read()  # until the runner closes it


def show_plan(done: int) -> None:
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
    todos = [{"content": text, "status": state} for text, state in zip(STEPS, states, strict=False)]
    call("TodoWrite", todos=todos)


def call(name: str, **given: object) -> None:
    say({"type": "tool_use", "id": f"toolu_{time.monotonic_ns()}", "name": name, "input": given})
    time.sleep(0 if name == "TodoWrite" else PAUSE)


def say(block: dict[str, object]) -> None:
    write({"type": "assistant", "message": {"role": "assistant", "model": MODEL, "content": [block]}})


def write(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"session_id": SESSION, "parent_tool_use_id": None, **event}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
