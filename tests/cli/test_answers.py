"""The command line does not load wire/ and model.py; what it knows of them is compared here."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from delegate import answers, model
from delegate.cli import tasks as commands
from delegate.states import FINAL_TASK_STATES
from delegate.wire import parts, tasks


@pytest.mark.parametrize(
    ("known", "sent"),
    [
        (answers.UsageData, parts.UsageView),
        (answers.IssueData, parts.IssueView),
        (answers.ChoiceData, parts.ChoiceView),
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
    ],
)
def test_a_client_knows_exactly_the_fields_that_are_sent(known: type, sent: type[BaseModel]) -> None:
    assert set(get_type_hints(known)) == set(sent.model_json_schema(mode="serialization")["properties"])


def test_the_limits_that_are_repeated_are_the_same() -> None:
    assert commands.PROMPT_MAX == model.PROMPT_MAX
    assert {state.value for state in FINAL_TASK_STATES} == commands.ENDED
