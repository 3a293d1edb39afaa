"""What the doctor looks at, and how it looks without ever hanging."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TypeVar

import anyio
from anyio import from_thread, lowlevel

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.config.values import without_login
from delegate.errors import shown
from delegate.runner.agents.base import found_program, users_environment
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.git.program import GitFailed
from delegate.runner.process.programs import Done, ProgramMissing, ProgramTimedOut, run_program

PATIENCE = timedelta(seconds=8)  # for one examination; a program in Node takes three on a cold disk, or a busy machine
NEUTRAL = Path("/")  # no repository, no settings of a project
WORDS_MAX = 200  # characters of what a program complained about
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    settings: Settings
    environ: Mapping[str, str]
    directory: Path  # where the next task would be delegated
    scratch: Path  # ours alone, and gone afterwards
    now: datetime
    is_root: bool

    @property
    def home(self) -> Home:
        return Home(self.settings.home)

    def program(self, command: str) -> str | None:
        return found_program(command, self.environ)

    def place(self, path: Path) -> str:
        """A path as a person would write it."""
        user = self.environ.get("HOME", "")
        with suppress(ValueError):
            return str(Path("~", path.relative_to(user))) if user not in {"", "/"} else shown(path)
        return shown(path)

    async def run(self, *argv: str, cwd: Path = NEUTRAL) -> Done:
        """A program in the user's own environment, but without Delegate's secrets."""
        return await run_program(argv, cwd=cwd, env=users_environment(self.environ), timeout=PATIENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    part: Part
    subject: str
    look: Callable[[], Awaitable[list[Finding]]]
    patience: timedelta = PATIENCE


async def examined(examinations: list[Examination]) -> list[Finding]:
    """All of them at once, each within its time; the findings are in the order of the examinations."""
    found: list[list[Finding]] = [[] for _ in examinations]

    async def one(number: int, examination: Examination) -> None:
        found[number] = await _bounded(examination)

    async with anyio.create_task_group() as group:
        for number, examination in enumerate(examinations):
            group.start_soon(one, number, examination)
    return [finding for findings in found for finding in findings]


async def _bounded(examination: Examination) -> list[Finding]:
    part, subject, seconds = examination.part, examination.subject, examination.patience.total_seconds()
    try:
        with anyio.fail_after(seconds):
            return await examination.look()
    except (TimeoutError, ProgramTimedOut):
        return [part.warning(subject, f"gave no answer within {seconds:g} s")]
    except (OSError, GitFailed, ProgramMissing) as problem:
        return [part.warning(subject, f"could not be examined: {told(str(problem))}")]


async def aside(work: Callable[[], Result]) -> Result:
    """Do blocking work in a thread that nobody has to wait for: a disk or a name server may never answer."""
    token, done = lowlevel.current_token(), anyio.Event()
    results: list[Result] = []
    problems: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as problem:  # noqa: BLE001 - handed on to whoever waits
            problems.append(problem)
        finally:
            with suppress(RuntimeError):  # nobody waits any more
                from_thread.run_sync(done.set, token=token)

    Thread(target=run, daemon=True).start()
    await done.wait()
    if problems:
        raise problems[0]
    return results[0]


def told(words: str) -> str:
    """A program's own words in a finding: on one line, cut, and without a login that stands in an address."""
    return shown(without_login(" ".join(words.split())), WORDS_MAX)


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def spoken_age(age: timedelta) -> str:
    for name, size in (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        if age >= size:
            return counted(age // size, name)
    return counted(max(0, int(age.total_seconds())), "second")
