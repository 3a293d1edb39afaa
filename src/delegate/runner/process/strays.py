"""Finds out which attempt started a process, whatever its parent is now; needs /proc.

The keeper imports this module too, so it uses only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

from delegate.runner.process import supervisor

ATTEMPT_VARIABLE = "DELEGATE_ATTEMPT_ID"  # set for every process that an attempt starts


def attempt_of(pid: int) -> str | None:
    """The attempt that started the process; None when unknown."""
    return environment_of(pid).get(ATTEMPT_VARIABLE)


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which the process was started."""
    pairs = (os.fsdecode(word).partition("=") for word in _read_fields(pid, "environ"))
    return {name: value for name, _, value in pairs}


def is_supervisor(pid: int) -> bool:
    return _read_fields(pid, "cmdline")[1:4] == [b"-I", b"-S", os.fsencode(supervisor.__file__)]


def program_of(pid: int) -> str:
    """The name without arguments, which may contain secrets."""
    return _read(pid, "comm").decode(errors="replace").strip() or "unknown"


def _read_fields(pid: int, name: str) -> list[bytes]:
    return _read(pid, name).split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended or is not readable
        return b""
