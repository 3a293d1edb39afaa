"""An agent program that does what its script says: the stand-in for `claude` on PATH.

`install(directory)` puts it there under the name `claude`. Its script, a JSON object {"steps": [STEP, ...]}, is in
    the file named by SCRIPTED_AGENT_FILE, or else
    the variable SCRIPTED_AGENT, or else
    the prompt itself, which comes on stdin as a stream-json user message. Other words may stand around it.
Without any of them it answers "Done." like a model with nothing to do. When SCRIPTED_AGENT_LOG names a file, each run
appends a line {"argv", "prompt", "cwd", "pid", "environ"} to it. Asked for its version it says that and nothing else.

A step is one of
    {"init": {}}                   the session event; fields override the default ones ("session_id", "model", …)
    {"say": "text"}                an assistant's message
    {"tool": "Bash", "input": {}}  an assistant's tool call
    {"command": "x", "background": "id"}  a Bash call that continues in the background under this id
    {"result": "text"}             the result event; "fields": {…} override, as in {"is_error": true}
    {"event": {…}}                 any object as a line
    {"print": "text"}              a line of text;           "to": "stderr" for the other stream
    {"chunk": "x", "times": 9}     bytes without a newline;  "to" as above; "base64": true when they are not text
    {"replay": "file.jsonl"}       the bytes of a captured transcript
    {"script": "path"}             the steps in that file, a JSON object as above
    {"shell": "command"}           run it, with the agent's own environment
    {"wait": "path"}               until the file exists
    {"touch": "path"}              make the file
    {"close": "stdout"}            that stream, and go on
    {"read": 1}                    take that many further messages from stdin and repeat each as an assistant's message
    {"end_of_input": true}         wait until stdin is closed
    {"spawn": 3, "pids": "path"}   so many children that leave its session and ignore TERM; their pids, one a line
    {"ignore": "TERM"}             from here on
    {"hang": true}                 for ever
    {"signal": "KILL"}             to itself
    {"exit": 3}                    with that code; a script without it ends with 0
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

Json = dict[str, Any]

POLL = 0.01
ENTRY = """#!/bin/sh
exec '{python}' -I -S '{program}' "$@"
"""


def install(directory: Path, name: str = "claude") -> Path:
    """Put the agent into a directory for PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    entry = directory / name
    entry.write_text(ENTRY.format(python=sys.executable, program=Path(__file__).resolve()), encoding="utf-8")
    entry.chmod(0o755)
    return entry


class ScriptedAgent:
    def __init__(self) -> None:
        resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else None
        self.session = resumed or str(uuid.uuid4())

    def play(self, steps: list[Json]) -> None:
        for step in steps:
            verb = next(iter(step))
            getattr(self, f"do_{verb}")(step)

    def do_init(self, step: Json) -> None:
        self.session = step["init"].get("session_id", self.session)
        self.event({"type": "system", "subtype": "init", "model": "scripted", "cwd": str(Path.cwd()), **step["init"]})

    def do_say(self, step: Json) -> None:
        self.assistant({"type": "text", "text": step["say"]})

    def do_tool(self, step: Json) -> None:
        call = f"toolu_{uuid.uuid4().hex}"
        self.assistant({"type": "tool_use", "id": call, "name": step["tool"], "input": step.get("input", {})})

    def do_command(self, step: Json) -> None:
        call, given = f"toolu_{uuid.uuid4().hex}", {"command": step["command"], "run_in_background": True}
        self.assistant({"type": "tool_use", "id": call, "name": "Bash", "input": given})
        started = {"task_id": step["background"], "tool_use_id": call, "task_type": "local_bash", "description": "x"}
        self.event({"type": "system", "subtype": "task_started", **started})

    def do_result(self, step: Json) -> None:
        fields = {"is_error": False, "result": step["result"], "num_turns": 1, "total_cost_usd": 0.01}
        usage = {"input_tokens": 100, "output_tokens": 20}
        self.event({"type": "result", "subtype": "success", "usage": usage, **fields, **step.get("fields", {})})

    def do_event(self, step: Json) -> None:
        self.event(step["event"])

    def do_print(self, step: Json) -> None:
        write(step, f"{step['print']}\n".encode())

    def do_chunk(self, step: Json) -> None:
        data = base64.b64decode(step["chunk"]) if step.get("base64") else step["chunk"].encode()
        for _ in range(step.get("times", 1)):
            write(step, data)

    def do_replay(self, step: Json) -> None:
        write(step, Path(step["replay"]).read_bytes())

    def do_script(self, step: Json) -> None:
        self.play(json.loads(Path(step["script"]).read_text(encoding="utf-8"))["steps"])

    def do_shell(self, step: Json) -> None:
        subprocess.run(["/bin/sh", "-c", step["shell"]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def do_wait(self, step: Json) -> None:
        while not Path(step["wait"]).exists():
            time.sleep(POLL)

    def do_touch(self, step: Json) -> None:
        Path(step["touch"]).touch()

    def do_close(self, step: Json) -> None:
        os.close(2 if step["close"] == "stderr" else 1)

    def do_read(self, step: Json) -> None:
        for _ in range(step["read"]):
            self.assistant({"type": "text", "text": read_message()})

    def do_end_of_input(self, _: Json) -> None:
        while sys.stdin.buffer.read(4096):
            pass

    def do_spawn(self, step: Json) -> None:
        pids = [spawn_stray() for _ in range(step["spawn"])]
        draft = Path(f"{step['pids']}.draft")
        draft.write_text("".join(f"{pid}\n" for pid in pids), encoding="ascii")
        draft.rename(step["pids"])

    def do_ignore(self, step: Json) -> None:
        signal.signal(signal.Signals[f"SIG{step['ignore']}"], signal.SIG_IGN)

    def do_hang(self, _: Json) -> None:
        while True:
            time.sleep(60)

    def do_signal(self, step: Json) -> None:
        number = signal.Signals[f"SIG{step['signal']}"]
        if number is not signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def do_exit(self, step: Json) -> None:
        sys.stdout.flush()
        os._exit(step["exit"])

    def assistant(self, block: Json) -> None:
        message = {"role": "assistant", "model": "scripted", "content": [block]}
        self.event({"type": "assistant", "message": message, "parent_tool_use_id": None})

    def event(self, fields: Json) -> None:
        write({}, json.dumps({"session_id": self.session, **fields}).encode() + b"\n")


def write(step: Json, data: bytes) -> None:
    fd = 2 if step.get("to") == "stderr" else 1
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten) :]


def spawn_stray() -> int:
    """A child that has left the session and cannot be asked to end; it holds the agent's output open."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        os.close(reader)
        while True:
            time.sleep(60)
    os.close(writer)
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def read_message() -> str:
    """The text of the next user message on stdin; empty at its end."""
    line = sys.stdin.buffer.readline()
    if not line:
        return ""
    if b'"message"' not in line:
        return line.decode()  # as Codex gets it
    content = json.loads(line)["message"]["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def steps_of(prompt: str) -> list[Json]:
    if path := os.environ.get("SCRIPTED_AGENT_FILE"):
        script = Path(path).read_text(encoding="utf-8")
    else:
        script = os.environ.get("SCRIPTED_AGENT") or prompt[max(prompt.find('{"steps"'), 0) :]
    try:
        return list(json.JSONDecoder().raw_decode(script)[0]["steps"])
    except (ValueError, KeyError, TypeError):
        return [{"init": {}}, {"say": "Done."}, {"result": "Done."}, {"end_of_input": True}]


def keep_log(prompt: str) -> None:
    path = os.environ.get("SCRIPTED_AGENT_LOG")
    if path:
        run = {"argv": sys.argv, "prompt": prompt, "cwd": str(Path.cwd()), "pid": os.getpid()}
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(json.dumps({**run, "environ": dict(os.environ)}) + "\n")


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        write({}, b"0.0.0 (Scripted Agent)\n")
        return
    prompt = read_message()
    keep_log(prompt)
    ScriptedAgent().play(steps_of(prompt))


if __name__ == "__main__":
    main()
