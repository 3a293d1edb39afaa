"""A pytest plugin: the run ends by naming the programs that were missing, and with CI=true a skip is a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MISSING = Path(__file__).resolve().parent.parent / ".tools" / "missing.txt"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = MISSING.read_text().splitlines() if MISSING.exists() else []
    if missing:
        terminalreporter.section("programs that were not to be had")
        for line in missing:
            terminalreporter.write_line(line)
    if must_run_all() and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("CI=true: a skipped test is a failure", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return  # one of several workers: the process that started them counts
    if exitstatus == pytest.ExitCode.OK and must_run_all() and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def must_run_all() -> bool:
    return os.environ.get("CI") == "true"
