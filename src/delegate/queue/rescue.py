"""Takes tasks back from lost runners."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.model import MAX_ATTEMPTS, AgentName, Attempt, AttemptId, Checkpoint, EventKind, Outcome, SlotId, Task
from delegate.queue.cascade import CASCADE_MAX, Transition, end, log_dependents
from delegate.queue.checkpoints import build_relay_checkpoint
from delegate.queue.lease_guard import lock_task_of_attempt, require_written
from delegate.queue.limits import QueueRules
from delegate.queue.placement import LaneScope
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.attempts import (
    abandoned_attempts,
    end_attempt_if_held,
    expired_attempts,
    has_expired_attempt,
    pull_back_leases,
    renew_all,
)
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.results import insert_checkpoint
from delegate.store.runners import mark_relay_seen, relay_seen_at
from delegate.store.tasks import free_preferring_tasks, has_preferring_task, requeue_task

log = logging.getLogger(__name__)
# A laptop may sleep overnight and continue in the morning; after a day its task goes to another runner.
ABANDONED_AFTER = timedelta(hours=24)
RUNNER_GONE = "its runner went away"
HEARTBEATS_PER_LEASE = 4  # recorded by the relay: enough to notice a pause of one lease, few enough to cost little


@dataclass(frozen=True, slots=True, kw_only=True)
class RescuedTask(Transition):
    """A task that was taken back, and the attempt that was lost."""

    attempt: Attempt


async def rescue(database: Database, rules: QueueRules, now: datetime) -> list[RescuedTask]:
    """Take back abandoned tasks; returns the tasks that changed.

    A silent runner may only be asleep: it keeps its task until another runner asks for work or the task is cancelled.
    """
    rescued = await database.write("rescue", lambda connection: _rescue_abandoned(connection, rules, now))
    log_rescued(rescued)
    return rescued


def log_rescued(rescued: Iterable[RescuedTask]) -> None:
    for one in rescued:
        log_lost(one, one.attempt.id, one.attempt.slot_id)


def log_lost(transition: Transition, attempt_id: AttemptId, slot_id: SlotId) -> None:
    """Call after the commit: until then the loss may be rolled back or retried."""
    task = transition.task
    log.warning(
        "attempt lost",
        extra={"task_id": task.id, "attempt_id": attempt_id, "runner_id": slot_id, "state": task.state},
    )
    log_dependents(transition)


async def end_preferences(database: Database, rules: QueueRules, now: datetime) -> list[Transition]:
    """Let other runners take tasks that have waited long enough for the runner that has their session."""

    def write(connection: Connection) -> list[Transition]:
        return [
            Transition(task=task) for task in free_preferring_tasks(connection, queued_before=now - rules.session_wait)
        ]

    has_any = await database.read(lambda connection: has_preferring_task(connection, now - rules.session_wait))
    return await database.write("prefer", write) if has_any else []


async def renew_leases_after_restart(database: Database, rules: QueueRules, now: datetime) -> int:
    """Renew the leases that were valid when the relay stopped, so that a restart costs no runner its lease."""
    return await database.write("welcome_back", lambda connection: _renew_leases(connection, rules, now))


def _rescue_abandoned(connection: Connection, rules: QueueRules, now: datetime) -> list[RescuedTask]:
    _extend_leases_after_pause(connection, rules, now)
    gone = abandoned_attempts(
        connection, silent_since=rules.silent_since(now), given_up_since=now - max(ABANDONED_AFTER, rules.reclaim_after)
    )
    return lose_attempts(connection, gone, now)


def _renew_leases(connection: Connection, rules: QueueRules, now: datetime) -> int:
    seen = relay_seen_at(connection)
    mark_relay_seen(connection, now)
    return 0 if seen is None else _renew_after_silence_of_relay(connection, rules, seen, now)


def rescue_expired(connection: Connection, rules: QueueRules, scope: LaneScope, now: datetime) -> list[RescuedTask]:
    """Take back what silent runners hold and this one may take; part of every claim."""
    _extend_leases_after_pause(connection, rules, now)
    expired = expired_attempts(connection, rules.silent_since(now), scope.covers)
    return lose_attempts(connection, expired, now)


def has_expired(connection: Connection, rules: QueueRules, scope: LaneScope, now: datetime) -> bool:
    return has_expired_attempt(connection, rules.silent_since(now), scope.covers)


def _extend_leases_after_pause(connection: Connection, rules: QueueRules, now: datetime) -> None:
    """Renew leases after a pause of the relay longer than a lease: runners could not renew them meanwhile."""
    seen = relay_seen_at(connection)
    if seen is not None and now < seen:
        pull_back_leases(connection, now)  # the clock was set back; a lease must not last longer for it
    if seen is not None and now - seen > rules.lease:
        _renew_after_silence_of_relay(connection, rules, seen, now)
    if seen is None or not timedelta() <= now - seen < rules.lease / HEARTBEATS_PER_LEASE:
        mark_relay_seen(connection, now)


def _renew_after_silence_of_relay(connection: Connection, rules: QueueRules, seen: datetime, now: datetime) -> int:
    """A runner that has had no time to renew since the last such pause loses at most a lease by each further one."""
    return renew_all(connection, good_at=seen - rules.lease, now=now, excused=now - seen - rules.lease)


def lose_attempts(connection: Connection, attempts: Sequence[Attempt], now: datetime) -> list[RescuedTask]:
    """Take back as many as one transaction may settle with their dependents; later calls find the rest."""
    rescued: list[RescuedTask] = []
    settled = 0
    for attempt in attempts:
        transition = lose_attempt(connection, lock_task_of_attempt(connection, attempt), attempt, now)
        rescued.append(
            RescuedTask(task=transition.task, others=transition.others, followers=transition.followers, attempt=attempt)
        )
        settled += len(transition.others) + len(transition.followers)
        if settled >= CASCADE_MAX:
            break
    return rescued


def lose_attempt(
    connection: Connection, task: Task, attempt: Attempt, now: datetime, *, checkpoint: Checkpoint | None = None
) -> Transition:
    """End the attempt without a result, and end its task or queue it for the next attempt.

    `checkpoint` comes from the runner; without it, the relay builds one from its own data.
    """
    lost = Outcome(
        state=AttemptState.LOST,
        reason=Reason.LOST_RUNNER,
        message=RUNNER_GONE,
        session_id=attempt.session_id,
        usage=attempt.usage,
    )
    require_written(end_attempt_if_held(connection, attempt, lost, now), attempt)
    insert_checkpoint(
        connection, attempt, checkpoint or build_relay_checkpoint(connection, task, attempt, RUNNER_GONE), now
    )
    spent = task.usage.plus(attempt.usage)
    carried = replace(task, session_id=attempt.session_id or task.session_id, usage=spent)
    after = task_after_loss(carried, now)
    data: dict[str, object] = {"runnerId": attempt.runner_id, "attempt": attempt.number}
    lost_event = NewEvent(task_id=task.id, attempt_id=attempt.id, kind=EventKind.LOST, at=now, data=data)
    append_events(connection, [lost_event])
    transition = Transition(task=after)
    if after.state is TaskState.QUEUED:
        require_written(requeue_task(connection, carried, counted=True), attempt)
    else:
        transition = end(connection, after, was=TaskState.RUNNING, attempt=attempt, now=now)
    return transition


def task_after_loss(task: Task, now: datetime) -> Task:
    """Pure: return a running task as it is after the loss of its attempt."""
    ended = replace(task, finished_at=now)
    if task.cancel_requested_at is not None:
        message = task.cancel_reason or "cancelled"
        return replace(ended, state=TaskState.CANCELLED, reason=Reason.CANCELLED, message=message)
    if task.attempts >= MAX_ATTEMPTS:
        message = f"{task.attempts} attempts were lost with their runners"
        return replace(ended, state=TaskState.FAILED, reason=Reason.POISON, message=message)
    if task.agent == AgentName.SHELL and not task.rerun:
        message = "its runner went away while the command ran"
        return replace(ended, state=TaskState.FAILED, reason=Reason.LOST_RUNNER, message=message)
    return replace(task, state=TaskState.QUEUED)
