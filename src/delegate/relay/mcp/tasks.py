"""Tasks, as other agents start, see and steer them."""

from __future__ import annotations

from delegate.errors import InvalidField
from delegate.intake import retry
from delegate.intake import submit as intake
from delegate.intake.from_wire import request_of
from delegate.model import TaskId
from delegate.queue import finish
from delegate.queue.ending import Moved
from delegate.queue.waiting import why
from delegate.relay import views as pages
from delegate.relay.mcp.calls import Call, Told
from delegate.relay.mcp.words import for_agents, spoken
from delegate.relay.notify import tell
from delegate.relay.views import SHOWN, attempt_view, checkpoint_view, task_view
from delegate.report import follow
from delegate.states import TaskState
from delegate.wire import tools as wire
from delegate.wire.tasks import SubmitRequest, TaskView

PROMPT_SHOWN = 200  # characters of a prompt in a page
STOPPING = "its runner has been told to stop it, and what waits for it is cancelled when it has"


async def delegate_task(call: Call, wanted: wire.DelegateTask) -> Told:
    relay = call.relay
    wishes = wishes_of(call, wanted)
    request = request_of(SubmitRequest.model_validate({**wishes, "request_key": call.request_key}))
    submitted, around = await intake.submit_and_look(relay.database, request, relay.settings, relay.rules, relay.now())
    task = submitted.task
    tell(relay.hub, Moved(task=task))
    reason = for_agents(why(task, around) or "")
    answer = wire.Delegated(task_id=task.id, status=SHOWN[task.state], why=reason or None)
    return Told(answer=answer, text=headline(task.id, answer.status, reason))


def wishes_of(call: Call, wanted: wire.TaskWishes) -> dict[str, object]:
    """What was said, by the names of its fields, where it is to be done, and by whom if nobody is named."""
    said = wanted.model_dump(include=set(wire.TaskWishes.model_fields), exclude_unset=True)
    place = call.where(wanted.working_directory, wanted.repository)
    return {**said, **place, "default_agent": call.default_agent}


async def task_status(call: Call, asked: wire.TaskStatus) -> Told:
    if asked.task_id is None:
        return await _page(call, asked)
    if asked.model_fields_set & {"status", "limit", "cursor"}:
        raise InvalidField(field="taskId", why="is for one task; leave it out to list tasks by status, limit or cursor")
    standing = await follow.task_standing(
        call.relay.database, TaskId(asked.task_id), call.relay.rules, call.relay.now()
    )
    view = spoken(task_view(standing.task, standing.around))
    attempts = [spoken(attempt_view(attempt)) for attempt in standing.attempts]
    answer = wire.StatusAnswer(task=view, attempts=attempts, checkpoint=checkpoint_view(standing.checkpoint))
    return Told(answer=answer, text=description(view))


async def _page(call: Call, asked: wire.TaskStatus) -> Told:
    page = await pages.task_page(call.relay, asked.status, asked.limit, asked.cursor)
    views = [spoken(view) for view in page.tasks]
    text = "\n".join(headline_of(view) for view in views) or "there are no such tasks"
    return Told(answer=wire.StatusAnswer(tasks=[brief(view) for view in views], next=page.next), text=text)


async def cancel_task(call: Call, asked: wire.CancelTask) -> Told:
    relay = call.relay
    moved = await finish.cancel(relay.database, TaskId(asked.task_id), asked.reason, relay.now())
    tell(relay.hub, moved)
    task, others = moved.task, [task.id for task in moved.others if task.state is TaskState.CANCELLED]
    status = SHOWN[task.state]
    text = f"{task.id} is {status}" + (f"; {STOPPING}" if status == "running" else "")
    return Told(answer=wire.Cancelled(task_id=task.id, status=status, also_cancelled=[*others]), text=text)


async def retry_task(call: Call, asked: wire.RetryTask) -> Told:
    relay = call.relay
    submitted = await retry.retry(relay.database, TaskId(asked.task_id), call.request_key, relay.now())
    return _again(call, submitted)


async def resume_task(call: Call, asked: wire.ResumeTask) -> Told:
    relay = call.relay
    submitted = await retry.resume(
        relay.database,
        TaskId(asked.task_id),
        asked.additional_context,
        request_key=call.request_key,
        now=relay.now(),
    )
    return _again(call, submitted)


def _again(call: Call, submitted: intake.Submitted) -> Told:
    task = submitted.task
    tell(call.relay.hub, Moved(task=task))
    answer = wire.Again(
        task_id=task.id,
        status=SHOWN[task.state],
        retry_of=task.retry_of or "",
        parent_task_id=task.parent_task_id or "",
        retry_count=task.retry_count,
    )
    begins = "starts the work anew of" if task.lineage == task.id else "goes on from"
    return Told(answer=answer, text=f"{task.id} {begins} {task.retry_of}; it is {answer.status}")


def brief(view: TaskView) -> wire.TaskBrief:
    return wire.TaskBrief(
        task_id=view.task_id,
        status=view.status,
        priority=view.priority,
        agent=view.agent,
        prompt=beginning(view.prompt),
        why=view.why,
        message=view.message,
        depends_on=view.depends_on,
        questions=view.questions,
        pull_request=view.result.pull_request if view.result else None,
        schedule_id=view.schedule_id,
        created_at=view.created_at,
        started_at=view.started_at,
        finished_at=view.finished_at,
    )


def beginning(prompt: str) -> str:
    return prompt if len(prompt) <= PROMPT_SHOWN else f"{prompt[:PROMPT_SHOWN]}…"


def headline(task_id: str, status: str, said: str | None) -> str:
    return f"{task_id} is {status}: {said}" if said else f"{task_id} is {status}"


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
