"""The requests and responses for schedules and pipelines."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from delegate.schedule.model import PIPELINE_STEPS, MissedRunPolicy, RunOutcome, ScheduleState
from delegate.wire.basics import ZONE, IdText, Name, Text, Timestamp, Wire
from delegate.wire.tasks import SubmitRequest, TaskView

YEAR_MS = 366 * 86_400_000
Cron = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Zone = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=ZONE)]
DelayMs = Annotated[StrictInt, Field(ge=0, le=YEAR_MS)]
RunCount = Annotated[StrictInt, Field(ge=1, le=1_000_000_000)]


class ScheduleRequest(SubmitRequest):
    """A task, and when to run it."""

    schedule_type: Literal["cron", "one_time"]
    cron_expression: Cron | None = None  # five fields
    scheduled_at: Timestamp | None = None
    timezone: Zone = "UTC"
    missed_run_policy: MissedRunPolicy = MissedRunPolicy.SKIP
    max_runs: RunCount | None = None
    expires_at: Timestamp | None = None
    after_schedule: IdText | None = None


class PipelineStep(SubmitRequest):
    delay: DelayMs = 0  # milliseconds after the end of the previous step


class PipelineRequest(Wire):
    steps: Annotated[list[PipelineStep], Field(min_length=PIPELINE_STEPS[0], max_length=PIPELINE_STEPS[1])]
    request_key: Name | None = None


class ScheduleReason(Wire):
    reason: Text = ""


class CancelScheduleRequest(Wire):
    reason: Text = ""
    cancel_tasks: StrictBool = False  # also cancel its tasks that have not ended


class RunView(Wire):
    """One due run and its result."""

    occurrence: datetime
    at: datetime
    outcome: str
    missed: int = 0
    task_id: str | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None


class ScheduleView(Wire):
    schedule_id: str
    status: ScheduleState
    schedule_type: Literal["cron", "one_time"]
    cron_expression: str | None = None
    scheduled_at: datetime | None = None
    timezone: str
    missed_run_policy: MissedRunPolicy
    max_runs: int | None = None
    expires_at: datetime | None = None
    after_schedule: str | None = None
    delay: int = 0
    pipeline: str | None = None
    prompt: str
    task: dict[str, object]  # the request that its tasks are created from
    runs: int
    next_run_at: datetime | None = None
    next_runs: list[datetime] = []  # up to three
    last_run_at: datetime | None = None
    last_task_id: str | None = None
    last_outcome: RunOutcome | None = None  # of the latest due run
    created_at: datetime
    ended_at: datetime | None = None
    message: str | None = None
    why: str | None = None  # why an active schedule has no next run yet


class ScheduleDetail(Wire):
    schedule: ScheduleView
    history: list[RunView]


class SchedulePage(Wire):
    schedules: list[ScheduleView]
    next: str | None = None


class PipelineView(Wire):
    pipeline_id: str
    steps: list[ScheduleView]


class CancelledSchedule(Wire):
    schedule: ScheduleView
    tasks: list[TaskView]  # those that were cancelled with it
