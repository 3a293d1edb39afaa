from __future__ import annotations

from datetime import timedelta

import pytest

from delegate.config.settings import Settings
from delegate.runner.agents import Ending
from delegate.runner.assignment import Assignment
from delegate.runner.attempt.watchdog import AgentActivity, TimeLimits, next_deadline, time_limits_for

STRICT = TimeLimits(total=1000, no_start=10, silence=60, linger=5)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (AgentActivity(started_at=0, launched_at=0), (10, Ending.NO_START)),
        (AgentActivity(started_at=0, launched_at=3), (13, Ending.NO_START)),
        (AgentActivity(started_at=0, launched_at=0, output_at=7), (67, Ending.STALLED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=90, result_at=90), (95, Ending.LINGERED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=99, result_at=90), (95, Ending.LINGERED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=99, waiting_since=90), (95, Ending.LINGERED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=50, asked_at=20), (80, Ending.ASKED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=25, result_at=25, asked_at=20), (30, Ending.LINGERED)),
        (AgentActivity(started_at=0, launched_at=0, output_at=990), (1000, Ending.TIMEOUT)),
        (AgentActivity(started_at=0, launched_at=0, output_at=998, result_at=998), (1000, Ending.TIMEOUT)),
    ],
)
def test_the_first_limit_that_is_reached_ends_an_agent(signs: AgentActivity, expected: tuple[float, Ending]) -> None:
    assert next_deadline(STRICT, signs) == expected


def test_a_silent_command_is_ended_by_its_total_time_only() -> None:
    patience = time_limits_for(assignment("shell"), Settings())

    assert next_deadline(patience, AgentActivity(started_at=0, launched_at=0)) == (90, Ending.TIMEOUT)
    assert next_deadline(patience, AgentActivity(started_at=0, launched_at=0, output_at=1)) == (90, Ending.TIMEOUT)


def test_an_agent_has_the_patience_of_the_settings() -> None:
    settings = Settings(
        no_start_after=timedelta(seconds=1), stalled_after=timedelta(seconds=2), linger_after=timedelta(seconds=3)
    )

    assert time_limits_for(assignment("claude"), settings) == TimeLimits(total=90, no_start=1, silence=2, linger=3)


def assignment(agent: str) -> Assignment:
    return Assignment(
        attempt_id="att-1",
        task_id="task-1",
        lineage="task-1",
        fence=1,
        number=1,
        agent=agent,
        prompt="do it",
        timeout=timedelta(milliseconds=90_000),
        max_output=1024,
    )
