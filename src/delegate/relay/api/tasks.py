"""The endpoints for tasks: submit, show, cancel, retry, resume, answer, follow."""

from __future__ import annotations

import os
from dataclasses import asdict
from email.utils import format_datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from sse_starlette import EventSourceResponse

from delegate import __version__
from delegate.config.settings import public_settings
from delegate.intake import batch, retry
from delegate.intake import submit as intake
from delegate.intake.from_wire import request_of
from delegate.intake.messages import send_message
from delegate.model import Task
from delegate.queue import finish, questions
from delegate.queue.cascade import Transition
from delegate.queue.fleet_orders import count_runners
from delegate.queue.waiting import read_snapshot
from delegate.relay import feeds, views
from delegate.relay.auth import caller_of, require_access
from delegate.relay.children import limit_child
from delegate.relay.locations import check_location, check_locations
from delegate.relay.notify import notify
from delegate.relay.problems import PROBLEMS
from delegate.relay.purging import purge_task
from delegate.relay.requests import JsonBody, Relay, TaskInPath, check_query, relay_of
from delegate.relay.views import change_view, process_view, respond, task_view
from delegate.report import follow
from delegate.report.graph import graph_of
from delegate.store.database import is_postgres
from delegate.store.events import last_event_id
from delegate.wire.basics import TaskCursor, TaskStatus
from delegate.wire.fleet import RunnerCountsView
from delegate.wire.people import EmptyRequest
from delegate.wire.shared_models import ChangeView
from delegate.wire.tasks import (
    AnswerRequest,
    BatchRequest,
    BatchResponse,
    CancelRequest,
    GraphView,
    MessageRequest,
    OutputView,
    PromptView,
    PurgedTaskView,
    RelayView,
    ResumeRequest,
    RetryRequest,
    SubmitRequest,
    TaskDetail,
    TaskPage,
    TaskView,
)

SEEN: dict[int | str, dict[str, Any]] = {200: {"model": TaskView, "description": "The request key was used before"}}
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
router = APIRouter(prefix="/api", dependencies=[Depends(require_access), Depends(check_query)], responses=PROBLEMS)
submit_body = JsonBody(SubmitRequest)
SubmitBody = Annotated[SubmitRequest, Depends(submit_body)]
BatchBody = Annotated[BatchRequest, Depends(JsonBody(BatchRequest))]
CancelBody = Annotated[CancelRequest, Depends(JsonBody(CancelRequest))]
RetryBody = Annotated[RetryRequest, Depends(JsonBody(RetryRequest))]
ResumeBody = Annotated[ResumeRequest, Depends(JsonBody(ResumeRequest))]
EmptyBody = Annotated[EmptyRequest, Depends(JsonBody(EmptyRequest))]
MessageBody = Annotated[MessageRequest, Depends(JsonBody(MessageRequest))]


@router.post("/tasks", status_code=201, response_model=TaskView, responses=SEEN)
async def submit_task(request: Request, body: SubmitBody) -> Response:
    relay = relay_of(request)
    await check_location(relay, body)
    caller = caller_of(request)
    wanted, settings = limit_child(relay, request_of(body, caller.actor), caller.task)
    submitted = await intake.submit(relay.database, wanted, settings, relay.now())
    return _respond_submitted(relay, submitted)


async def submit_task_quickly(request: Request) -> Response:
    """The endpoint above without FastAPI's own work on each request; submits come in bursts."""
    await require_access(request)
    await check_query(request)
    return await submit_task(request, await submit_body(request))


@router.post("/tasks/batch", status_code=201, response_model=BatchResponse)
async def submit_tasks(request: Request, body: BatchBody) -> Response:
    """Submits all tasks or none, in one commit."""
    relay = relay_of(request)
    await check_locations(relay, body.tasks, "tasks")
    by = caller_of(request).actor
    entries = [batch.BatchItem(request=request_of(entry, by), name=entry.name) for entry in body.tasks]
    submitted = await batch.submit_batch(relay.database, entries, relay.settings, relay.now())
    for one in submitted:
        notify(relay.hub, Transition(task=one.task))
    return respond(BatchResponse(tasks=[task_view(one.task) for one in submitted]), 201)


@router.get("/tasks", response_model=TaskPage)
async def list_tasks(
    request: Request,
    status: Annotated[TaskStatus | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[TaskCursor | None, Query()] = None,
) -> Response:
    return respond(await views.task_page(relay_of(request), status, limit, cursor))


@router.get("/tasks/{task_id}", response_model=TaskDetail)
async def show_task(request: Request, task_id: TaskInPath) -> Response:
    return respond(await views.task_detail(relay_of(request), task_id))


@router.get("/tasks/{task_id}/graph", response_model=GraphView)
async def show_graph(request: Request, task_id: TaskInPath) -> Response:
    """Shows the tasks it depends on and the tasks that depend on it, direct and indirect."""
    relay = relay_of(request)
    graph = await graph_of(relay.database, task_id, relay.rules, relay.now())
    return respond(GraphView(tasks=[task_view(task, graph.snapshot) for task in graph.tasks], is_cut=graph.is_cut))


@router.post("/tasks/{task_id}/cancel", response_model=TaskView)
async def cancel_task(request: Request, task_id: TaskInPath, body: CancelBody) -> Response:
    relay = relay_of(request)
    transition = await finish.cancel(relay.database, task_id, body.reason, relay.now(), caller_of(request).actor)
    notify(relay.hub, transition)
    return await _respond_with_task(relay, transition.task)


@router.post("/tasks/{task_id}/retry", status_code=201, response_model=TaskView, responses=SEEN)
async def retry_task(request: Request, task_id: TaskInPath, body: RetryBody) -> Response:
    relay, by = relay_of(request), caller_of(request).actor
    return _respond_submitted(relay, await retry.retry(relay.database, task_id, body.request_key, relay.now(), by))


@router.post("/tasks/{task_id}/resume", status_code=201, response_model=TaskView, responses=SEEN)
async def resume_task(request: Request, task_id: TaskInPath, body: ResumeBody) -> Response:
    """Creates a task that continues where this one stopped, in the same workspace and agent session."""
    relay, by = relay_of(request), caller_of(request).actor
    resumed = await retry.resume(
        relay.database, task_id, body.context, request_key=body.request_key, now=relay.now(), by=by
    )
    return _respond_submitted(relay, resumed)


@router.post("/tasks/{task_id}/messages", status_code=202, response_model=TaskView)
async def message_task(request: Request, task_id: TaskInPath, body: MessageBody) -> Response:
    relay, by = relay_of(request), caller_of(request).actor
    task = await send_message(relay.database, task_id, body.text, request_key=body.request_key, now=relay.now(), by=by)
    relay.hub.notify_with_holder(task.id)
    return await _respond_with_task(relay, task, status=202)


@router.get("/tasks/{task_id}/output", response_model=OutputView)
async def show_output(
    request: Request, task_id: TaskInPath, tail: Annotated[int, Query(ge=1, le=10_000)] = 10_000
) -> Response:
    return respond(await feeds.last_lines(relay_of(request).database, task_id, tail))


@router.get("/tasks/{task_id}/output/raw", response_class=StreamingResponse, responses=BYTES)
async def show_raw_output(
    request: Request, task_id: TaskInPath, stream: Annotated[Literal["stdout", "stderr", "all"], Query()] = "all"
) -> Response:
    """Returns the exact bytes of the last attempt; where output was cut, a line says how many bytes are missing."""
    chunks = await feeds.raw_output(relay_of(request).database, task_id, stream)
    return StreamingResponse(chunks, media_type="application/octet-stream")


@router.get("/tasks/{task_id}/diff", response_model=ChangeView)
async def show_change(request: Request, task_id: TaskInPath) -> Response:
    """Returns the change against the base, from the last attempt that made one."""
    return respond(change_view(await follow.change_of(relay_of(request).database, task_id)))


@router.get("/tasks/{task_id}/prompt", response_model=PromptView)
async def show_prompt(request: Request, task_id: TaskInPath) -> Response:
    given = await follow.prompt_of(relay_of(request).database, task_id)
    return respond(PromptView(text=given.text, is_rendered=given.is_rendered))


@router.get("/tasks/{task_id}/stream", response_class=EventSourceResponse, responses=EVENTS)
async def follow_task(
    request: Request,
    task_id: TaskInPath,
    start: Annotated[Literal["beginning", "now"], Query(alias="from")] = "beginning",
) -> Response:
    relay = relay_of(request)
    cursor = feeds.parse_cursor(request.headers.get("last-event-id"))
    if cursor is None and start == "now":
        cursor = await follow.end_of_task_feed(relay.database, task_id)
    await follow.attempts_of(relay.database, task_id)  # an unknown task fails here, not in the stream
    return feeds.respond_with_feed(
        request, feeds.task_feed(relay, task_id, cursor or follow.Cursor(), feeds.stream_check(request))
    )


@router.get("/events", response_class=EventSourceResponse, responses=EVENTS)
async def follow_all(
    request: Request, start: Annotated[Literal["beginning", "now"], Query(alias="from")] = "beginning"
) -> Response:
    relay = relay_of(request)
    after = feeds.parse_event_id(request.headers.get("last-event-id"))
    if after is None:
        after = await relay.database.read(last_event_id) if start == "now" else 0
    return feeds.respond_with_feed(request, feeds.all_tasks_feed(relay, after, feeds.stream_check(request)))


@router.get("/relay", response_model=RelayView)
async def show_relay(request: Request) -> Response:
    relay = relay_of(request)
    now = relay.now()
    state = await follow.relay_state(relay.database, relay.machine, now)
    snapshot = await relay.database.read(partial(read_snapshot, tasks=(), rules=relay.rules, now=now))
    working = {attempt.slot_id: attempt.task_id for attempt in state.attempts}
    shown = respond(
        RelayView(
            version=__version__,
            pid=os.getpid(),
            database="postgresql" if is_postgres(relay.settings.database_url) else "sqlite",
            started_at=relay.started_at,
            daily_budget_usd=relay.settings.daily_budget_usd,
            spent_today_usd=state.spent_today_usd,
            tasks={name.value: count for name, count in state.counts.items()},
            settings=public_settings(relay.settings),
            runners=RunnerCountsView(**asdict(await count_runners(relay.database, relay.rules, now))),
            processes=[process_view(slot, snapshot, working.get(slot.id)) for slot in state.slots],
        )
    )
    # Only this response has a Date, for `delegate doctor` to compare clocks; the others are faster without it.
    shown.headers["Date"] = format_datetime(now, usegmt=True)
    return shown


def _respond_submitted(relay: Relay, submitted: intake.SubmittedTask) -> Response:
    notify(relay.hub, Transition(task=submitted.task))
    return respond(task_view(submitted.task), 201 if submitted.is_new else 200)


async def _respond_with_task(relay: Relay, task: Task, status: int = 200) -> Response:
    snapshot = await relay.database.read(partial(read_snapshot, tasks=[task], rules=relay.rules, now=relay.now()))
    return respond(task_view(task, snapshot), status)


@router.post("/tasks/{task_id}/purge", response_model=PurgedTaskView)
async def purge_texts(request: Request, task_id: TaskInPath, _body: EmptyBody) -> Response:
    """Removes prompt, output, messages, questions, results and all other texts of an ended task from the relay."""
    return respond(await purge_task(relay_of(request), task_id, caller_of(request).actor))


AnswerBody = Annotated[AnswerRequest, Depends(JsonBody(AnswerRequest))]


@router.post("/tasks/{task_id}/answer", response_model=TaskView)
async def answer_task(request: Request, task_id: TaskInPath, body: AnswerBody) -> Response:
    """Answers all open questions of the task's agent; its session continues with the answer."""
    relay, by = relay_of(request), caller_of(request).actor
    task = await questions.answer(
        relay.database, task_id, body.text, request_key=body.request_key, now=relay.now(), by=by
    )
    notify(relay.hub, Transition(task=task))
    return await _respond_with_task(relay, task)
