"""The tools that start, show and control tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

from delegate.errors import Forbidden, InvalidField
from delegate.intake import retry
from delegate.intake import submit as intake
from delegate.intake.from_wire import request_of
from delegate.model import TaskId
from delegate.queue import finish
from delegate.queue.cascade import Transition
from delegate.queue.waiting import read_snapshot, why
from delegate.relay import views as pages
from delegate.relay.children import limit_child
from delegate.relay.locations import check_location
from delegate.relay.mcp.calls import ToolCall, ToolResult
from delegate.relay.mcp.hints import rewrite_for_agents, rewrite_view
from delegate.relay.notify import notify
from delegate.relay.views import STATUS_OF_STATE, attempt_view, checkpoint_view, task_view, view_of
from delegate.report import follow
from delegate.states import TaskState
from delegate.wire import tools as wire
from delegate.wire.tasks import SubmitRequest, TaskView

PROMPT_SHOWN = 200  # characters of a prompt in a page
STOPPING = "its runner is stopping it, and the tasks that wait for it are cancelled once it has stopped"


async def delegate_task(call: ToolCall, wanted: wire.DelegateTask) -> ToolResult:
    relay = call.relay
    parameters = task_parameters(call, wanted)
    body = SubmitRequest.model_construct(**parameters, request_key=call.request_key)
    await check_location(relay, body)
    request, settings = limit_child(relay, request_of(body, call.caller.actor), call.caller.task)
    submitted, snapshot = await intake.submit_and_read_snapshot(
        relay.database, request, settings, relay.rules, relay.now()
    )
    task = submitted.task
    notify(relay.hub, Transition(task=task))
    reason = rewrite_for_agents(why(task, snapshot) or "")
    answer = wire.DelegateTaskResult(task_id=task.id, status=STATUS_OF_STATE[task.state], why=reason or None)
    return ToolResult(answer=answer, text=headline(task.id, answer.status, reason))


def task_parameters(call: ToolCall, wanted: wire.TaskParameters) -> dict[str, Any]:  # Any: the type of each field
    """Return the given parameters by field name, with the location and the client's default agent.

    All are valid: the tool's model has the same types as SubmitRequest, and ToolCall validates the client's headers.
    """
    said = wanted.model_dump(include=set(wire.TaskParameters.model_fields), exclude_unset=True)
    location = call.locate(wanted.working_directory, wanted.repository)
    return {**said, **location, "default_agent": call.default_agent}


async def task_status(call: ToolCall, asked: wire.TaskStatus) -> ToolResult:
    if asked.task_id is None:
        return await _page(call, asked)
    if asked.model_fields_set & {"status", "limit", "cursor"}:
        raise InvalidField(field="taskId", why="is for one task; leave it out to list tasks by status, limit or cursor")
    overview = await follow.read_task_overview(
        call.relay.database, TaskId(asked.task_id), call.relay.rules, call.relay.now()
    )
    view = rewrite_view(task_view(overview.task, overview.snapshot))
    attempts = [rewrite_view(attempt_view(attempt)) for attempt in overview.attempts]
    answer = wire.TaskStatusResult(task=view, attempts=attempts, checkpoint=checkpoint_view(overview.checkpoint))
    return ToolResult(answer=answer, text=description(view))


async def _page(call: ToolCall, asked: wire.TaskStatus) -> ToolResult:
    if call.caller.attempt is not None:
        raise Forbidden(what="the list of all tasks; give a taskId, of your own task or of one that you submitted")
    page = await pages.task_page(call.relay, asked.status, asked.limit, asked.cursor)
    views = [rewrite_view(view) for view in page.tasks]
    text = "\n".join(headline_of(view) for view in views) or "no tasks found"
    return ToolResult(
        answer=wire.TaskStatusResult(tasks=[to_task_brief(view) for view in views], next=page.next), text=text
    )


async def cancel_task(call: ToolCall, asked: wire.CancelTask) -> ToolResult:
    relay = call.relay
    transition = await finish.cancel(
        relay.database, TaskId(asked.task_id), asked.reason, relay.now(), call.caller.actor
    )
    notify(relay.hub, transition)
    task, others = transition.task, [task.id for task in transition.others if task.state is TaskState.CANCELLED]
    status = STATUS_OF_STATE[task.state]
    snapshot = await relay.database.read(partial(read_snapshot, tasks=[task], rules=relay.rules, now=relay.now()))
    text = f"{task.id} is {status}" + (f"; {STOPPING}" if status == "running" else "")
    if task.id in snapshot.publishing:
        text = f"{task.id} {why(task, snapshot)}"
    return ToolResult(answer=wire.CancelTaskResult(task_id=task.id, status=status, also_cancelled=[*others]), text=text)


async def retry_task(call: ToolCall, asked: wire.RetryTask) -> ToolResult:
    relay = call.relay
    task_id, by = TaskId(asked.task_id), call.caller.actor
    submitted = await retry.retry(relay.database, task_id, call.request_key, relay.now(), by)
    return _to_retry_result(call, submitted)


async def resume_task(call: ToolCall, asked: wire.ResumeTask) -> ToolResult:
    relay = call.relay
    submitted = await retry.resume(
        relay.database,
        TaskId(asked.task_id),
        asked.additional_context,
        request_key=call.request_key,
        now=relay.now(),
        by=call.caller.actor,
    )
    return _to_retry_result(call, submitted)


def _to_retry_result(call: ToolCall, submitted: intake.SubmittedTask) -> ToolResult:
    task = submitted.task
    notify(call.relay.hub, Transition(task=task))
    answer = view_of(wire.RetryTaskResult, task, task_id=task.id, status=STATUS_OF_STATE[task.state])
    relation = "repeats" if task.lineage == task.id else "continues"
    return ToolResult(answer=answer, text=f"{task.id} {relation} {task.retry_of}; it is {answer.status}")


def to_task_brief(view: TaskView) -> wire.TaskBrief:
    pull_request = view.result.pull_request if view.result else None
    return view_of(wire.TaskBrief, view, prompt=truncate_prompt(view.prompt), pull_request=pull_request)


def truncate_prompt(prompt: str) -> str:
    return prompt if len(prompt) <= PROMPT_SHOWN else f"{prompt[:PROMPT_SHOWN]}…"


def headline(task_id: str, status: str, detail: str | None) -> str:
    return f"{task_id} is {status}: {detail}" if detail else f"{task_id} is {status}"


def headline_of(view: TaskView) -> str:
    return headline(view.task_id, view.status, view.why or view.message)


def description(view: TaskView) -> str:
    lines = [headline_of(view)]
    lines += [f"asks: {asked.text}" for asked in view.questions if asked.answer is None]
    if view.result and view.result.summary:
        lines.append(view.result.summary)
    if view.result and view.result.pull_request:
        lines.append(view.result.pull_request)
    if view.advice:
        lines.append(view.advice)
    return "\n".join(lines)
