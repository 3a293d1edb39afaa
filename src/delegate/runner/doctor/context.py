"""The context of an examination, and helpers that run examinations with a time limit."""

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
from delegate.config.values import mask_login
from delegate.errors import excerpt
from delegate.runner.agents.base import find_program, users_environment
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.git.program import GitFailed
from delegate.runner.process.programs import ProgramMissing, ProgramResult, ProgramTimedOut, run_program

EXAMINATION_TIMEOUT = timedelta(
    seconds=8
)  # for one examination; a Node program takes three seconds on a cold disk or a busy machine
NEUTRAL_DIRECTORY = Path("/")  # has no repository and no project settings
QUOTE_MAX = 200  # characters of a program's error message
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    settings: Settings
    environ: Mapping[str, str]
    directory: Path  # where the next task would be delegated
    scratch: Path  # private, and removed afterwards
    now: datetime
    is_root: bool

    @property
    def home(self) -> Home:
        return Home(self.settings.home)

    def program(self, command: str) -> str | None:
        return find_program(command, self.environ)

    def display_path(self, path: Path) -> str:
        """The path for display, with `~` for the home directory."""
        user = self.environ.get("HOME", "")
        with suppress(ValueError):
            return str(Path("~", path.relative_to(user))) if user not in {"", "/"} else excerpt(path)
        return excerpt(path)

    async def run(self, *argv: str, cwd: Path = NEUTRAL_DIRECTORY) -> ProgramResult:
        """Runs a program in the user's environment, without Delegate's secrets."""
        return await run_program(argv, cwd=cwd, env=users_environment(self.environ), timeout=EXAMINATION_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    section: DoctorSection
    subject: str
    run: Callable[[], Awaitable[list[Finding]]]
    timeout: timedelta = EXAMINATION_TIMEOUT


async def run_examinations(examinations: list[Examination]) -> list[Finding]:
    """Runs them concurrently, each with its timeout; findings keep the order of the examinations."""
    found: list[list[Finding]] = [[] for _ in examinations]

    async def one(number: int, examination: Examination) -> None:
        found[number] = await _run_with_timeout(examination)

    async with anyio.create_task_group() as group:
        for number, examination in enumerate(examinations):
            group.start_soon(one, number, examination)
    return [finding for findings in found for finding in findings]


async def _run_with_timeout(examination: Examination) -> list[Finding]:
    section, subject, seconds = examination.section, examination.subject, examination.timeout.total_seconds()
    try:
        with anyio.fail_after(seconds):
            return await examination.run()
    except (TimeoutError, ProgramTimedOut):
        return [section.warning(subject, f"did not answer within {seconds:g} s")]
    except (OSError, GitFailed, ProgramMissing) as problem:
        return [section.warning(subject, f"could not be examined: {quote_line(str(problem))}")]


async def run_in_daemon_thread(work: Callable[[], Result]) -> Result:
    """Runs blocking work in a thread that may be abandoned: a disk or a name server may never answer."""
    token, done = lowlevel.current_token(), anyio.Event()
    results: list[Result] = []
    problems: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as problem:  # noqa: BLE001 - raised again in the waiting coroutine
            problems.append(problem)
        finally:
            with suppress(RuntimeError):  # the event loop has ended
                from_thread.run_sync(done.set, token=token)

    Thread(target=run, daemon=True).start()
    await done.wait()
    if problems:
        raise problems[0]
    return results[0]


def quote_line(text: str) -> str:
    """Quotes a program's output in a finding: on one line, shortened, and without logins in URLs."""
    return excerpt(mask_login(" ".join(text.split())), QUOTE_MAX)


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_age(age: timedelta) -> str:
    for name, size in (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        if age >= size:
            return pluralize(age // size, name)
    return pluralize(max(0, int(age.total_seconds())), "second")
