"""Operations on schedules and pipelines, shared by the HTTP API and MCP."""

from __future__ import annotations

from dataclasses import dataclass

from delegate.errors import IllegalMove
from delegate.intake import schedules as intake
from delegate.intake.from_wire import parse_pipeline, parse_schedule
from delegate.model import ScheduleId, Task
from delegate.queue import finish
from delegate.relay.notify import CLOCK_KEY, notify
from delegate.relay.requests import Relay
from delegate.relay.schedule_views import detail_view, schedule_view
from delegate.relay.views import next_cursor, parse_page_cursor
from delegate.schedule.model import Schedule, ScheduleState
from delegate.wire.schedules import PipelineRequest, ScheduleDetail, SchedulePage, ScheduleRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    schedule: Schedule
    tasks: tuple[Task, ...]  # those that were cancelled with it


async def create(relay: Relay, wanted: ScheduleRequest) -> intake.CreatedSchedule:
    created = await intake.create(relay.database, parse_schedule(wanted), relay.settings, relay.now())
    relay.hub.notify_key(CLOCK_KEY)
    return created


async def create_pipeline(relay: Relay, wanted: PipelineRequest) -> intake.CreatedPipeline:
    created = await intake.create_pipeline(relay.database, parse_pipeline(wanted), relay.settings, relay.now())
    relay.hub.notify_key(CLOCK_KEY)
    return created


async def page(relay: Relay, status: ScheduleState | None, limit: int, cursor: str | None) -> SchedulePage:
    rows = await intake.page(relay.database, state=status, before=parse_page_cursor(cursor), limit=limit)
    return SchedulePage(schedules=[schedule_view(schedule) for _, schedule in rows], next=next_cursor("s", rows, limit))


async def detail(relay: Relay, schedule_id: ScheduleId, history_limit: int) -> ScheduleDetail:
    return detail_view(await intake.read_full_schedule(relay.database, schedule_id, history_limit))


async def pause(relay: Relay, schedule_id: ScheduleId, reason: str) -> Schedule:
    return await intake.pause(relay.database, schedule_id, reason, relay.now())


async def resume(relay: Relay, schedule_id: ScheduleId, reason: str) -> Schedule:
    resumed = await intake.resume(relay.database, schedule_id, reason, relay.now())
    relay.hub.notify_key(CLOCK_KEY)
    return resumed


async def cancel(relay: Relay, schedule_id: ScheduleId, reason: str, *, with_tasks: bool) -> Cancellation:
    """Cancel the schedule and, if requested, its open task. A repeated call completes an interrupted one."""
    now = relay.now()
    cancelled = await intake.cancel(relay.database, schedule_id, reason, with_tasks=with_tasks, now=now)
    if cancelled.open_task is None:
        return Cancellation(schedule=cancelled.schedule, tasks=())
    try:
        transition = await finish.cancel(relay.database, cancelled.open_task, reason, now)
    except IllegalMove:  # the task has ended in the meantime
        return Cancellation(schedule=cancelled.schedule, tasks=())
    notify(relay.hub, transition)
    return Cancellation(schedule=cancelled.schedule, tasks=(transition.task,))
