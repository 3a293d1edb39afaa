"""The command line does not load wire/ and model.py; what it knows of them is compared here."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from delegate import answers, model, schedule
from delegate.cli import schedules as schedule_commands
from delegate.cli import tasks as commands
from delegate.cli import words
from delegate.states import FINAL_TASK_STATES
from delegate.wire import parts, schedules, tasks


@pytest.mark.parametrize(
    ("known", "sent"),
    [
        (answers.UsageData, parts.UsageView),
        (answers.IssueData, parts.IssueView),
        (answers.ChoiceData, parts.ChoiceView),
        (answers.QuestionData, parts.QuestionView),
        (answers.CheckpointData, parts.CheckpointView),
        (answers.ResultData, parts.ResultView),
        (answers.ChangeData, parts.ChangeView),
        (answers.PromptData, tasks.PromptView),
        (answers.TaskData, tasks.TaskView),
        (answers.AttemptData, tasks.AttemptView),
        (answers.EventData, tasks.EventView),
        (answers.TaskDetail, tasks.TaskDetail),
        (answers.TaskPage, tasks.TaskPage),
        (answers.OutputLine, tasks.OutputLine),
        (answers.OutputData, tasks.OutputView),
        (answers.RunnerData, tasks.RunnerView),
        (answers.RelayData, tasks.RelayView),
        (answers.BatchData, tasks.BatchAnswer),
        (answers.GraphData, tasks.GraphView),
        (answers.RunData, schedules.RunView),
        (answers.ScheduleData, schedules.ScheduleView),
        (answers.ScheduleDetail, schedules.ScheduleDetail),
        (answers.SchedulePage, schedules.SchedulePage),
        (answers.PipelineData, schedules.PipelineView),
        (answers.CancelledSchedule, schedules.CancelledSchedule),
    ],
)
def test_a_client_knows_exactly_the_fields_that_are_sent(known: type, sent: type[BaseModel]) -> None:
    assert set(get_type_hints(known)) == set(sent.model_json_schema(mode="serialization")["properties"])


def test_the_limits_that_are_repeated_are_the_same() -> None:
    assert words.PROMPT_MAX == model.PROMPT_MAX
    assert schedule_commands.STEPS == schedule.PIPELINE_STEPS
    assert schedule_commands.DELAY_MAX_MS == schedules.YEAR_MS
    assert list(schedule.ScheduleState) == schedule_commands.STATUSES
    assert {state.value for state in FINAL_TASK_STATES} == commands.ENDED
