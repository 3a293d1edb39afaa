"""Schedules for the HTTP API and MCP: the operations that also wake the clock or cancel tasks, and the wire format."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from delegate.errors import IllegalMove
from delegate.intake import schedules as intake
from delegate.intake.from_wire import parse_pipeline, parse_schedule, task_of_template
from delegate.intake.schedule_decisions import upcoming_times
from delegate.model import Actor, ScheduleId, Task
from delegate.queue import finish
from delegate.relay.locations import check_location, check_locations
from delegate.relay.notify import CLOCK_KEY, notify
from delegate.relay.requests import Relay
from delegate.relay.views import next_cursor, parse_page_cursor, view_of
from delegate.schedule.model import Schedule, ScheduleRun, ScheduleState
from delegate.store.schedules import page_of_schedules
from delegate.wire.schedules import (
    PipelineRequest,
    RunView,
    ScheduleDetail,
    SchedulePage,
    ScheduleRequest,
    ScheduleView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    schedule: Schedule
    tasks: tuple[Task, ...]  # those that were cancelled with it


async def create(relay: Relay, wanted: ScheduleRequest, by: Actor) -> intake.CreatedSchedule:
    await check_location(relay, wanted)
    created = await intake.create(relay.database, parse_schedule(wanted), relay.settings, relay.now(), by)
    relay.hub.notify_key(CLOCK_KEY)
    return created


async def create_pipeline(relay: Relay, wanted: PipelineRequest, by: Actor) -> intake.CreatedPipeline:
    await check_locations(relay, wanted.steps[:1], "steps")
    created = await intake.create_pipeline(relay.database, parse_pipeline(wanted), relay.settings, relay.now(), by)
    relay.hub.notify_key(CLOCK_KEY)
    return created


async def resume(relay: Relay, schedule_id: ScheduleId, reason: str, by: Actor) -> Schedule:
    resumed = await intake.resume(relay.database, schedule_id, reason, relay.now(), by)
    relay.hub.notify_key(CLOCK_KEY)
    return resumed


async def cancel(relay: Relay, schedule_id: ScheduleId, reason: str, *, with_tasks: bool, by: Actor) -> Cancellation:
    """Cancel the schedule and, if requested, its open task. A repeated call completes an interrupted one."""
    now = relay.now()
    cancelled = await intake.cancel(relay.database, schedule_id, reason, with_tasks=with_tasks, now=now, by=by)
    if cancelled.open_task is None:
        return Cancellation(schedule=cancelled.schedule, tasks=())
    try:
        transition = await finish.cancel(relay.database, cancelled.open_task, reason, now, by)
    except IllegalMove:  # the task has ended in the meantime
        return Cancellation(schedule=cancelled.schedule, tasks=())
    notify(relay.hub, transition)
    return Cancellation(schedule=cancelled.schedule, tasks=(transition.task,))


async def schedule_page(relay: Relay, status: ScheduleState | None, limit: int, cursor: str | None) -> SchedulePage:
    """Return a page, newest first; `cursor` is `next` of the previous page."""
    before = parse_page_cursor(cursor)
    rows = await relay.database.read(partial(page_of_schedules, state=status, before=before, limit=limit))
    return SchedulePage(schedules=[schedule_view(schedule) for _, schedule in rows], next=next_cursor("s", rows, limit))


def schedule_view(schedule: Schedule) -> ScheduleView:
    timing, times, task = schedule.timing, upcoming_times(schedule), task_of_template(schedule.request)
    return view_of(
        ScheduleView,
        schedule,
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
        prompt=str(task.get("prompt", "")),  # missing only if a newer relay stored it
        task=task,
        next_run_at=next(iter(times), None),
        next_runs=times,
        why=why(schedule),
    )


def why(schedule: Schedule) -> str | None:
    """Return why an active schedule has no next run yet."""
    if schedule.state is not ScheduleState.ACTIVE or schedule.next_run_at is not None:
        return None
    return f"waits for a run of {schedule.timing.after} to succeed"


def run_view(run: ScheduleRun) -> RunView:
    return view_of(RunView, run)


def detail_view(full: intake.FullSchedule) -> ScheduleDetail:
    return ScheduleDetail(schedule=schedule_view(full.schedule), history=[run_view(run) for run in full.history])
