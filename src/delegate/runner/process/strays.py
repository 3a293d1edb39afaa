"""How a process is known to be an attempt's, whoever its parent is by now; only where there is a /proc.

The keeper looks here too: nothing but the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

from delegate.runner.process import supervisor

ATTEMPT_VARIABLE = "DELEGATE_ATTEMPT_ID"  # in the environment of everything that an attempt starts


def attempt_of(pid: int) -> str | None:
    """The attempt that started it; None when nobody can tell."""
    return environment_of(pid).get(ATTEMPT_VARIABLE)


def environment_of(pid: int) -> dict[str, str]:
    """As it was at its start."""
    pairs = (os.fsdecode(word).partition("=") for word in _read_fields(pid, "environ"))
    return {name: value for name, _, value in pairs}


def is_supervisor(pid: int) -> bool:
    return _read_fields(pid, "cmdline")[1:4] == [b"-I", b"-S", os.fsencode(supervisor.__file__)]


def program_of(pid: int) -> str:
    """Its name alone: arguments may hold secrets."""
    return _read(pid, "comm").decode(errors="replace").strip() or "unknown"


def _read_fields(pid: int, name: str) -> list[bytes]:
    return _read(pid, name).split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended, or is not ours to read
        return b""
