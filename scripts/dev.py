"""`make dev`: relay and runners in the foreground, started anew whenever a source file changes.

They live in .dev/ unless DELEGATE_HOME says otherwise, so that a day's experiments stay out of the real home.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "delegate"
LOOK_EVERY = 0.5  # seconds
STOP_PATIENCE = 30.0  # seconds for the second signal, which hands running work back


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    environment = {"DELEGATE_HOME": str(ROOT / ".dev"), **os.environ}
    command = [str(ROOT / ".venv" / "bin" / "delegate"), "up", "--foreground", *sys.argv[1:]]
    say(f"home {environment['DELEGATE_HOME']}, Ctrl-C ends it")
    try:
        while True:
            run_until_change(command, environment)
    except KeyboardInterrupt:
        return 0


def run_until_change(command: list[str], environment: dict[str, str]) -> None:
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        if wait_for_change(process):
            say("the source changed")
        else:
            say(f"it ended with exit code {process.returncode}; waiting for a change")
            wait_for_change(None)
    finally:
        stop(process)


def wait_for_change(process: subprocess.Popen[bytes] | None) -> bool:
    """False when the process ended by itself before anything changed."""
    seen = state_of_source()
    while seen == state_of_source():
        if process is not None and process.poll() is not None:
            return False
        time.sleep(LOOK_EVERY)
    return True


def state_of_source() -> dict[Path, int]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        try:
            found[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # an editor replaces a file in two steps
            continue
    return found


def stop(process: subprocess.Popen[bytes]) -> None:
    """Now, not after the running tasks: what they held is handed back and starts again."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(LOOK_EVERY)
    try:
        process.wait(STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def say(line: str) -> None:
    sys.stderr.write(f"dev: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
