"""Repeats an ended task: a retry as it was, or a resume with additional context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from delegate.errors import DependencyFailed, IllegalMove, KeyUsed, NoSuchTask
from delegate.intake.dependencies import resolve_dependencies
from delegate.intake.submit import SubmittedTask, insert_new_task, log_submitted
from delegate.model import OWNER, Actor, EventKind, Mode, Task, TaskId, Usage, new_task_id
from delegate.queue.sessions import last_attempt, preferred_runner, without_shared_session
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection, Database
from delegate.store.events import last_event_of_kind
from delegate.store.graph import have_session
from delegate.store.tasks import chain_of, get_task, lock_task, task_of_trigger

TaskMaker = Callable[[Connection], Task]


async def retry(
    database: Database, task_id: TaskId, request_key: str | None, now: datetime, by: Actor = OWNER
) -> SubmittedTask:
    """Create a new task from an ended one. The retry of a task that did not complete continues its work."""

    def make(connection: Connection) -> Task:
        old = _get_ended_task(connection, task_id, verb="retried")
        if old.state is TaskState.COMPLETED:
            return copy_as_new(old, now)
        if old.mode is Mode.IN_PLACE:
            old = _without_session_in_use(connection, old)
        else:
            _check_no_open_retry(connection, old, verb="retried")
        return _resolve_retry_dependencies(connection, _continue_where_it_ran(connection, old, now), old)

    return await _write_once(database, "retry", task_id, request_key, make, by)


async def resume(
    database: Database,
    task_id: TaskId,
    context: str | None,
    *,
    request_key: str | None,
    now: datetime,
    by: Actor = OWNER,
) -> SubmittedTask:
    """Create a task that continues an ended one, if possible on the runner that has its session and its files."""

    def make(connection: Connection) -> Task:
        return make_resumed(connection, task_id, context, now)

    return await _write_once(database, "resume", task_id, request_key, make, by)


def make_resumed(connection: Connection, task_id: TaskId, context: str | None, now: datetime) -> Task:
    """Return the task that continues an ended one; the caller inserts it."""
    old = _get_ended_task(connection, task_id, verb="resumed")
    _check_no_open_retry(connection, old, verb="resumed")
    task = replace(_continue_where_it_ran(connection, old, now), context=context)
    return _resolve_retry_dependencies(connection, task, old)


async def _write_once(
    database: Database, verb: str, task_id: TaskId, request_key: str | None, make: TaskMaker, by: Actor
) -> SubmittedTask:
    def write(connection: Connection) -> SubmittedTask:
        earlier = task_of_trigger(connection, request_key) if request_key else None
        if earlier is None:
            return insert_new_task(connection, make(connection), by=by, trigger_key=request_key, verb=verb)
        if (earlier.retry_of, _verb_of(connection, earlier)) != (task_id, verb):
            raise KeyUsed(key=request_key)
        return SubmittedTask(task=earlier, is_new=False)

    submitted = await database.write(verb, write)
    log_submitted(submitted)
    return submitted


def _verb_of(connection: Connection, task: Task) -> object:
    submission = last_event_of_kind(connection, task.id, EventKind.SUBMITTED)
    return None if submission is None else submission.data.get("verb")


def _get_ended_task(connection: Connection, task_id: TaskId, *, verb: str) -> Task:
    task = get_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    if task.state not in FINAL_TASK_STATES:
        wait = (
            f"answer it with `delegate answer {task_id}`" if task.state is TaskState.WAITING else "wait for it to end"
        )
        raise IllegalMove(
            task_id=task_id, state=task.state, verb=verb, advice=f"{wait}, or cancel it with `delegate cancel`"
        )
    if task.purged_at is not None:
        raise IllegalMove(task_id=task_id, state="purged", verb=verb, advice="submit the work as a new task")
    return task


def _check_no_open_retry(connection: Connection, old: Task, *, verb: str) -> None:
    """Two open tasks of a lineage would share one workspace and push to one branch."""
    live = _open_tasks(connection, old.lineage)
    if live:
        advice = f"{live[-1]} already continues it; wait for it to end, or cancel it with `delegate cancel`"
        raise IllegalMove(task_id=old.id, state=old.state, verb=verb, advice=advice)


def _without_session_in_use(connection: Connection, old: Task) -> Task:
    """Two tasks in place may run at once, but not in one agent session: the later one starts its own."""
    live = _open_tasks(connection, old.lineage)
    is_used = old.session_id is not None and have_session(connection, live, old.session_id)
    return replace(old, session_id=None) if is_used else old


def _open_tasks(connection: Connection, lineage: TaskId) -> list[TaskId]:
    lock_task(connection, lineage)  # so that of two concurrent requests, one sees the other's task
    return [member for member, state in chain_of(connection, lineage) if state not in FINAL_TASK_STATES]


def _resolve_retry_dependencies(connection: Connection, task: Task, old: Task) -> Task:
    """A task that has run needs no dependencies; one that has not waits again, for the retries of what failed."""
    if old.fence > 0:
        return without_shared_session(connection, task) if task.session_id else task
    latest = {task_id: _latest_retry(connection, task_id) for task_id in task.depends_on}
    depends_on = tuple(dict.fromkeys(latest.values()))
    continue_from = None if task.continue_from is None else latest[task.continue_from]
    try:
        return resolve_dependencies(connection, replace(task, depends_on=depends_on, continue_from=continue_from))
    except DependencyFailed as refused:
        raise DependencyFailed(**{**refused.data, "advice": "first, then try this task again"}) from None


def _latest_retry(connection: Connection, task_id: TaskId) -> TaskId:
    """Return the task itself, or its last retry if it did not complete."""
    task = get_task(connection, task_id)
    if task is None or task.state not in (TaskState.FAILED, TaskState.CANCELLED):
        return task_id
    return chain_of(connection, task.lineage)[-1][0]


def _continue_where_it_ran(connection: Connection, old: Task, now: datetime) -> Task:
    return replace(copy_as_continuation(old, now), prefers=preferred_runner(old, last_attempt(connection, old)))


def copy_as_continuation(old: Task, now: datetime) -> Task:
    """Pure: copy a task as the next one of its lineage, with the same workspace, branch and agent session."""
    return replace(
        old,
        id=new_task_id(),
        state=TaskState.QUEUED,
        created_at=now,
        questions=(),
        result=None,
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
        blockers=(),
        retry_of=old.id,
        parent_task_id=old.parent_task_id or old.id,
        retry_count=old.retry_count + 1,
        usage=Usage(),
    )


def copy_as_new(old: Task, now: datetime) -> Task:
    """Pure: copy only the request, as the first task of a new lineage."""
    task = copy_as_continuation(old, now)
    return replace(task, lineage=task.id, session_id=None)
