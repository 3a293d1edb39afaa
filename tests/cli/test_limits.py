"""The command line does not load wire/ and model.py; the limits that it repeats are compared here."""

from __future__ import annotations

from delegate import model
from delegate.cli import text_input
from delegate.cli.commands import schedules as schedule_commands
from delegate.cli.commands import tasks as commands
from delegate.schedule import model as schedule
from delegate.states import FINAL_TASK_STATES
from delegate.wire import schedules


def test_the_limits_that_are_repeated_are_the_same() -> None:
    assert text_input.PROMPT_MAX == model.PROMPT_MAX
    assert schedule_commands.STEPS == schedule.PIPELINE_STEPS
    assert schedule_commands.DELAY_MAX_MS == schedules.YEAR_MS
    assert list(schedule.ScheduleState) == schedule_commands.STATUSES
    assert {state.value for state in FINAL_TASK_STATES} == commands.ENDED
