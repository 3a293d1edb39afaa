"""Schedules and pipelines, as other agents make, see and steer them."""

from __future__ import annotations

from delegate.intake.naming import naming
from delegate.model import ScheduleId
from delegate.relay import scheduling
from delegate.relay.mcp.calls import Call, Told
from delegate.relay.mcp.tasks import beginning, wishes_of
from delegate.relay.mcp.words import spoken
from delegate.relay.schedule_views import schedule_view
from delegate.schedule.model import Schedule
from delegate.wire import tools as wire
from delegate.wire.schedules import PipelineRequest, PipelineStep, ScheduleRequest, ScheduleView

WHEN = set(wire.ScheduleTask.model_fields) - set(wire.TaskWishes.model_fields)


async def schedule_task(call: Call, wanted: wire.ScheduleTask) -> Told:
    when = wanted.model_dump(include=WHEN, exclude_unset=True)
    body = {**wishes_of(call, wanted), **when, "request_key": call.request_key}
    created = await scheduling.create(call.relay, ScheduleRequest.model_validate(body))
    return _told(created.schedule)


async def create_pipeline(call: Call, wanted: wire.CreatePipeline) -> Told:
    steps = [_step(call, number, step) for number, step in enumerate(wanted.steps)]
    created = await scheduling.create_pipeline(call.relay, PipelineRequest(steps=steps, request_key=call.request_key))
    answer = wire.PipelineAnswer(
        pipeline_id=created.steps[0].id, steps=[scheduled(schedule_view(step)) for step in created.steps]
    )
    return Told(answer=answer, text="\n".join([headline(schedule_view(step)) for step in created.steps]))


def _step(call: Call, number: int, step: wire.Step) -> PipelineStep:
    with naming(f"steps.{number}"):
        return PipelineStep.model_validate({**wishes_of(call, step), "delay": step.delay})


async def list_schedules(call: Call, asked: wire.ListSchedules) -> Told:
    page = await scheduling.page(call.relay, asked.status, asked.limit, asked.cursor)
    views = [spoken(view) for view in page.schedules]
    text = "\n".join(headline(view) for view in views) or "there are no such schedules"
    answer = wire.SchedulesAnswer(schedules=[brief(view) for view in views], next=page.next)
    return Told(answer=answer, text=text)


async def get_schedule(call: Call, asked: wire.GetSchedule) -> Told:
    detail = await scheduling.detail(call.relay, ScheduleId(asked.schedule_id), asked.history_limit)
    schedule = spoken(detail.schedule)
    history = [spoken(run) for run in detail.history] if asked.include_history else None
    runs = [f"{run.occurrence.isoformat()} {run.outcome} {run.task_id or ''}".rstrip() for run in history or []]
    answer = wire.ScheduleAnswer(schedule=schedule, history=history)
    return Told(answer=answer, text="\n".join([headline(schedule), *runs]))


async def pause_schedule(call: Call, asked: wire.PauseSchedule) -> Told:
    return _told(await scheduling.pause(call.relay, ScheduleId(asked.schedule_id), asked.reason))


async def resume_schedule(call: Call, asked: wire.ResumeSchedule) -> Told:
    return _told(await scheduling.resume(call.relay, ScheduleId(asked.schedule_id), asked.reason))


async def cancel_schedule(call: Call, asked: wire.CancelSchedule) -> Told:
    schedule_id = ScheduleId(asked.schedule_id)
    done = await scheduling.cancel(call.relay, schedule_id, asked.reason, with_tasks=asked.cancel_tasks)
    tasks: list[str] = [task.id for task in done.tasks]
    answer = wire.ScheduleCancelled(schedule_id=schedule_id, status=done.schedule.state, cancelled_tasks=tasks)
    return Told(
        answer=answer, text=", ".join([f"{schedule_id} is {answer.status}", *(f"{task} too" for task in tasks)])
    )


def _told(schedule: Schedule) -> Told:
    view = spoken(schedule_view(schedule))
    return Told(answer=scheduled(view), text=headline(view))


def scheduled(view: ScheduleView) -> wire.Scheduled:
    return wire.Scheduled(
        schedule_id=view.schedule_id,
        status=view.status,
        next_run_at=view.next_run_at,
        next_runs=view.next_runs,
        why=view.why,
        message=view.message,
    )


def brief(view: ScheduleView) -> wire.ScheduleBrief:
    return wire.ScheduleBrief(
        schedule_id=view.schedule_id,
        status=view.status,
        schedule_type=view.schedule_type,
        cron_expression=view.cron_expression,
        scheduled_at=view.scheduled_at,
        timezone=view.timezone,
        prompt=beginning(view.prompt),
        pipeline=view.pipeline,
        runs=view.runs,
        next_run_at=view.next_run_at,
        last_task_id=view.last_task_id,
        last_outcome=view.last_outcome,
        message=view.message,
        why=view.why,
    )


def headline(view: ScheduleView) -> str:
    moment = None if view.next_run_at is None else f"next run at {view.next_run_at.isoformat()}"
    said = (moment or view.why or view.message or "").removeprefix(f"{view.status}: ")  # the message may begin with it
    last = "" if view.last_outcome is None else f" (last run: {view.last_outcome})"
    stands = f"{view.schedule_id} is {view.status}{last}"
    return f"{stands}: {said}" if said else stands
