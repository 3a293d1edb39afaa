"""Schedules: rules that make tasks, and what came of each time that was due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from delegate.model import ScheduleId, TaskId

MISSED_AFTER = timedelta(minutes=5)  # a run that is late by more than this was missed
PIPELINE_STEPS = (2, 20)


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"  # it has run as often as it should
    EXPIRED = "expired"
    FAILED = "failed"  # a missed run, or a failed step before it, has stopped it
    CANCELLED = "cancelled"


FINAL_SCHEDULE_STATES = frozenset(
    {ScheduleState.COMPLETED, ScheduleState.EXPIRED, ScheduleState.FAILED, ScheduleState.CANCELLED}
)


class MissedRunPolicy(StrEnum):
    SKIP = "skip"
    CATCHUP = "catchup"
    FAIL = "fail"


class RunOutcome(StrEnum):
    """What came of one time that was due."""

    STARTED = "started"  # its task has not ended yet
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MISSED = "missed"  # nobody was there to start it in time
    OVERLAPPED = "overlapped"  # the run before had not ended
    REFUSED = "refused"  # no task could be made of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule runs: by `cron`, or once `at` a moment, or once after another schedule."""

    cron: str | None = None
    at: datetime | None = None
    timezone: str = "UTC"
    missed_run_policy: MissedRunPolicy = MissedRunPolicy.SKIP
    max_runs: int | None = None
    expires_at: datetime | None = None
    after: ScheduleId | None = None
    delay: timedelta = timedelta()  # counted from the end of the run it comes after


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    id: ScheduleId
    state: ScheduleState
    timing: Timing
    request: dict[str, object]  # what its tasks are made from, as it was asked for
    created_at: datetime
    reckoned_at: datetime
    pipeline: ScheduleId | None = None
    runs: int = 0
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_task_id: TaskId | None = None
    last_outcome: RunOutcome | None = None  # what came of the latest time that was due
    ended_at: datetime | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    schedule_id: ScheduleId
    occurrence: datetime
    at: datetime
    outcome: RunOutcome
    missed: int = 0  # further times that were passed over with this one
    task_id: TaskId | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None
