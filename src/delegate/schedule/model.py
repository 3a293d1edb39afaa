"""The model of schedules, which create tasks, and of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from delegate.model import PersonId, ScheduleId, TaskId

MISSED_AFTER = timedelta(minutes=5)  # a run later than this counts as missed
PIPELINE_STEPS = (2, 20)


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"  # it has reached its number of runs
    EXPIRED = "expired"
    FAILED = "failed"  # stopped by a missed run or by a failed earlier step
    CANCELLED = "cancelled"


FINAL_SCHEDULE_STATES = frozenset(
    {ScheduleState.COMPLETED, ScheduleState.EXPIRED, ScheduleState.FAILED, ScheduleState.CANCELLED}
)


class MissedRunPolicy(StrEnum):
    SKIP = "skip"
    CATCHUP = "catchup"
    FAIL = "fail"


class RunOutcome(StrEnum):
    """The result of one due run."""

    STARTED = "started"  # its task has not ended yet
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MISSED = "missed"  # it could not be started in time
    OVERLAPPED = "overlapped"  # the previous run had not ended
    REFUSED = "refused"  # its task could not be created


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule runs: by `cron`, once `at` a time, or once after another schedule."""

    cron: str | None = None
    at: datetime | None = None
    timezone: str = "UTC"
    missed_run_policy: MissedRunPolicy = MissedRunPolicy.SKIP
    max_runs: int | None = None
    expires_at: datetime | None = None
    after: ScheduleId | None = None
    delay: timedelta = timedelta()  # counted from the end of the previous run


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    id: ScheduleId
    state: ScheduleState
    timing: Timing
    request: dict[str, object]  # the template that its tasks are created from, with its version
    created_at: datetime
    reckoned_at: datetime
    pipeline: ScheduleId | None = None
    runs: int = 0
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_task_id: TaskId | None = None
    last_outcome: RunOutcome | None = None  # of the latest due run
    ended_at: datetime | None = None
    message: str | None = None
    reopens_as: ScheduleState | None = None  # its state before the clock ended it, by a missed run or its expiry
    created_by: PersonId | None = None  # the person its tasks work for; None: the relay's owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    schedule_id: ScheduleId
    occurrence: datetime
    at: datetime
    outcome: RunOutcome
    missed: int = 0  # more due times that were skipped with this one
    task_id: TaskId | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None
