"""Explains in one sentence why a task does not run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from delegate.model import ANY_MACHINE, IS_WAITING, PAID_AGENTS, EffectKind, Event, RunnerSlot, Task, TaskId
from delegate.queue.claim import budget_left
from delegate.queue.finish import open_effects
from delegate.queue.limits import QueueRules
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.attempts import running_attempts
from delegate.store.database import Connection
from delegate.store.effects import effects_of
from delegate.store.events import last_events_of_task
from delegate.store.graph import Dependency, dependencies_of
from delegate.store.runners import all_slots

PUBLISHING = {
    EffectKind.PUSH: "its branch is being pushed",
    EffectKind.PULL_REQUEST: "its pull request is being opened",
}
AGENT_PROBE_TIME = timedelta(seconds=15)  # a new runner tries its agents' programs one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """The state of the queue that the explanation depends on."""

    slots: Sequence[RunnerSlot]
    busy: frozenset[str]  # ids of slots that hold an attempt and renewed it within its lease
    silent: frozenset[str]  # ids of tasks whose runner did not
    silent_after: timedelta
    budget_left: float | None
    max_runners: int | None = None  # the limit of the pool on the relay's machine
    now: datetime
    dependencies: Mapping[TaskId, Sequence[Dependency]] = field(default_factory=dict)  # by blocked task
    last_events: Mapping[TaskId, Event] = field(default_factory=dict)  # by running task
    publishing: Mapping[TaskId, EffectKind] = field(default_factory=dict)  # open effects of tasks that are cancelled

    def is_alive(self, slot: RunnerSlot) -> bool:
        return slot.id in self.busy or self.now - slot.seen_at <= self.silent_after


def why(task: Task, snapshot: QueueSnapshot) -> str | None:
    match task.state:
        case TaskState.BLOCKED:
            return _why_blocked(snapshot.dependencies.get(task.id, ()))
        case TaskState.QUEUED:
            return _why_queued(task, snapshot)
        case TaskState.RUNNING:
            return _why_still_running(task, snapshot)
        case TaskState.WAITING:
            return f"waits for an answer; use `delegate answer {task.id}`"
        case _:
            return None


def _why_still_running(task: Task, snapshot: QueueSnapshot) -> str | None:
    if (kind := snapshot.publishing.get(task.id)) is not None and task.id not in snapshot.silent:
        return f"is being cancelled, but {PUBLISHING[kind]}; it ends when that is done"
    if task.cancel_requested_at is not None:
        return "is being cancelled"
    if task.id in snapshot.silent:
        return "its runner is silent; the task continues when the runner is back or another one takes over"
    last = snapshot.last_events.get(task.id)
    return str(last.data.get("text")) if last is not None and last.data.get(IS_WAITING) is True else None


def _why_queued(task: Task, snapshot: QueueSnapshot) -> str:
    if task.not_before is not None and task.not_before > snapshot.now:
        return f"parked until {task.not_before:%Y-%m-%d %H:%M:%S} UTC: its usage limit is reached"
    return _why_no_runner(task, snapshot) or _why_no_budget(task, snapshot) or "next in line for a free runner"


def _why_blocked(dependencies: Sequence[Dependency]) -> str | None:
    open_ones = [one for one in dependencies if one.state not in FINAL_TASK_STATES]
    if not open_ones:
        return None  # the snapshot does not have them
    first, more = open_ones[0], len(open_ones) - 1
    shown = TaskState.QUEUED if first.state is TaskState.BLOCKED else first.state
    return f"waits for {first.id} ({shown})" + (f" and {more} more" if more else "")


def _why_no_runner(task: Task, snapshot: QueueSnapshot) -> str | None:
    alive = [slot for slot in snapshot.slots if snapshot.is_alive(slot)]
    if not alive and snapshot.max_runners == 0:
        return "no runner is connected, and none is started here because DELEGATE_MAX_RUNNERS is 0"
    if not alive:
        return "no runner is connected yet; if none connects, run `delegate up`"
    here = [slot for slot in alive if task.machine in (ANY_MACHINE, slot.runner.machine)]
    if not here:
        return "no runner is connected on the machine that has its directory"
    able = [slot for slot in here if task.agent in slot.agents]
    if not able and any(snapshot.now - slot.registered_at < AGENT_PROBE_TIME for slot in here):
        return f"the runners have just started and are still looking for {task.agent}"
    if not able:
        return f"no connected runner has {task.agent}; install it on a runner's machine"
    return _why_none_free(task, snapshot, able)


def _why_none_free(task: Task, snapshot: QueueSnapshot, able: Sequence[RunnerSlot]) -> str | None:
    ready = [slot for slot in able if slot.problem is None]
    if not ready:
        return f"no runner is accepting work: {able[0].problem}"
    free = [slot for slot in ready if slot.parked.get(task.agent, snapshot.now) <= snapshot.now]
    if not free:
        until = min(slot.parked[task.agent] for slot in ready)
        return f"every runner has {task.agent} parked until {until:%Y-%m-%d %H:%M:%S} UTC: its usage limit is reached"
    if all(slot.id in snapshot.busy for slot in free):
        held = [slot for slot in able if slot.problem is not None and slot.id not in snapshot.busy]
        if held:
            return f"no other runner is accepting work: {held[0].problem}"
        return "all runners are busy" if len(free) > 1 else "its runner is busy"
    return None


def _why_no_budget(task: Task, snapshot: QueueSnapshot) -> str | None:
    if task.agent not in PAID_AGENTS or snapshot.budget_left is None or snapshot.budget_left > 0:
        return None
    return "the daily budget (DELEGATE_DAILY_BUDGET_USD) is spent or reserved for running tasks; it resets at 00:00 UTC"


def _find_publishing(connection: Connection, tasks: Sequence[Task]) -> dict[TaskId, EffectKind]:
    stopping = [task.id for task in tasks if task.state is TaskState.RUNNING and task.cancel_requested_at is not None]
    return {one.task_id: one.kind for one in open_effects(effects_of(connection, stopping))} if stopping else {}


def read_snapshot(connection: Connection, tasks: Sequence[Task], rules: QueueRules, now: datetime) -> QueueSnapshot:
    """Read the state of the queue, and what `tasks` that are blocked or running wait for."""
    running = [task.id for task in tasks if task.state is TaskState.RUNNING]
    blocked = [task.id for task in tasks if task.state is TaskState.BLOCKED]
    attempts = running_attempts(connection)
    silent = [attempt for attempt in attempts if now - attempt.renewed_at > rules.lease]
    return QueueSnapshot(
        slots=all_slots(connection),
        busy=frozenset(attempt.slot_id for attempt in attempts if attempt not in silent),
        silent=frozenset(attempt.task_id for attempt in silent),
        silent_after=rules.lease,
        budget_left=budget_left(connection, rules, now),
        max_runners=rules.max_runners,
        now=now,
        dependencies=dependencies_of(connection, blocked) if blocked else {},
        last_events={task_id: event for task_id in running for event in last_events_of_task(connection, task_id, 1)},
        publishing=_find_publishing(connection, tasks),
    )
