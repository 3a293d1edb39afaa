"""Writes the end of a task, and releases or cancels its dependents. Every task ends here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from delegate.errors import IllegalMove, StaleFence, excerpt
from delegate.model import AgentName, Attempt, Blocker, EventKind, OnDependencyFailure, Task, TaskId
from delegate.queue.schedule_runs import FollowerSchedule, log_followers, settle_run
from delegate.states import FINAL_TASK_STATES, Reason, TaskState
from delegate.store.attempts import last_message_seen
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.graph import (
    BlockedTask,
    Dependency,
    blocked_dependents,
    cancel_blocked,
    decisive_dependencies,
    find_unsettled_blocked,
    lock_blocked,
    release_blocked,
    set_blockers,
    waiting_for_issues,
)
from delegate.store.messages import messages_after
from delegate.store.tasks import end_task

log = logging.getLogger(__name__)
DEPENDENTS_PER_STATEMENT = 100  # in one statement; each waits for up to a hundred others
# Tasks and schedules that one transaction settles because of an end; the last batch may exceed it. SQLite writers wait
# for the commit, and so do followers of a feed, which give up on events that come too late (ID_GAP_TIMEOUT in
# report/follow.py).
CASCADE_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A task that changed, and the dependents that changed with it."""

    task: Task
    others: tuple[Task, ...] = ()
    followers: tuple[FollowerSchedule, ...] = ()  # schedules that waited for a run of these tasks


def end(connection: Connection, ended: Task, *, was: TaskState, attempt: Attempt | None, now: datetime) -> Transition:
    """Write the end of a task; release or cancel its dependents.

    `attempt` is the attempt that ended, if a runner held the task. Dependents beyond the first CASCADE_MAX are left to
    `settle_blocked`.
    """
    followers = _write_end(connection, ended, was=was, attempt=attempt, now=now)
    others, further = _settle(connection, blocked_dependents(connection, [ended.id]), now)
    return Transition(task=ended, others=tuple(others), followers=(*followers, *further))


async def settle_blocked(database: Database, now: datetime) -> list[Task]:
    """Settle dependents that were too many for one transaction, in batches; returns the tasks that changed."""
    late = await database.read(lambda connection: find_unsettled_blocked(connection, limit=CASCADE_MAX))
    if not late:
        return []
    moved, followers = await database.write("settle", lambda connection: _settle(connection, late, now))
    for task in moved:
        _log_settled(task, after=None)
    log_followers(followers)
    return moved


def drop_blockers(connection: Connection, is_gone: Callable[[TaskId, Blocker], bool], now: datetime) -> list[Task]:
    """Remove issues for which tasks need no longer wait; returns the tasks that changed."""
    touched = [
        waiting
        for waiting, blockers in waiting_for_issues(connection)
        if any(is_gone(waiting.id, blocker) for blocker in blockers)
    ]
    for task in lock_blocked(connection, [waiting.id for waiting in touched]):
        set_blockers(connection, task.id, [blocker for blocker in task.blockers if not is_gone(task.id, blocker)])
    moved, followers = _settle(connection, touched, now)
    log_followers(followers)
    return moved


def log_dependents(transition: Transition) -> None:
    for task in transition.others:
        _log_settled(task, after=transition.task.id)
    log_followers(transition.followers)


def _log_settled(task: Task, *, after: TaskId | None) -> None:
    log.info(
        "dependent settled", extra={"task_id": task.id, "after": after, "state": task.state, "reason": task.reason}
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


def _write_end(
    connection: Connection, ended: Task, *, was: TaskState, attempt: Attempt | None, now: datetime
) -> list[FollowerSchedule]:
    if not end_task(connection, ended, was=was, finished_at=now):
        if attempt is not None:
            raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
        raise IllegalMove(task_id=ended.id, state=f"no longer {was}", verb="ended", advice="read its status again")
    append_events(connection, [*_unheard_events(connection, ended, attempt, now), finished_event(ended, attempt, now)])
    return settle_run(connection, ended, now) if ended.schedule_id is not None else []


def _unheard_events(connection: Connection, ended: Task, attempt: Attempt | None, now: datetime) -> list[NewEvent]:
    """Warn about messages that the agent did not get: they were accepted while its last attempt ended."""
    if ended.agent == AgentName.SHELL or ended.fence == 0:
        return []  # it takes none, or had none; skips a query for most tasks
    seen = last_message_seen(connection, ended.id) if attempt is None else attempt.messages_seen
    texts = [f"a message arrived too late: {excerpt(one.text)}" for one in messages_after(connection, ended.id, seen)]
    attempt_id = None if attempt is None else attempt.id
    return [
        NewEvent(task_id=ended.id, attempt_id=attempt_id, kind=EventKind.WARNING, at=now, data={"text": text})
        for text in texts
    ]


def _settle(
    connection: Connection, waiting: Iterable[BlockedTask], now: datetime
) -> tuple[list[Task], list[FollowerSchedule]]:
    """Settle these tasks and the dependents of those that are cancelled; returns the tasks that changed.

    Works by depth: dependents are always deeper, so rows are locked in one order.
    """
    moved: list[Task] = []
    followers: list[FollowerSchedule] = []
    left = CASCADE_MAX
    pending = sorted(waiting)[:left]
    while pending:
        some = [one.id for one in pending[:DEPENDENTS_PER_STATEMENT] if one.depth == pending[0].depth]
        after, stopped = _settle_some(connection, some, now)
        moved += after
        followers += stopped
        left = max(0, left - len(some) - len(stopped))
        pending = pending[len(some) :][:left]
        cancelled = [task.id for task in after if task.state is TaskState.CANCELLED]
        if cancelled and len(pending) < left:
            pending = sorted({*pending, *blocked_dependents(connection, cancelled)})[:left]
    return moved, followers


def _settle_some(
    connection: Connection, waiting: Sequence[TaskId], now: datetime
) -> tuple[list[Task], list[FollowerSchedule]]:
    # Lock before reading: the holder of a task's row sees every end that was written while it waited for the lock.
    blocked = lock_blocked(connection, waiting)
    dependencies = decisive_dependencies(connection, [task.id for task in blocked])
    after = [settle_dependent(task, dependencies[task.id], now) for task in blocked]
    _release(connection, [task for task in after if task.state is TaskState.QUEUED], now)
    stopped = _cancel(connection, [task for task in after if task.state is TaskState.CANCELLED], now)
    return [task for task in after if task.state is not TaskState.BLOCKED], stopped


def _release(connection: Connection, ready: Sequence[Task], now: datetime) -> None:
    if ready:
        _check_all_blocked(release_blocked(connection, [task.id for task in ready], now), ready)
        append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.READY, at=now, data={}) for task in ready])


def _cancel(connection: Connection, cancelled: Sequence[Task], now: datetime) -> list[FollowerSchedule]:
    if cancelled:
        _check_all_blocked(cancel_blocked(connection, cancelled), cancelled)
        append_events(connection, [finished_event(task, None, now) for task in cancelled])
    runs = [task for task in cancelled if task.schedule_id is not None]
    return [follower for task in runs for follower in settle_run(connection, task, now)]


def _check_all_blocked(written: int, tasks: Sequence[Task]) -> None:
    if written != len(tasks):
        state = f"no longer {TaskState.BLOCKED}, or one of {len(tasks) - 1} others is not"
        raise IllegalMove(task_id=tasks[0].id, state=state, verb="settled", advice="read its status again")


ENDED_AS = {TaskState.FAILED: "failed", TaskState.CANCELLED: "was cancelled"}


def first_failed_dependency(task: Task, dependencies: Sequence[Dependency]) -> Dependency | None:
    """Return the first dependency that did not complete, if that prevents the task from running."""
    if task.on_dependency_failure is OnDependencyFailure.RUN:
        return None
    return next((one for one in dependencies if one.state in ENDED_AS), None)


def is_ready(dependencies: Sequence[Dependency]) -> bool:
    return all(one.state in FINAL_TASK_STATES for one in dependencies)


def settle_dependent(task: Task, dependencies: Sequence[Dependency], now: datetime) -> Task:
    """Return the task blocked, queued or cancelled, as its dependencies require."""
    bad = first_failed_dependency(task, dependencies)
    if bad is not None:
        message = f"its dependency {bad.id} {ENDED_AS[bad.state]}" + (f" ({bad.reason})" if bad.reason else "")
        return replace(
            task, state=TaskState.CANCELLED, reason=Reason.DEPENDENCY_FAILED, message=message, finished_at=now
        )
    is_released = is_ready(dependencies) and not task.blockers
    return replace(task, state=TaskState.QUEUED if is_released else TaskState.BLOCKED)
