"""Writes down what the runner spends in other programs: `python -m bench.programs FILE …` is a runner that does.

The arguments after the file are the runner's own. Each git and gh is a line: when it began, when it ended, what it was.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delegate.runner import __main__ as runner
from delegate.runner.process import programs

GIT_COMMAND = re.compile(r"[a-z]+(-[a-z]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    began: float  # seconds of the wall clock
    ended: float
    what: str

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@contextmanager
def overheard(tell: Callable[[Spent], None]) -> Iterator[None]:
    """Everything of ours in this process that runs a program tells how long that took."""
    run_program = programs.run_program

    async def timed(argv: list[str], **more: Any) -> programs.ProgramResult:
        began = time.time()
        try:
            return await run_program(argv, **more)
        finally:
            command = next((word for word in argv[1:] if GIT_COMMAND.fullmatch(word)), "")
            tell(Spent(began=began, ended=time.time(), what=f"{Path(argv[0]).name} {command}"))

    users = [module for name, module in sys.modules.items() if name.startswith("delegate.")]
    users = [module for module in users if getattr(module, "run_program", None) is run_program]
    for module in users:
        vars(module)["run_program"] = timed
    try:
        yield
    finally:
        for module in users:
            vars(module)["run_program"] = run_program


def read(file: Path, began: float, ended: float) -> list[Spent]:
    """What ran between two moments."""
    found = [Spent(**json.loads(line)) for line in file.read_text().splitlines()]
    return [spent for spent in found if spent.began >= began and spent.ended <= ended]


def main() -> int:
    with Path(sys.argv.pop(1)).open("a", buffering=1) as file:

        def note(spent: Spent) -> None:
            file.write(json.dumps({"began": spent.began, "ended": spent.ended, "what": spent.what}) + "\n")

        with overheard(note):
            return runner.main()


if __name__ == "__main__":
    sys.exit(main())
