"""The run of a schedule ends with its task, and decides about the schedules that come after it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.model import ScheduleId, Task
from delegate.schedule.model import RunOutcome, Schedule, ScheduleState
from delegate.states import TaskState
from delegate.store.database import Connection
from delegate.store.schedules import end_run, lock_waiting_for, move_schedule

log = logging.getLogger(__name__)
OUTCOMES = {
    TaskState.COMPLETED: RunOutcome.COMPLETED,
    TaskState.FAILED: RunOutcome.FAILED,
    TaskState.CANCELLED: RunOutcome.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSchedule:
    """A schedule that moved because of the one that it comes after."""

    schedule: Schedule
    after: ScheduleId


def settle_run(connection: Connection, task: Task, now: datetime) -> list[FollowerSchedule]:
    """A task that a schedule has made has ended: its run gets the outcome, and schedules that come after it are
    released or, if it did not end well, stopped. A task that somebody retried by hand is no run any more."""
    schedule_id = end_run(connection, task, OUTCOMES[task.state], now)
    if schedule_id is None:
        return []
    if task.state is TaskState.COMPLETED:
        return release_followers(connection, schedule_id, now)
    return fail_followers(connection, schedule_id, f"its task {task.id} has ended as {task.state}", now)


def release_followers(connection: Connection, schedule_id: ScheduleId, now: datetime) -> list[FollowerSchedule]:
    """The run of a schedule has ended well: those that waited for it have a time from now on."""
    released: list[FollowerSchedule] = []
    for waiting in lock_waiting_for(connection, schedule_id):
        if waiting.state is ScheduleState.ACTIVE:  # who resumes a paused one sees then that its turn has come
            due = due_after(waiting.timing.at, waiting.timing.delay, ended_at=now)
            timed = replace(waiting, next_run_at=due, reckoned_at=now)
            released += _move_follower(connection, timed, after=schedule_id, was=waiting.state)
    return released


def due_after(at: datetime | None, delay: timedelta, *, ended_at: datetime) -> datetime:
    """Pure: when one is due that comes after a run that ended then."""
    return ended_at + delay if at is None else max(at, ended_at + delay)


def fail_followers(connection: Connection, schedule_id: ScheduleId, why: str, now: datetime) -> list[FollowerSchedule]:
    """A schedule will have no good run: those that waited for it never run, and so on down the chain.

    All in one transaction: there are at most FOLLOWERS_MAX of them.
    """
    stopped: list[FollowerSchedule] = []
    pending = [(schedule_id, why)]
    while pending:
        before, why = pending.pop()
        for waiting in lock_waiting_for(connection, before):
            message = f"it comes after {before}, and {why}"
            failed = replace(waiting, state=ScheduleState.FAILED, ended_at=now, message=message)
            stopped += _move_follower(connection, failed, after=before, was=waiting.state)
            pending.append((waiting.id, "that one has failed"))
    return stopped


def _move_follower(
    connection: Connection, moved: Schedule, *, after: ScheduleId, was: ScheduleState
) -> list[FollowerSchedule]:
    return [FollowerSchedule(schedule=moved, after=after)] if move_schedule(connection, moved, was=was) else []


def log_followers(followers: Iterable[FollowerSchedule]) -> None:
    """For after the commit: until then a move may be undone, or done again."""
    for one in followers:
        fields = {"schedule_id": one.schedule.id, "after": one.after, "state": one.schedule.state}
        log.info("follower settled", extra=fields)
