"""Converts schedules to their wire format."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from delegate.intake.deciding import upcoming_times
from delegate.intake.from_wire import task_of_template
from delegate.intake.schedules import FullSchedule
from delegate.schedule.model import Schedule, ScheduleRun, ScheduleState
from delegate.wire.schedules import RunView, ScheduleDetail, ScheduleView


def schedule_view(schedule: Schedule) -> ScheduleView:
    timing, times, task = schedule.timing, upcoming_times(schedule), task_of_template(schedule.request)
    return ScheduleView(
        schedule_id=schedule.id,
        status=schedule.state,
        schedule_type="one_time" if timing.cron is None else "cron",
        cron_expression=timing.cron,
        scheduled_at=timing.at,
        timezone=timing.timezone,
        missed_run_policy=timing.missed_run_policy,
        max_runs=timing.max_runs,
        expires_at=timing.expires_at,
        after_schedule=timing.after,
        delay=timing.delay // timedelta(milliseconds=1),
        pipeline=schedule.pipeline,
        prompt=str(task.get("prompt", "")),  # missing only if a newer relay stored it
        task=task,
        runs=schedule.runs,
        next_run_at=next(iter(times), None),
        next_runs=times,
        last_run_at=schedule.last_run_at,
        last_task_id=schedule.last_task_id,
        last_outcome=schedule.last_outcome,
        created_at=schedule.created_at,
        ended_at=schedule.ended_at,
        message=schedule.message,
        why=why(schedule),
    )


def why(schedule: Schedule) -> str | None:
    """Return why an active schedule has no next run yet."""
    if schedule.state is not ScheduleState.ACTIVE or schedule.next_run_at is not None:
        return None
    return f"waits for a run of {schedule.timing.after} to succeed"


def run_view(run: ScheduleRun) -> RunView:
    shown = asdict(run)
    del shown["schedule_id"]
    return RunView(**shown)


def detail_view(full: FullSchedule) -> ScheduleDetail:
    return ScheduleDetail(schedule=schedule_view(full.schedule), history=[run_view(run) for run in full.history])
