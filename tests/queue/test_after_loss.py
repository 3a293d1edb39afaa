from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from delegate.model import MAX_ATTEMPTS, AgentName, Limits, Task, TaskId
from delegate.queue.rescue import task_after_loss
from delegate.states import TASK_MOVES, Reason, TaskState

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RUNNING = Task(
    id=TaskId("task-1"),
    lineage=TaskId("task-1"),
    state=TaskState.RUNNING,
    prompt="true",
    agent=AgentName.CLAUDE,
    limits=Limits(timeout=timedelta(minutes=30), max_output=1024),
    created_at=NOW,
    attempts=1,
)
SHELL: dict[str, object] = {"agent": AgentName.SHELL}
LAST: dict[str, object] = {"attempts": MAX_ATTEMPTS}
CANCELLED: dict[str, object] = {"cancel_requested_at": NOW, "cancel_reason": "enough"}
LOSSES: list[tuple[dict[str, object], TaskState, Reason | None]] = [
    ({}, TaskState.QUEUED, None),
    ({"attempts": MAX_ATTEMPTS - 1}, TaskState.QUEUED, None),
    (LAST, TaskState.FAILED, Reason.POISON),
    (SHELL, TaskState.FAILED, Reason.LOST_RUNNER),
    (SHELL | {"rerun": True}, TaskState.QUEUED, None),
    (SHELL | {"rerun": True} | LAST, TaskState.FAILED, Reason.POISON),
    (CANCELLED, TaskState.CANCELLED, Reason.CANCELLED),
    (CANCELLED | LAST, TaskState.CANCELLED, Reason.CANCELLED),
    (CANCELLED | SHELL, TaskState.CANCELLED, Reason.CANCELLED),
]


@pytest.mark.promise("P5")
@pytest.mark.parametrize(("lost", "state", "reason"), LOSSES)
def test_a_lost_attempt_leads_where_the_table_says(
    lost: dict[str, object], state: TaskState, reason: Reason | None
) -> None:
    after = task_after_loss(replace(RUNNING, **lost), NOW)  # type: ignore[arg-type]

    assert (after.state, after.reason) == (state, reason)
    assert state in TASK_MOVES[TaskState.RUNNING]
    assert after.finished_at == (None if state is TaskState.QUEUED else NOW)
    assert (after.message is None) == (reason is None)


def test_the_reason_of_a_cancel_survives_the_loss_of_its_runner() -> None:
    assert task_after_loss(replace(RUNNING, cancel_requested_at=NOW, cancel_reason="enough"), NOW).message == "enough"
    assert task_after_loss(replace(RUNNING, cancel_requested_at=NOW), NOW).message == "cancelled"
