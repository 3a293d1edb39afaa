from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.both_databases.scene import runner

from delegate.model import ANY_MACHINE, IS_WAITING, AgentName, Event, EventKind, Limits, RunnerSlot, Task, TaskId
from delegate.queue.waiting import QueueSnapshot, why
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.graph import Dependency

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SOON = NOW + timedelta(minutes=5)
TASK = Task(
    id=TaskId("task-1"),
    lineage=TaskId("task-1"),
    state=TaskState.QUEUED,
    prompt="true",
    agent=AgentName.CLAUDE,
    limits=Limits(timeout=timedelta(minutes=30), max_output=1024),
    created_at=NOW,
    machine="desk",
)
ANNA, EVE, OTTO = runner("anna"), runner("eve"), runner("otto", machine="attic")
NEW = runner("shelly", agents=["shell"])
SHELL_ONLY = replace(NEW, registered_at=NOW - timedelta(minutes=1))
AROUND = QueueSnapshot(
    slots=[ANNA],
    busy=frozenset(),
    silent=frozenset(),
    silent_after=timedelta(minutes=2),
    budget_left=None,
    now=NOW,
)


def parked(one: RunnerSlot, until: datetime) -> RunnerSlot:
    return replace(one, parked={"claude": until})


def held(one: RunnerSlot) -> RunnerSlot:
    return replace(one, problem="no memory")


def unseen(one: RunnerSlot) -> RunnerSlot:
    return replace(one, seen_at=NOW - timedelta(minutes=2, microseconds=1))


def waits_for(*states: TaskState) -> dict[str, object]:
    dependencies = [
        Dependency(id=TaskId(f"task-{number}"), state=state, reason=None, depth=0)
        for number, state in enumerate(states, start=1)
    ]
    return {"dependencies": {TASK.id: dependencies}}


LEFT_RUNNING = Event(
    id=7,
    task_id=TASK.id,
    attempt_id=None,
    kind=EventKind.WARNING,
    at=NOW,
    data={"text": "waiting for a command that the agent left running: npm run dev", IS_WAITING: True},
)
BLOCKED: dict[str, object] = {"state": TaskState.BLOCKED}
WAITING: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("next in line for a free runner", {}, {}),
    ("next in line for a free runner", {"machine": ANY_MACHINE}, {"slots": [OTTO]}),
    ("next in line for a free runner", {"not_before": NOW}, {}),
    ("next in line for a free runner", {}, {"slots": [parked(ANNA, NOW)]}),
    ("next in line for a free runner", {}, {"slots": [ANNA, EVE], "busy": frozenset({EVE.id})}),
    ("next in line for a free runner", {"agent": AgentName.SHELL}, {"budget_left": 0.0}),
    ("next in line for a free runner", {}, {"budget_left": 0.01}),
    ("parked until 2026-03-04 12:05:00 UTC: its usage limit is reached", {"not_before": SOON}, {"slots": []}),
    ("no runner is connected yet; if none connects, run `delegate up`", {}, {"slots": []}),
    ("no runner is connected yet; if none connects, run `delegate up`", {}, {"slots": [unseen(ANNA)]}),
    (
        "no runner is connected, and none is started here because DELEGATE_MAX_RUNNERS is 0",
        {},
        {"slots": [], "max_runners": 0},
    ),
    ("next in line for a free runner", {}, {"max_runners": 0}),
    ("its runner is busy", {}, {"slots": [unseen(ANNA)], "busy": frozenset({ANNA.id})}),
    ("no runner is connected on the machine that has its directory", {}, {"slots": [OTTO]}),
    ("the runners have just started and are still looking for claude", {}, {"slots": [NEW]}),
    ("no connected runner has claude; install it on a runner's machine", {}, {"slots": [SHELL_ONLY]}),
    ("no connected runner has claude; install it on a runner's machine", {}, {"slots": [SHELL_ONLY, OTTO]}),
    (
        "every runner has claude parked until 2026-03-04 12:05:00 UTC: its usage limit is reached",
        {},
        {"slots": [parked(ANNA, SOON + timedelta(hours=1)), parked(EVE, SOON)]},
    ),
    ("its runner is busy", {}, {"busy": frozenset({ANNA.id})}),
    ("all runners are busy", {}, {"slots": [ANNA, EVE], "busy": frozenset({ANNA.id, EVE.id})}),
    ("its runner is busy", {}, {"slots": [ANNA, parked(EVE, SOON)], "busy": frozenset({ANNA.id})}),
    ("no runner is accepting work: no memory", {}, {"slots": [held(ANNA)]}),
    ("next in line for a free runner", {}, {"slots": [held(ANNA), EVE]}),
    ("no other runner is accepting work: no memory", {}, {"slots": [ANNA, held(EVE)], "busy": frozenset({ANNA.id})}),
    (
        "the daily budget (DELEGATE_DAILY_BUDGET_USD) is spent or reserved for running tasks; it resets at 00:00 UTC",
        {},
        {"budget_left": 0.0},
    ),
    ("is being cancelled", {"state": TaskState.RUNNING, "cancel_requested_at": NOW}, {}),
    (
        "its runner is silent; the task continues when the runner is back or another one takes over",
        {"state": TaskState.RUNNING},
        {"silent": frozenset({TASK.id})},
    ),
    (
        "waiting for a command that the agent left running: npm run dev",
        {"state": TaskState.RUNNING},
        {"last_events": {TASK.id: LEFT_RUNNING}},
    ),
    ("waits for an answer; use `delegate answer task-1`", {"state": TaskState.WAITING}, {}),
    ("waits for task-2 (running)", BLOCKED, waits_for(TaskState.COMPLETED, TaskState.RUNNING)),
    ("waits for task-1 (queued) and 2 more", BLOCKED, waits_for(*[TaskState.BLOCKED] * 3, TaskState.FAILED)),
]


@pytest.mark.parametrize(("sentence", "task", "around"), WAITING)
def test_a_task_can_always_say_why_it_waits(sentence: str, task: dict[str, object], around: dict[str, object]) -> None:
    assert why(replace(TASK, **task), replace(AROUND, **around)) == sentence  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [TaskState.RUNNING, *sorted(FINAL_TASK_STATES)])
def test_a_task_that_does_not_wait_has_nothing_to_explain(state: TaskState) -> None:
    assert why(replace(TASK, state=state), AROUND) is None
