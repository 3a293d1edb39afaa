"""The tools that create, show and change schedules and pipelines."""

from __future__ import annotations

from delegate.intake import schedules as intake
from delegate.intake.submit import prefix_fields
from delegate.model import ScheduleId
from delegate.relay import schedules
from delegate.relay.mcp.calls import ToolCall, ToolResult
from delegate.relay.mcp.hints import rewrite_view
from delegate.relay.mcp.tasks import task_parameters, truncate_prompt
from delegate.relay.schedules import detail_view, schedule_view
from delegate.relay.views import view_of
from delegate.schedule.model import Schedule
from delegate.wire import tools as wire
from delegate.wire.schedules import PipelineRequest, PipelineStep, ScheduleRequest, ScheduleView

TIMING_FIELDS = set(wire.ScheduleTask.model_fields) - set(wire.TaskParameters.model_fields)


async def schedule_task(call: ToolCall, wanted: wire.ScheduleTask) -> ToolResult:
    when = wanted.model_dump(include=TIMING_FIELDS, exclude_unset=True)
    body = ScheduleRequest.model_construct(**task_parameters(call, wanted), **when, request_key=call.request_key)
    created = await schedules.create(call.relay, body, call.caller.actor)
    return _to_result(created.schedule)


async def create_pipeline(call: ToolCall, wanted: wire.CreatePipeline) -> ToolResult:
    steps = [_step(call, number, step) for number, step in enumerate(wanted.steps)]
    body = PipelineRequest(steps=steps, request_key=call.request_key)
    created = await schedules.create_pipeline(call.relay, body, call.caller.actor)
    answer = wire.CreatePipelineResult(
        pipeline_id=created.steps[0].id, steps=[to_schedule_result(schedule_view(step)) for step in created.steps]
    )
    return ToolResult(answer=answer, text="\n".join([headline(schedule_view(step)) for step in created.steps]))


def _step(call: ToolCall, number: int, step: wire.Step) -> PipelineStep:
    with prefix_fields(f"steps.{number}"):
        return PipelineStep.model_construct(**task_parameters(call, step), delay=step.delay)


async def list_schedules(call: ToolCall, asked: wire.ListSchedules) -> ToolResult:
    page = await schedules.schedule_page(call.relay, asked.status, asked.limit, asked.cursor)
    views = [rewrite_view(view) for view in page.schedules]
    text = "\n".join(headline(view) for view in views) or "no schedules found"
    answer = wire.ListSchedulesResult(schedules=[to_schedule_brief(view) for view in views], next=page.next)
    return ToolResult(answer=answer, text=text)


async def get_schedule(call: ToolCall, asked: wire.GetSchedule) -> ToolResult:
    schedule_id = ScheduleId(asked.schedule_id)
    detail = detail_view(await intake.read_full_schedule(call.relay.database, schedule_id, asked.history_limit))
    schedule = rewrite_view(detail.schedule)
    history = [rewrite_view(run) for run in detail.history] if asked.include_history else None
    runs = [f"{run.occurrence.isoformat()} {run.outcome} {run.task_id or ''}".rstrip() for run in history or []]
    answer = wire.GetScheduleResult(schedule=schedule, history=history)
    return ToolResult(answer=answer, text="\n".join([headline(schedule), *runs]))


async def pause_schedule(call: ToolCall, asked: wire.PauseSchedule) -> ToolResult:
    relay, schedule_id, by = call.relay, ScheduleId(asked.schedule_id), call.caller.actor
    return _to_result(await intake.pause(relay.database, schedule_id, asked.reason, relay.now(), by))


async def resume_schedule(call: ToolCall, asked: wire.ResumeSchedule) -> ToolResult:
    schedule_id, by = ScheduleId(asked.schedule_id), call.caller.actor
    return _to_result(await schedules.resume(call.relay, schedule_id, asked.reason, by))


async def cancel_schedule(call: ToolCall, asked: wire.CancelSchedule) -> ToolResult:
    schedule_id = ScheduleId(asked.schedule_id)
    done = await schedules.cancel(
        call.relay, schedule_id, asked.reason, with_tasks=asked.cancel_tasks, by=call.caller.actor
    )
    tasks: list[str] = [task.id for task in done.tasks]
    answer = wire.CancelScheduleResult(schedule_id=schedule_id, status=done.schedule.state, cancelled_tasks=tasks)
    return ToolResult(
        answer=answer, text=", ".join([f"{schedule_id} is {answer.status}", *(f"{task} too" for task in tasks)])
    )


def _to_result(schedule: Schedule) -> ToolResult:
    view = rewrite_view(schedule_view(schedule))
    return ToolResult(answer=to_schedule_result(view), text=headline(view))


def to_schedule_result(view: ScheduleView) -> wire.ScheduleResult:
    return view_of(wire.ScheduleResult, view)


def to_schedule_brief(view: ScheduleView) -> wire.ScheduleBrief:
    return view_of(wire.ScheduleBrief, view, prompt=truncate_prompt(view.prompt))


def headline(view: ScheduleView) -> str:
    next_run = None if view.next_run_at is None else f"next run at {view.next_run_at.isoformat()}"
    detail = (next_run or view.why or view.message or "").removeprefix(
        f"{view.status}: "
    )  # the message may begin with it
    last = "" if view.last_outcome is None else f" (last run: {view.last_outcome})"
    summary = f"{view.schedule_id} is {view.status}{last}"
    return f"{summary}: {detail}" if detail else summary
