"""The command line does not load wire.py and model.py; what it knows of them is compared here."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from delegate import answers, model, wire
from delegate.cli import tasks
from delegate.states import FINAL_TASK_STATES


@pytest.mark.parametrize(
    ("known", "sent"),
    [
        (answers.UsageData, wire.UsageView),
        (answers.IssueData, wire.IssueView),
        (answers.ChoiceData, wire.ChoiceView),
        (answers.ResultData, wire.ResultView),
        (answers.ChangeData, wire.ChangeView),
        (answers.PromptData, wire.PromptView),
        (answers.TaskData, wire.TaskView),
        (answers.AttemptData, wire.AttemptView),
        (answers.EventData, wire.EventView),
        (answers.TaskDetail, wire.TaskDetail),
        (answers.TaskPage, wire.TaskPage),
        (answers.OutputLine, wire.OutputLine),
        (answers.OutputData, wire.OutputView),
        (answers.RunnerData, wire.RunnerView),
        (answers.RelayData, wire.RelayView),
    ],
)
def test_a_client_knows_exactly_the_fields_that_are_sent(known: type, sent: type[BaseModel]) -> None:
    assert set(get_type_hints(known)) == set(sent.model_json_schema(mode="serialization")["properties"])


def test_the_limits_that_are_repeated_are_the_same() -> None:
    assert tasks.PROMPT_MAX == model.PROMPT_MAX
    assert {state.value for state in FINAL_TASK_STATES} == tasks.ENDED
