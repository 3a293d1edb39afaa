"""Named points where a test can kill, fail or pause a process; inert unless `DELEGATE_FAILPOINTS` names them.

The variable holds `name=mode[:argument]` pairs separated by commas. Modes: `kill` (SIGKILL to this process, once per
file named by the argument), `error` (raise OSError), `delay` (seconds), `pause` (until the file named by the argument
exists).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PAUSE_POLL = 0.02


def _parse_environment() -> dict[str, tuple[str, str]]:
    pairs = (entry.split("=", 1) for entry in os.environ.get("DELEGATE_FAILPOINTS", "").split(",") if "=" in entry)
    return {name: (mode, argument) for name, spec in pairs for mode, _, argument in [spec.partition(":")]}


ARMED = _parse_environment()


def failpoint(name: str) -> None:
    if ARMED and name in ARMED:
        _trigger(*ARMED[name])


def _trigger(mode: str, argument: str) -> None:
    match mode:
        case "kill":
            if _first_time(argument):
                os.kill(os.getpid(), signal.SIGKILL)
        case "error":
            raise OSError("failpoint")
        case "delay":
            time.sleep(float(argument))
        case "pause":
            while not Path(argument).exists():
                time.sleep(PAUSE_POLL)


def _first_time(path: str) -> bool:
    """Whether this kill is the first: the file marks it, so that the restarted process gets past this point."""
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True
