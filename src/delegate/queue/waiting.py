"""Explains in one sentence why a task does not run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from delegate.model import ANY_MACHINE, IS_WAITING, PAID_AGENTS, EffectKind, Event, RunnerSlot, Task, TaskId
from delegate.queue.claim import budget_left
from delegate.queue.finish import open_effects
from delegate.queue.limits import QueueRules
from delegate.queue.placement import refusal
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.attempts import running_attempts
from delegate.store.database import Connection
from delegate.store.effects import effects_of
from delegate.store.events import last_events_of_task
from delegate.store.graph import Dependency, dependencies_of
from delegate.store.runners import all_slots, runner_names

PUBLISHING = {
    EffectKind.PUSH: "its branch is being pushed",
    EffectKind.PULL_REQUEST: "its pull request is being opened",
}
BLOCKERS_SHOWN = 5
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
    session_wait: timedelta = timedelta()  # for the runner that has the session of a task
    runner_names: frozenset[str] = frozenset()  # of all that are not revoked, if a task names one
    now: datetime
    dependencies: Mapping[TaskId, Sequence[Dependency]] = field(default_factory=dict)  # by blocked task
    last_events: Mapping[TaskId, Event] = field(default_factory=dict)  # by running task
    publishing: Mapping[TaskId, EffectKind] = field(default_factory=dict)  # open effects of tasks that are cancelled

    def is_alive(self, slot: RunnerSlot) -> bool:
        return slot.id in self.busy or self.now - slot.seen_at <= self.silent_after


def why(task: Task, snapshot: QueueSnapshot) -> str | None:
    match task.state:
        case TaskState.BLOCKED:
            return _why_blocked(task, snapshot.dependencies.get(task.id, ()))
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


def _why_blocked(task: Task, dependencies: Sequence[Dependency]) -> str | None:
    open_ones = [one for one in dependencies if one.state not in FINAL_TASK_STATES]
    keys = [blocker.key for blocker in task.blockers]
    issues = f"waits for {_name_some(keys)}, which {'block' if len(keys) > 1 else 'blocks'} its issue" if keys else None
    if not open_ones:
        return issues  # or the snapshot does not have them
    first = open_ones[0]
    shown = TaskState.QUEUED if first.state is TaskState.BLOCKED else first.state
    names = [f"{first.id} ({shown})", *(one.id for one in open_ones[1:])]
    return f"waits for {_name_some(names, 1)}" + (f", and {issues}" if issues else "")


def _name_some(names: Sequence[str], shown: int = BLOCKERS_SHOWN) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _why_no_runner(task: Task, snapshot: QueueSnapshot) -> str | None:
    alive = [slot for slot in snapshot.slots if snapshot.is_alive(slot)]
    if task.runner is not None and task.runner not in {slot.runner.name for slot in alive}:
        is_known = task.runner in snapshot.runner_names
        return f"its runner {task.runner} is not connected" if is_known else f"no runner is named {task.runner}"
    if not alive and snapshot.max_runners == 0:
        return "no runner is connected, and none is started here because DELEGATE_MAX_RUNNERS is 0"
    if not alive:
        return "no runner is connected yet; if none connects, run `delegate up`"
    here = [slot for slot in alive if task.machine in (ANY_MACHINE, slot.runner.machine)]
    if not here:
        return "no runner is connected on the machine that has its directory"
    return _why_refused(task, here) or _why_not_able(task, snapshot, here)


def _why_refused(task: Task, here: Sequence[RunnerSlot]) -> str | None:
    """Return why no runner may take the task, whatever it has installed and however busy it is."""
    runners = {slot.runner.id: slot.runner for slot in here}.values()
    for tag in task.tags:
        if not any(tag in runner.tags for runner in runners):
            return f"no online runner has the tag {tag}"
    willing = [runner for runner in runners if refusal(runner, task.placement) is None]
    if willing:
        is_over = all(runner.draining_at is not None for runner in willing)
        return f"{willing[0].name} is draining and takes no new tasks" if is_over else None
    named = [runner for runner in runners if task.runner in (None, runner.name)]
    more = len(named) - 1
    rest = f", and {more} more refuse it" if more else ""
    return f"{named[0].name} {refusal(named[0], task.placement)}{rest}"


def _why_not_able(task: Task, snapshot: QueueSnapshot, here: Sequence[RunnerSlot]) -> str | None:
    willing = [
        slot for slot in here if slot.runner.draining_at is None and refusal(slot.runner, task.placement) is None
    ]
    able = [slot for slot in willing if task.agent in slot.agents]
    if not able and any(snapshot.now - slot.registered_at < AGENT_PROBE_TIME for slot in willing):
        return f"the runners have just started and are still looking for {task.agent}"
    if not able:
        return f"no connected runner has {task.agent}; install it on a runner's machine"
    preferred = [slot for slot in able if task.prefers in (None, slot.runner.id)]
    if not preferred:
        minutes = snapshot.session_wait // timedelta(minutes=1)
        return f"waits up to {minutes} minutes for the runner that has its session; then another one may take it"
    return _why_none_free(task, snapshot, preferred)


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
        session_wait=rules.session_wait,
        runner_names=runner_names(connection) if any(task.runner for task in tasks) else frozenset(),
        now=now,
        dependencies=dependencies_of(connection, blocked) if blocked else {},
        last_events={task_id: event for task_id in running for event in last_events_of_task(connection, task_id, 1)},
        publishing=_find_publishing(connection, tasks),
    )
