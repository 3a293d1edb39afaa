"""The end of an attempt, and what it makes of its task: one transaction."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from delegate.errors import IllegalMove, NoSuchTask, SequenceGap, StaleFence
from delegate.model import Attempt, EventKind, Outcome, Task, TaskId
from delegate.queue.held import Holder, known_attempt, task_held_by
from delegate.queue.rescue import finished_event, lose
from delegate.states import FINAL_TASK_STATES, PARKING_REASONS, AttemptState, Reason, TaskState
from delegate.store.attempts import end_attempt_if_held
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.tasks import end_task, get_task, lock_task, request_cancel, requeue_task

log = logging.getLogger(__name__)
ENDS = {
    AttemptState.COMPLETED: TaskState.COMPLETED,
    AttemptState.FAILED: TaskState.FAILED,
    AttemptState.CANCELLED: TaskState.CANCELLED,
}


async def finish(database: Database, holder: Holder, outcome: Outcome, *, next_seq: int | None, now: datetime) -> Task:
    """End the attempt as the runner judged it. `next_seq` is None when its output could not be sent in full."""
    task = await database.write(
        "finish", lambda connection: _finish(connection, holder, outcome, next_seq=next_seq, now=now)
    )
    _log_move(task, holder, outcome.reason)
    return task


async def release(database: Database, holder: Holder, outcome: Outcome, now: datetime) -> Task:
    """The runner gives the task back: handed over on purpose, or lost with the process that worked on it."""
    task = await database.write("release", lambda connection: _release(connection, holder, outcome, now))
    _log_move(task, holder, outcome.reason)
    return task


async def cancel(database: Database, task_id: TaskId, reason: str, now: datetime) -> Task:
    """End a task that waits; ask for the end of one that runs. Cancelling a cancelled task changes nothing."""
    task = await database.write("cancel", lambda connection: _cancel(connection, task_id, reason, now))
    log.info("cancel asked for", extra={"task_id": task_id, "state": task.state})
    return task


def _finish(connection: Connection, holder: Holder, outcome: Outcome, *, next_seq: int | None, now: datetime) -> Task:
    attempt = known_attempt(connection, holder)
    if attempt.state is not AttemptState.RUNNING:
        return _already_finished(connection, attempt, outcome)
    if next_seq is not None and next_seq != attempt.next_seq:
        raise SequenceGap(attempt_id=attempt.id, expected=attempt.next_seq, given=next_seq)
    task = task_held_by(connection, attempt)
    if not end_attempt_if_held(connection, attempt, outcome, now):
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    spent = replace(
        task,
        usage=task.usage.plus(outcome.usage),
        session_id=outcome.session_id or attempt.session_id or task.session_id,
    )
    if outcome.state is AttemptState.RELEASED:
        return _park(connection, spent, attempt, outcome, now)
    ended = replace(
        spent,
        state=ENDS[outcome.state],
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
        finished_at=now,
    )
    if not end_task(connection, ended, was=TaskState.RUNNING, finished_at=now):
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    append_events(connection, [finished_event(ended, attempt, now)])
    return ended


def _already_finished(connection: Connection, attempt: Attempt, outcome: Outcome) -> Task:
    """The same end told twice is one end: the first answer was lost on the way."""
    told = (outcome.state, outcome.reason, outcome.exit_code)
    if (attempt.state, attempt.reason, attempt.exit_code) != told:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    task = get_task(connection, attempt.task_id)
    if task is None:
        raise NoSuchTask(task_id=attempt.task_id)
    return task


def _park(connection: Connection, task: Task, attempt: Attempt, outcome: Outcome, now: datetime) -> Task:
    """Back to the queue until a limit of the model's service is over; no attempt is counted."""
    if task.cancel_requested_at is not None:
        ended = replace(
            task,
            state=TaskState.CANCELLED,
            reason=Reason.CANCELLED,
            message=task.cancel_reason or "cancelled",
            finished_at=now,
        )
        end_task(connection, ended, was=TaskState.RUNNING, finished_at=now)
        append_events(connection, [finished_event(ended, attempt, now)])
        return ended
    requeue_task(connection, task, counted=False, not_before=outcome.not_before)
    parked = outcome.reason in PARKING_REASONS
    data: dict[str, object] = {"reason": outcome.reason, "message": outcome.message}
    if outcome.not_before is not None:
        data["until"] = outcome.not_before.isoformat()
    kind = EventKind.PARKED if parked else EventKind.RELEASED
    append_events(connection, [NewEvent(task_id=task.id, attempt_id=attempt.id, kind=kind, at=now, data=data)])
    return replace(task, state=TaskState.QUEUED, not_before=outcome.not_before, attempts=task.attempts - 1)


def _release(connection: Connection, holder: Holder, outcome: Outcome, now: datetime) -> Task:
    attempt = known_attempt(connection, holder)
    if attempt.state is not AttemptState.RUNNING:
        return _already_finished(connection, attempt, outcome)
    task = task_held_by(connection, attempt)
    if outcome.state is AttemptState.LOST:
        return lose(connection, task, replace(attempt, session_id=outcome.session_id or attempt.session_id), now)
    if not end_attempt_if_held(connection, attempt, outcome, now):
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    carried = replace(task, session_id=outcome.session_id or attempt.session_id or task.session_id)
    return _park(connection, carried, attempt, outcome, now)


def _cancel(connection: Connection, task_id: TaskId, reason: str, now: datetime) -> Task:
    task = lock_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    if task.state is TaskState.CANCELLED or task.cancel_requested_at is not None:
        return task
    if task.state in FINAL_TASK_STATES:
        raise IllegalMove(
            task_id=task_id, state=task.state, verb="cancelled", advice="`delegate retry` makes a new task of it"
        )
    message = reason or "cancelled by its user"
    if task.state is TaskState.RUNNING:
        request_cancel(connection, task_id, message, now)
        data: dict[str, object] = {"reason": message}
        append_events(connection, [NewEvent(task_id=task_id, kind=EventKind.CANCEL_REQUESTED, at=now, data=data)])
        return replace(task, cancel_requested_at=now, cancel_reason=message)
    ended = replace(task, state=TaskState.CANCELLED, reason=Reason.CANCELLED, message=message, finished_at=now)
    end_task(connection, ended, was=task.state, finished_at=now)
    append_events(connection, [finished_event(ended, None, now)])
    return ended


def _log_move(task: Task, holder: Holder, reason: Reason) -> None:
    log.info(
        "attempt ended",
        extra={
            "task_id": task.id,
            "attempt_id": holder.attempt_id,
            "runner_id": holder.runner_id,
            "state": task.state,
            "reason": reason,
        },
    )
