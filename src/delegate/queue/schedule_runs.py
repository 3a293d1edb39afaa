"""Ends the run of a schedule with its task, and releases or fails the schedules that follow it."""

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
    """A schedule that changed because of the one that it follows."""

    schedule: Schedule
    after: ScheduleId


def settle_run(connection: Connection, task: Task, now: datetime) -> list[FollowerSchedule]:
    """Record the outcome of a schedule's task. Release the schedules that follow or, unless it completed, fail them.
    A task that was retried by hand is not a run of the schedule."""
    schedule_id = end_run(connection, task, OUTCOMES[task.state], now)
    if schedule_id is None:
        return []
    if task.state is TaskState.COMPLETED:
        return release_followers(connection, schedule_id, now)
    verb = "failed" if task.state is TaskState.FAILED else "was cancelled"
    return fail_followers(connection, schedule_id, f"task {task.id} of that schedule {verb}", now)


def release_followers(connection: Connection, schedule_id: ScheduleId, now: datetime) -> list[FollowerSchedule]:
    """Set the time of the schedules that waited for a run, which has completed."""
    released: list[FollowerSchedule] = []
    for waiting in lock_waiting_for(connection, schedule_id):
        if waiting.state is ScheduleState.ACTIVE:  # a paused one gets its time when it is resumed
            due = due_after(waiting.timing.at, waiting.timing.delay, ended_at=now)
            timed = replace(waiting, next_run_at=due, reckoned_at=now)
            released += _move_follower(connection, timed, after=schedule_id, was=waiting.state)
    return released


def due_after(at: datetime | None, delay: timedelta, *, ended_at: datetime) -> datetime:
    """Pure: return when a schedule is due that follows a run which ended at `ended_at`."""
    return ended_at + delay if at is None else max(at, ended_at + delay)


def fail_followers(
    connection: Connection, schedule_id: ScheduleId, why: str, now: datetime, *, by_clock: bool = False
) -> list[FollowerSchedule]:
    """Fail the schedules that wait for this one, and those that wait for them; they open again if this one does.

    One transaction is enough: there are at most FOLLOWERS_MAX of them.
    """
    stopped: list[FollowerSchedule] = []
    pending = [(schedule_id, why)]
    while pending:
        before, why = pending.pop()
        for waiting in lock_waiting_for(connection, before):
            message = f"it follows {before}, and {why}"
            before_end = waiting.state if by_clock else None
            failed = replace(waiting, state=ScheduleState.FAILED, ended_at=now, message=message, reopens_as=before_end)
            stopped += _move_follower(connection, failed, after=before, was=waiting.state)
            pending.append((waiting.id, "that schedule failed"))
    return stopped


def _move_follower(
    connection: Connection, moved: Schedule, *, after: ScheduleId, was: ScheduleState
) -> list[FollowerSchedule]:
    return [FollowerSchedule(schedule=moved, after=after)] if move_schedule(connection, moved, was=was) else []


def log_followers(followers: Iterable[FollowerSchedule]) -> None:
    """Call after the commit: until then the change may be rolled back or retried."""
    for one in followers:
        fields = {"schedule_id": one.schedule.id, "after": one.after, "state": one.schedule.state}
        log.info("follower settled", extra=fields)
