"""How a task is born: checked, written with its first event, then acknowledged."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.config import Settings
from delegate.errors import IllegalMove, InvalidField, NoSuchTask, UnknownAgent
from delegate.model import PROMPT_MAX, AgentName, EventKind, Limits, Priority, Task, TaskId, Usage, new_task_id
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.runners import has_message, insert_message
from delegate.store.tasks import get_task, insert_task, lock_task, task_of_trigger

log = logging.getLogger(__name__)
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks for; None means: as the settings say."""

    prompt: str
    agent: str
    working_directory: str
    machine: str
    priority: Priority = Priority.P2
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    timeout: timedelta | None = None
    max_output: int | None = None
    max_budget_usd: float | None = None
    max_turns: int | None = None
    rerun: bool = False
    request_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    task: Task
    is_new: bool


async def submit(database: Database, request: Request, settings: Settings, now: datetime) -> Submitted:
    """Write the task; when this returns, it is on disk. The same request key again gives the same task."""
    task = accepted(request, settings, now)
    return await _write(database, "submit", task, request.request_key)


async def retry(database: Database, task_id: TaskId, request_key: str | None, now: datetime) -> Submitted:
    """A new task with the wishes of an ended one."""
    old = await database.read(lambda connection: get_task(connection, task_id))
    if old is None:
        raise NoSuchTask(task_id=task_id)
    if old.state not in FINAL_TASK_STATES:
        raise IllegalMove(
            task_id=task_id, state=old.state, verb="retried", advice="wait for its end, or `delegate cancel` it first"
        )
    return await _write(database, "retry", again(old, now), request_key)


async def send_message(
    database: Database, task_id: TaskId, text: str, *, request_key: str | None, now: datetime
) -> Task:
    """Words for the agent that works on a task."""

    def write(connection: Connection) -> Task:
        task = lock_task(connection, task_id)
        if task is None:
            raise NoSuchTask(task_id=task_id)
        if request_key is not None and has_message(connection, request_key):
            return task
        if task.state is not TaskState.RUNNING or task.agent is AgentName.SHELL:
            raise IllegalMove(
                task_id=task_id, state=task.state, verb="told anything", advice="only an agent at work can be told"
            )
        insert_message(connection, task_id, text, trigger_key=request_key, now=now)
        return task

    return await database.write("message", write)


def accepted(request: Request, settings: Settings, now: datetime) -> Task:
    """Pure: the task that this request makes, or the reason why it makes none."""
    if request.agent not in set(AgentName):
        raise UnknownAgent(agent=request.agent, known=", ".join(AgentName))
    if not request.prompt.strip().strip(INVISIBLE).strip():
        raise InvalidField(field="prompt", why="is empty; say what is to be done")
    if len(request.prompt) > PROMPT_MAX:
        raise InvalidField(field="prompt", why=f"has {len(request.prompt):,} characters; the limit is {PROMPT_MAX:,}")
    if "\x00" in request.prompt:
        raise InvalidField(field="prompt", why="holds a NUL character, which no program can be given")
    if not request.working_directory.startswith("/"):
        raise InvalidField(field="workingDirectory", why="must be an absolute path")
    return Task(
        id=new_task_id(),
        state=TaskState.QUEUED,
        prompt=request.prompt,
        agent=AgentName(request.agent),
        limits=Limits(
            timeout=request.timeout or timedelta(milliseconds=settings.task_timeout_ms),
            max_output=request.max_output or settings.max_output_buffer,
            max_budget_usd=request.max_budget_usd,
            max_turns=request.max_turns,
        ),
        created_at=now,
        priority=request.priority,
        model=request.model,
        effort=request.effort,
        permission_mode=request.permission_mode,
        working_directory=request.working_directory,
        machine=request.machine,
        rerun=request.rerun,
    )


def again(old: Task, now: datetime) -> Task:
    return replace(
        old,
        id=new_task_id(),
        state=TaskState.QUEUED,
        created_at=now,
        reason=None,
        message=None,
        exit_code=None,
        fence=0,
        attempts=0,
        not_before=None,
        started_at=None,
        finished_at=None,
        cancel_requested_at=None,
        cancel_reason=None,
        retry_of=old.id,
        parent_task_id=old.parent_task_id or old.id,
        retry_count=old.retry_count + 1,
        session_id=None,
        usage=Usage(),
    )


async def _write(database: Database, name: str, task: Task, request_key: str | None) -> Submitted:
    def write(connection: Connection) -> Submitted:
        earlier = task_of_trigger(connection, request_key) if request_key else None
        if earlier is not None:
            return Submitted(task=earlier, is_new=False)
        insert_task(connection, task, trigger_key=request_key)
        data: dict[str, object] = {"agent": task.agent, "priority": task.priority.name}
        if task.retry_of:
            data["retryOf"] = task.retry_of
        append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.SUBMITTED, at=task.created_at, data=data)])
        return Submitted(task=task, is_new=True)

    submitted = await database.write(name, write)
    log.info("task submitted", extra={"task_id": submitted.task.id, "agent": task.agent, "new": submitted.is_new})
    return submitted
