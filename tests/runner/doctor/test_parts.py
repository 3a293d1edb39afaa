"""What the doctor decides without looking at anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delegate.runner.doctor.commands import list_programs, missing_programs
from delegate.runner.doctor.context import format_age, quote_line
from delegate.runner.doctor.findings import DoctorSection, first_problem
from delegate.runner.doctor.relay import clock_skew

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pytest -q", ["pytest"]),
        ("CI=1 npm ci && npm test | tee log; cd docs", ["npm", "tee"]),
        ("cd web && yarn", ["yarn"]),
        (".venv/bin/pytest", []),
        ("./make", []),
        ("if true; then echo yes; fi", []),
        ("$TOOL --check", []),
        ("echo 'not closed", []),
        ("", []),
    ],
)
def test_the_programs_of_a_command_are_its_plain_first_words(command: str, names: list[str]) -> None:
    assert list_programs(command) == names


def test_a_program_that_path_does_not_have_is_missing() -> None:
    assert missing_programs("sh -c true && no-such-program", {"PATH": "/usr/bin:/bin"}) == ["no-such-program"]


@pytest.mark.parametrize(
    ("relay_time", "skew"),
    [
        (NOON, timedelta()),
        (NOON - SECOND, timedelta()),
        (NOON + 5 * SECOND, 4 * SECOND),
        (NOON - 5 * SECOND, -4 * SECOND),
    ],
)
def test_clocks_differ_by_what_whole_seconds_and_the_way_of_the_answer_cannot_explain(
    relay_time: datetime, skew: timedelta
) -> None:
    assert clock_skew(relay_time, sent_at=NOON, received_at=NOON + SECOND) == skew


def test_the_first_problem_is_to_be_fixed_first() -> None:
    warning, first = (
        DoctorSection.HOME.warning("disk", "is small"),
        DoctorSection.GIT.problem("git", "is not installed"),
    )

    assert first_problem([warning, first, DoctorSection.AGENTS.problem("claude", "is not installed")]) is first
    assert first_problem([warning]) is None


def test_the_output_of_a_program_is_shown_on_one_line_without_a_login() -> None:
    assert quote_line("fatal: no\n https://ada:secret@host/x \x1b[2J") == "fatal: no https://…@host/x \\x1b[2J"


@pytest.mark.parametrize(
    ("age", "words"),
    [(timedelta(seconds=1), "1 second"), (timedelta(minutes=90), "1 hour"), (timedelta(days=12), "12 days")],
)
def test_an_age_is_shown_in_its_largest_unit(age: timedelta, words: str) -> None:
    assert format_age(age) == words
