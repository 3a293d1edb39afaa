from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from delegate.runner.checks import (
    TAIL_MAX,
    CheckResult,
    Checks,
    CommandResult,
    PassCounts,
    parse_test_counts,
    result_of,
    run_checks,
)

pytestmark = pytest.mark.anyio

GREEN = "\x1b[32m"
OFF = "\x1b[0m"
JEST = """PASS src/sum.test.js
FAIL src/parse.test.js

Test Suites: 1 failed, 1 passed, 2 total
Tests:       1 failed, 2 skipped, 16 passed, 19 total
Snapshots:   0 total
Time:        1.204 s
"""
VITEST = f""" RUN  v3.0.0 /repo

 Test Files  {GREEN}1 failed{OFF} | 2 passed (3)
      Tests  {GREEN}1 failed{OFF} | 16 passed | 2 skipped (19)
   Start at  10:00:00
"""
GO_VERBOSE = """=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB
=== RUN   TestB/inner
    --- FAIL: TestB/inner (0.00s)
--- FAIL: TestB (0.00s)
=== RUN   TestC
--- SKIP: TestC (0.00s)
FAIL
FAIL\texample.test/a\t0.004s
FAIL\texample.test/b [build failed]
"""
GO_PLAIN = """ok  \texample.test/a\t0.003s
ok  \texample.test/b\t(cached)
?   \texample.test/c\t[no test files]
--- FAIL: TestD (0.00s)
FAIL
FAIL\texample.test/d\t0.002s
FAIL
"""
CARGO = """running 3 tests
test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests shop
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.21s
"""


def done(command: str = "check", output: str = "", exit_code: int | None = 0, seconds: float = 1.24) -> CommandResult:
    return CommandResult(
        command=command,
        exit_code=exit_code,
        output=output.encode(),
        seconds=seconds,
        timed_out=exit_code is None,
        is_interrupted=False,
    )


def checks(*results: CommandResult) -> Checks:
    return Checks(results=tuple(result_of(result) for result in results))


# Counts.


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("===== 17 passed in 1.20s =====", PassCounts(17, 17)),
        ("17 passed, 2 skipped, 1 warning in 61.20s (0:01:01)", PassCounts(17, 17)),
        ("= 2 failed, 14 passed, 1 xfailed, 1 error in 0.5s =", PassCounts(14, 17)),
        (f"{GREEN}======= {GREEN}3 passed{OFF}{GREEN} in 0.01s{OFF}{GREEN} ======={OFF}", PassCounts(3, 3)),
        (JEST, PassCounts(16, 17)),
        (VITEST, PassCounts(16, 17)),
        (GO_VERBOSE, PassCounts(1, 3)),
        (GO_PLAIN, PassCounts(2, 3)),
        (CARGO, PassCounts(6, 7)),
        ("2 passed in 0.1s\r\n" + JEST.replace("\n", "\r\n"), PassCounts(18, 19)),
    ],
)
def test_counts_are_read_from_what_test_runners_print(output: str, expected: PassCounts) -> None:
    assert parse_test_counts(output.encode()) == expected


@pytest.mark.parametrize(
    "output",
    ["", "All checks passed!", "no tests ran in 0.01s", "3 skipped in 0.01s", "ok", "I saw 5 passed by", "Tests: 4"],
)
def test_where_nothing_is_counted_there_are_no_counts(output: str) -> None:
    assert parse_test_counts(output.encode()) is None


def test_bytes_that_are_not_text_do_not_hide_the_counts() -> None:
    assert parse_test_counts(b"\xff\xfe\x00\n" * 1000 + b"5 passed in 0.1s\n") == PassCounts(5, 5)


@pytest.mark.slow
def test_the_counts_of_the_real_pytest_are_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert 1 == 2\n")

    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=yes", "."]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False)

    assert parse_test_counts(ended.stdout) == PassCounts(2, 3)


# Results.


def test_a_check_is_reported_in_one_line() -> None:
    assert result_of(done(output="17 passed in 1.2s")).line == "17/17 · 1.2 s"
    assert result_of(done(output="fine")).line == "passed · 1.2 s"
    assert result_of(done(exit_code=3)).line == "exit code 3 · 1.2 s"
    assert result_of(done(exit_code=None, seconds=600)).line == "timed out · 600.0 s"


def test_a_red_check_never_looks_green() -> None:
    result = result_of(done(output="17 passed in 1.2s\nFAIL Required test coverage of 90% not reached", exit_code=1))

    assert (result.ok, result.passed, result.summary) == (False, None, "exit code 1")


def test_the_end_of_the_output_is_kept_without_colours() -> None:
    result = result_of(done(output=f"{GREEN}é{OFF}" * TAIL_MAX + "\x1b]0;title\x07last", exit_code=1))

    assert result.tail == ("é" * TAIL_MAX + "last")[-TAIL_MAX:]


def test_commands_are_counted_where_no_tests_are() -> None:
    both = checks(done("ruff check"), done("make docs", exit_code=2))

    assert (both.passed, both.total, both.is_green) == (1, 2, False)


def test_tests_are_counted_where_there_are_any() -> None:
    green = checks(done("ruff check"), done("pytest", "17 passed in 1.2s"), done("npx jest", JEST, exit_code=1))

    assert (green.passed, green.total) == (33, 34)


def test_a_red_command_beside_green_tests_is_one_that_did_not_pass() -> None:
    mixed = checks(done("ruff check", exit_code=1), done("pytest", "17 passed in 1.2s"))

    assert (mixed.passed, mixed.total) == (17, 18)
    assert mixed.failure_summary == "1 of 2 checks failed: `ruff check` (exit code 1)"


def test_a_repository_without_checks_is_green() -> None:
    none = Checks()

    assert (none.is_green, none.passed, none.total) == (True, 0, 0)


# Running them.


async def test_all_checks_run_and_each_is_reported_when_it_ends() -> None:
    ran: list[str] = []
    reported: list[CheckResult] = []

    async def run_command(command: str) -> CommandResult:
        assert len(reported) == len(ran)
        ran.append(command)
        return done(command, exit_code=1 if command == "a" else 0)

    found = await run_checks(run_command, ["a", "b"], report=reported.append)

    assert ran == ["a", "b"]
    assert found.results == tuple(reported)
    assert [result.command for result in found.red] == ["a"]
