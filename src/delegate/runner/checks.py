"""Runs the repository's check commands and interprets their exit codes and test counts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from delegate.errors import excerpt

TAIL_MAX = 20_000  # characters of a check's output kept for the agent

TERMINAL_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Test runners print a summary line; the output of a command that runs several of them has several such lines.
PYTEST = re.compile(r"^(?:=+ )?(?P<sums>\d+ [a-z]+(?:, \d+ [a-z]+)*) in \d[\d.]*s\b.*$", re.M)
JEST = re.compile(r"^Tests: +(?P<sums>(?:\d+ [a-z]+, )+\d+ total)$", re.M)
VITEST = re.compile(r"^ *Tests +(?P<sums>\d+ [a-z]+(?: \| \d+ [a-z]+)*) \(\d+\)$", re.M)
CARGO = re.compile(r"^test result: [A-Za-z]+\. (?P<sums>\d+ passed; \d+ failed);.*$", re.M)
SUM = re.compile(r"(?P<number>\d+) (?P<word>[a-z]+)")
BAD_WORDS = frozenset({"failed", "error", "errors"})
# Go reports each test with -v, and only each package without it.
GO_RUN = re.compile(r"^=== RUN ", re.M)
GO_TEST = re.compile(r"^--- (?P<end>PASS|FAIL): ", re.M)
GO_PACKAGE = re.compile(
    r"^(?P<end>ok|FAIL)[ \t]+\S+[ \t]+(?:\(cached\)|\d[\d.]*s|(?P<unbuilt>\[(?:build|setup) failed\]))", re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    command: str
    exit_code: int | None  # None: the command was stopped
    output: bytes  # the end of stdout and stderr, in order of arrival
    seconds: float
    timed_out: bool
    is_interrupted: bool  # the task was cancelled or the runner is stopping


class PassCounts(NamedTuple):
    passed: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    command: str
    ok: bool
    passed: int | None  # tests; None if it printed no counts
    total: int | None
    seconds: float
    tail: str  # the end of its output
    exit_code: int | None = None  # None: it timed out
    problem: str | None = None  # what is wrong, instead of the exit code

    @property
    def line(self) -> str:
        """For the timeline: `17/17 · 1.2 s`."""
        return f"{self.summary} · {self.seconds:.1f} s"

    @property
    def summary(self) -> str:
        if self.passed is not None:
            return f"{self.passed}/{self.total}"
        if self.ok:
            return "passed"
        if self.problem is not None:
            return self.problem
        return "timed out" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    results: tuple[CheckResult, ...] = ()

    @property
    def is_green(self) -> bool:
        return not self.red

    @property
    def red(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.ok)

    @property
    def counts(self) -> PassCounts:
        """Counts tests if any command printed counts, plus each other failed command as one; otherwise commands."""
        counted = [PassCounts(one.passed, one.total) for one in self.results if one.passed is not None and one.total]
        if not counted:
            return PassCounts(len(self.results) - len(self.red), len(self.results))
        uncounted = sum(one.passed is None for one in self.red)
        return PassCounts(sum(one.passed for one in counted), sum(one.total for one in counted) + uncounted)

    @property
    def passed(self) -> int:
        return self.counts.passed

    @property
    def total(self) -> int:
        return self.counts.total

    @property
    def failure_summary(self) -> str:
        """The task's error message when checks failed."""
        failures = ", ".join(f"`{excerpt(result.command)}` ({result.summary})" for result in self.red)
        return f"{len(self.red)} of {len(self.results)} checks failed: {failures}"


async def run_checks(
    run_command: Callable[[str], Awaitable[CommandResult]],
    commands: Sequence[str],
    *,
    report: Callable[[CheckResult], None],
) -> Checks:
    """Runs all commands even when one fails, so that the agent can fix all failures in one turn."""
    results = []
    for command in commands:
        results.append(result_of(await run_command(command)))
        report(results[-1])
    return Checks(results=tuple(results))


def result_of(command_result: CommandResult) -> CheckResult:
    ok = command_result.exit_code == 0
    found = parse_test_counts(command_result.output)
    if found is not None and not ok and found.passed == found.total:
        found = None  # all tests passed and something else did not: "17/17" would look like success
    return CheckResult(
        command=command_result.command,
        ok=ok,
        passed=found.passed if found else None,
        total=found.total if found else None,
        seconds=command_result.seconds,
        tail=strip_escapes(command_result.output.decode(errors="replace"))[-TAIL_MAX:],
        exit_code=command_result.exit_code,
    )


def parse_test_counts(output: bytes) -> PassCounts | None:
    """Test counts from the output of pytest, jest, vitest, go and cargo; skipped tests are not counted."""
    text = strip_escapes(output.decode(errors="replace"))
    sums = [_parse_sums(line["sums"]) for form in (PYTEST, JEST, VITEST, CARGO) for line in form.finditer(text)]
    passed, total = (sum(column) for column in zip(*sums, _parse_go(text), strict=True))
    return PassCounts(passed, total) if total else None


def _parse_sums(sums: str) -> PassCounts:
    numbers = {found["word"]: int(found["number"]) for found in SUM.finditer(sums)}
    bad = sum(number for word, number in numbers.items() if word in BAD_WORDS)
    return PassCounts(numbers.get("passed", 0), numbers.get("passed", 0) + bad)


def _parse_go(text: str) -> PassCounts:
    packages = list(GO_PACKAGE.finditer(text))
    if not GO_RUN.search(text):
        return PassCounts(sum(one["end"] == "ok" for one in packages), len(packages))
    ends = [one["end"] for one in GO_TEST.finditer(text)]
    unbuilt = sum(one["unbuilt"] is not None for one in packages)
    return PassCounts(ends.count("PASS"), len(ends) + unbuilt)


def strip_escapes(text: str) -> str:
    """Remove terminal escapes and normalize line ends to line feeds."""
    return TERMINAL_ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
