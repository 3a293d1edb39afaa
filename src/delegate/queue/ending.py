"""The end of a task, and what it makes of those that wait for it. Every end of every task passes here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from delegate.errors import IllegalMove, StaleFence
from delegate.model import Attempt, EventKind, Task, TaskId
from delegate.queue.graph import settled
from delegate.states import TaskState
from delegate.store.database import Connection
from delegate.store.events import NewEvent, append_events
from delegate.store.graph import dependencies_of, dependents_of, lock_blocked, release_blocked
from delegate.store.schedules import settle_run
from delegate.store.tasks import end_task

log = logging.getLogger(__name__)
DEPENDENTS_AT_ONCE = 100  # in one statement; each waits for up to a hundred others


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A task that changed, and the others that changed with it: those that waited for it."""

    task: Task
    others: tuple[Task, ...] = ()


def end(
    connection: Connection, ended: Task, *, was: TaskState, attempt: Attempt | None, now: datetime
) -> tuple[Task, ...]:
    """Write the end of a task; release those that waited only for it, or cancel them. Returns the others that moved.

    `attempt` is the one whose end this is, if the task was in a runner's hands.
    """
    _write_end(connection, ended, was=was, attempt=attempt, now=now)
    moved: list[Task] = []
    wave: Sequence[Task] = [ended]
    while wave:
        followers = _settle(connection, [task.id for task in wave], now)
        moved += followers
        wave = [task for task in followers if task.state is TaskState.CANCELLED]
    return tuple(moved)


def log_others(moved: Moved) -> None:
    for task in moved.others:
        log.info(
            "dependent settled",
            extra={"task_id": task.id, "after": moved.task.id, "state": task.state, "reason": task.reason},
        )


def finished_event(task: Task, attempt: Attempt | None, now: datetime) -> NewEvent:
    data: dict[str, object] = {
        "state": task.state,
        "reason": task.reason,
        "message": task.message,
        "exitCode": task.exit_code,
    }
    return NewEvent(
        task_id=task.id, attempt_id=attempt.id if attempt else None, kind=EventKind.FINISHED, at=now, data=data
    )


def _write_end(connection: Connection, ended: Task, *, was: TaskState, attempt: Attempt | None, now: datetime) -> None:
    if not end_task(connection, ended, was=was, finished_at=now):
        if attempt is not None:
            raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
        raise IllegalMove(task_id=ended.id, state=f"not {was} any more", verb="ended", advice="look at it again")
    append_events(connection, [finished_event(ended, attempt, now)])
    if ended.schedule_id is not None:
        settle_run(connection, ended, now)


def _settle(connection: Connection, ended: Sequence[TaskId], now: datetime) -> list[Task]:
    """What becomes of all that wait for these; returns those that moved."""
    waiting = dependents_of(connection, ended)
    moved: list[Task] = []
    for start in range(0, len(waiting), DEPENDENTS_AT_ONCE):
        moved += _settle_some(connection, waiting[start : start + DEPENDENTS_AT_ONCE], now)
    return moved


def _settle_some(connection: Connection, waiting: Sequence[TaskId], now: datetime) -> list[Task]:
    # Locked first, then looked at: who holds the row of a task sees every end that was written while it waited.
    blocked = lock_blocked(connection, waiting)
    standing = dependencies_of(connection, [task.id for task in blocked])
    after = [settled(task, standing[task.id], now) for task in blocked]
    _release(connection, [task for task in after if task.state is TaskState.QUEUED], now)
    for task in after:
        if task.state is TaskState.CANCELLED:
            _write_end(connection, task, was=TaskState.BLOCKED, attempt=None, now=now)
    return [task for task in after if task.state is not TaskState.BLOCKED]


def _release(connection: Connection, ready: Sequence[Task], now: datetime) -> None:
    if ready:
        release_blocked(connection, [task.id for task in ready])
        append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.READY, at=now, data={}) for task in ready])
