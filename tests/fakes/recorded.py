"""Programs in front of the real ones on PATH: each notes how it was called, and becomes the real one.

`install(directory, log, git="/usr/bin/git")` puts a `git` there. `calls(log)` reads what was noted: the whole argument
vector, the names of the environment's variables, and the values of those that steer git and gh.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

STEERING = ("GIT_", "GH_")
ENTRY = """#!/bin/sh
exec '{python}' -I -S '{program}' '{log}' '{real}' '{name}' "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    program: str
    arguments: tuple[str, ...]  # without the program's own name
    names: frozenset[str]
    steering: dict[str, str]


def install(directory: Path, log: Path, **programs: str) -> None:
    """Each program by its name, with the path of the real one."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, real in programs.items():
        entry = directory / name
        facts = {"python": sys.executable, "program": Path(__file__).resolve(), "log": log, "real": real, "name": name}
        entry.write_text(ENTRY.format(**facts), encoding="utf-8")
        entry.chmod(0o755)


def calls(log: Path) -> list[Call]:
    """In the order of their start."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [
        Call(
            program=line["program"],
            arguments=tuple(line["arguments"]),
            names=frozenset(line["names"]),
            steering=line["steering"],
        )
        for line in lines
    ]


def main() -> None:
    log, real, name, *arguments = sys.argv[1:]
    steering = {key: value for key, value in os.environ.items() if key.startswith(STEERING)}
    noted = {"program": name, "arguments": arguments, "names": sorted(os.environ), "steering": steering}
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(noted).encode() + b"\n")  # one write: others append to it at the same time
    os.close(descriptor)
    os.execv(real, [real, *arguments])


if __name__ == "__main__":
    main()
