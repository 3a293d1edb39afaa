"""The command line does not load wire/ and model.py; what it knows of them is compared here."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from delegate import model
from delegate.cli import text_input
from delegate.cli.commands import schedules as schedule_commands
from delegate.cli.commands import tasks as commands
from delegate.client import responses
from delegate.schedule import model as schedule
from delegate.states import FINAL_TASK_STATES
from delegate.wire import parts, schedules, tasks


@pytest.mark.parametrize(
    ("known", "sent"),
    [
        (responses.UsageData, parts.UsageView),
        (responses.IssueData, parts.IssueView),
        (responses.ChoiceData, parts.ChoiceView),
        (responses.QuestionData, parts.QuestionView),
        (responses.CheckpointData, parts.CheckpointView),
        (responses.ResultData, parts.ResultView),
        (responses.ChangeData, parts.ChangeView),
        (responses.PromptData, tasks.PromptView),
        (responses.TaskData, tasks.TaskView),
        (responses.AttemptData, tasks.AttemptView),
        (responses.EventData, tasks.EventView),
        (responses.TaskDetail, tasks.TaskDetail),
        (responses.TaskPage, tasks.TaskPage),
        (responses.OutputLine, tasks.OutputLine),
        (responses.OutputData, tasks.OutputView),
        (responses.RunnerData, tasks.RunnerView),
        (responses.RelayData, tasks.RelayView),
        (responses.BatchData, tasks.BatchResponse),
        (responses.GraphData, tasks.GraphView),
        (responses.RunData, schedules.RunView),
        (responses.ScheduleData, schedules.ScheduleView),
        (responses.ScheduleDetail, schedules.ScheduleDetail),
        (responses.SchedulePage, schedules.SchedulePage),
        (responses.PipelineData, schedules.PipelineView),
        (responses.CancelledSchedule, schedules.CancelledSchedule),
    ],
)
def test_a_client_knows_exactly_the_fields_that_are_sent(known: type, sent: type[BaseModel]) -> None:
    assert set(get_type_hints(known)) == set(sent.model_json_schema(mode="serialization")["properties"])


def test_the_limits_that_are_repeated_are_the_same() -> None:
    assert text_input.PROMPT_MAX == model.PROMPT_MAX
    assert schedule_commands.STEPS == schedule.PIPELINE_STEPS
    assert schedule_commands.DELAY_MAX_MS == schedules.YEAR_MS
    assert list(schedule.ScheduleState) == schedule_commands.STATUSES
    assert {state.value for state in FINAL_TASK_STATES} == commands.ENDED
