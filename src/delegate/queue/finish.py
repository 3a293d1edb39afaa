"""Finishes, releases and cancels attempts and their tasks, each in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from delegate.errors import EffectsOpen, IllegalMove, NoSuchTask, SequenceGap, StaleFence
from delegate.model import (
    OWNER,
    Actor,
    Attempt,
    Choice,
    Effect,
    EffectState,
    EventKind,
    Field,
    Mode,
    Outcome,
    Source,
    Task,
    TaskId,
)
from delegate.queue.cascade import Transition, end, log_dependents
from delegate.queue.checkpoints import with_checkpoint
from delegate.queue.lease_guard import LeaseRef, lock_owned_attempt, lock_task_of_attempt, require_written
from delegate.queue.limits import own_budget_left, start_of_day
from delegate.queue.questions import park_for_answer, release_if_asked
from delegate.queue.rescue import log_lost, lose_attempt
from delegate.states import FINAL_TASK_STATES, AttemptState, Reason, TaskState
from delegate.store.attempts import end_attempt_if_held
from delegate.store.database import Connection, Database
from delegate.store.effects import effects_of
from delegate.store.events import NewEvent, append_events
from delegate.store.people import record_audit
from delegate.store.results import insert_change, insert_checkpoint
from delegate.store.tasks import get_task, lock_task, request_cancel, requeue_task, set_cancel_reason

log = logging.getLogger(__name__)
NO_REASON = "cancelled by the user"  # when a cancel request gives no reason
TASK_STATE_OF_OUTCOME = {
    AttemptState.COMPLETED: TaskState.COMPLETED,
    AttemptState.FAILED: TaskState.FAILED,
    AttemptState.CANCELLED: TaskState.CANCELLED,
}


async def finish(
    database: Database, lease: LeaseRef, outcome: Outcome, *, next_seq: int | None, now: datetime
) -> Transition:
    """End the attempt with the runner's outcome. `next_seq` is None if some of the output could not be uploaded."""
    transition = await database.write(
        "finish", lambda connection: _finish(connection, lease, outcome, next_seq=next_seq, now=now)
    )
    _log_transition(transition, lease, outcome.reason)
    return transition


async def release(database: Database, lease: LeaseRef, outcome: Outcome, now: datetime) -> Transition:
    """Return the task to the queue: handed back on purpose, or lost with the agent's process."""
    transition = await database.write("release", lambda connection: _release(connection, lease, outcome, now))
    if outcome.state is AttemptState.LOST:
        log_lost(transition, lease.attempt_id, lease.slot_id)
    else:
        _log_transition(transition, lease, outcome.reason)
    return transition


async def cancel(database: Database, task_id: TaskId, reason: str, now: datetime, by: Actor = OWNER) -> Transition:
    """End a waiting task, or request the end of a running one. Cancelling a cancelled task changes nothing."""
    transition = await database.write("cancel", lambda connection: cancel_in(connection, task_id, reason, now, by))
    log.info("cancel requested", extra={"task_id": task_id, "state": transition.task.state})
    log_dependents(transition)
    return transition


def _finish(
    connection: Connection, lease: LeaseRef, outcome: Outcome, *, next_seq: int | None, now: datetime
) -> Transition:
    attempt = lock_owned_attempt(connection, lease)
    known = get_task(connection, attempt.task_id)
    outcome = release_if_asked(park_until_tomorrow(connection, outcome, attempt, known, now), attempt, known)
    if attempt.state is not AttemptState.RUNNING:
        return _already_finished(connection, attempt, outcome)
    attempt = replace(attempt, messages_seen=max(attempt.messages_seen, outcome.messages_seen))
    if next_seq is not None and next_seq != attempt.next_seq:
        raise SequenceGap(attempt_id=attempt.id, expected=attempt.next_seq, given=next_seq)
    task = lock_task_of_attempt(connection, attempt)
    outcome = with_cancel_reason(outcome, task)
    if outcome.state is AttemptState.COMPLETED:
        _check_effects(connection, task)
    if not end_attempt_if_held(connection, attempt, outcome, now):
        raise StaleFence(attempt_id=attempt.id, fence=lease.fence)
    _save_results(connection, attempt, with_checkpoint(connection, task, attempt, outcome), now)
    spent = replace(
        task,
        usage=task.usage.plus(outcome.usage),
        session_id=outcome.session_id or attempt.session_id or task.session_id,
    )
    if outcome.state is AttemptState.RELEASED:
        return _park(connection, spent, attempt, outcome, now)
    ended = replace(
        spent,
        state=TASK_STATE_OF_OUTCOME[outcome.state],
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
        result=outcome.result,
        finished_at=now,
    )
    if next_seq is None:
        append_events(connection, [incomplete_event(ended, attempt, now)])
    return end(connection, ended, was=TaskState.RUNNING, attempt=attempt, now=now)


def with_cancel_reason(outcome: Outcome, task: Task) -> Outcome:
    """Pure: use the task's current cancel reason; the runner knows only the first one."""
    if outcome.reason is not Reason.CANCELLED or outcome.message != NO_REASON:
        return outcome
    return replace(outcome, message=task.cancel_reason or NO_REASON)


def _check_effects(connection: Connection, task: Task) -> None:
    """A task with an announced effect of unknown outcome cannot complete."""
    if task.mode is Mode.IN_PLACE:
        return  # it has no effects; skips a query for most tasks
    unsettled = open_effects(effects_of(connection, [task.id]))
    if unsettled:
        raise EffectsOpen(task_id=task.id, which=", ".join(effect.kind for effect in unsettled))


def open_effects(effects: Iterable[Effect]) -> list[Effect]:
    """Pure: return the effects whose latest try was announced but not settled."""
    newest = {(effect.kind, effect.target): effect for effect in sorted(effects, key=lambda effect: effect.fence)}
    return [effect for effect in newest.values() if effect.state is EffectState.INTENT]


def _save_results(connection: Connection, attempt: Attempt, outcome: Outcome, now: datetime) -> None:
    if outcome.checkpoint is not None:
        insert_checkpoint(connection, attempt, outcome.checkpoint, now)
    if outcome.change is not None:
        insert_change(connection, attempt, outcome.change)


def incomplete_event(task: Task, attempt: Attempt, now: datetime) -> NewEvent:
    data: dict[str, object] = {"text": "the end of the output is missing: the runner could not upload it"}
    return NewEvent(task_id=task.id, attempt_id=attempt.id, kind=EventKind.WARNING, at=now, data=data)


def park_until_tomorrow(
    connection: Connection, outcome: Outcome, attempt: Attempt, task: Task | None, now: datetime
) -> Outcome:
    """Park the task until the next day if the daily budget ran out and not its own."""
    if outcome.reason is not Reason.BUDGET or not was_limited_by_daily_budget(connection, attempt, task):
        return outcome
    tomorrow = start_of_day(now) + timedelta(days=1)
    message = "the daily budget is spent"
    return replace(outcome, state=AttemptState.RELEASED, message=message, exit_code=None, not_before=tomorrow)


def was_limited_by_daily_budget(connection: Connection, attempt: Attempt, task: Task | None) -> bool:
    """Whether the attempt's budget was the rest of the daily budget and not the task's own."""
    if attempt.state is not AttemptState.RUNNING:
        return attempt.state is AttemptState.RELEASED  # a repeated report: its cost is already recorded
    if attempt.budget_usd is None or task is None:
        return False
    own = own_budget_left(connection, task)
    return own is None or attempt.budget_usd < own


def _already_finished(connection: Connection, attempt: Attempt, outcome: Outcome) -> Transition:
    """Accept a repeated report of the same outcome: the first response was lost."""
    reported = (outcome.state, outcome.reason, outcome.exit_code)
    if (attempt.state, attempt.reason, attempt.exit_code) != reported:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    task = get_task(connection, attempt.task_id)
    if task is None:
        raise NoSuchTask(task_id=attempt.task_id)
    return Transition(task=task)


def _park(connection: Connection, task: Task, attempt: Attempt, outcome: Outcome, now: datetime) -> Transition:
    """Return the task to the queue, until `not_before` if that is set; the attempt does not count."""
    if task.cancel_requested_at is not None:
        ended = replace(
            task,
            state=TaskState.CANCELLED,
            reason=Reason.CANCELLED,
            message=task.cancel_reason or "cancelled",
            finished_at=now,
        )
        return end(connection, ended, was=TaskState.RUNNING, attempt=attempt, now=now)
    if outcome.reason is Reason.QUESTION:
        return Transition(task=park_for_answer(connection, task, attempt, now))
    require_written(requeue_task(connection, task, counted=False, not_before=outcome.not_before), attempt)
    data: dict[str, object] = {"reason": outcome.reason, "message": outcome.message}
    if outcome.not_before is not None:
        data["until"] = outcome.not_before.isoformat()
    if outcome.wants_agent is not None:
        data["agent"] = outcome.wants_agent
    kind = EventKind.RELEASED if outcome.not_before is None else EventKind.PARKED
    append_events(connection, [NewEvent(task_id=task.id, attempt_id=attempt.id, kind=kind, at=now, data=data)])
    parked = replace(task, state=TaskState.QUEUED, not_before=outcome.not_before, attempts=task.attempts - 1)
    return Transition(task=parked)


def _release(connection: Connection, lease: LeaseRef, outcome: Outcome, now: datetime) -> Transition:
    attempt = lock_owned_attempt(connection, lease)
    outcome = release_if_asked(outcome, attempt, get_task(connection, attempt.task_id))
    if attempt.state is not AttemptState.RUNNING:
        return _already_finished(connection, attempt, outcome)
    task = lock_task_of_attempt(connection, attempt)
    if outcome.state is AttemptState.LOST:
        known = replace(attempt, session_id=outcome.session_id or attempt.session_id)
        return lose_attempt(connection, task, known, now, checkpoint=outcome.checkpoint)
    reported = replace(outcome, usage=attempt.usage)
    if not end_attempt_if_held(connection, attempt, reported, now):
        raise StaleFence(attempt_id=attempt.id, fence=lease.fence)
    _save_results(connection, attempt, outcome, now)
    session = outcome.session_id or attempt.session_id or task.session_id
    carried = replace(task, session_id=session, usage=task.usage.plus(attempt.usage))
    return _park(connection, assign_agent(carried, outcome.wants_agent), attempt, outcome, now)


def assign_agent(task: Task, agent: str | None) -> Task:
    """Pure: assign another agent, which cannot use the previous agent's session."""
    if agent is None or agent == task.agent:
        return task
    others = tuple(choice for choice in task.choices if choice.field is not Field.AGENT)
    choice = Choice(field=Field.AGENT, value=agent, source=Source.REPOSITORY_FILE)
    return replace(task, agent=agent, session_id=None, choices=(choice, *others))


def cancel_in(connection: Connection, task_id: TaskId, reason: str, now: datetime, by: Actor = OWNER) -> Transition:
    """Cancel in the caller's transaction."""
    task = lock_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    if task.state is TaskState.RUNNING and task.cancel_requested_at is not None:
        return Transition(task=_add_cancel_reason(connection, task, reason, now, by))
    if task.state is TaskState.CANCELLED or task.cancel_requested_at is not None:
        return Transition(task=task)
    if task.state in FINAL_TASK_STATES:
        raise IllegalMove(
            task_id=task_id, state=task.state, verb="cancelled", advice="`delegate retry` creates a new task from it"
        )
    message = reason or NO_REASON
    record_audit(connection, by, "cancel", task_id, now=now)
    if task.state is TaskState.RUNNING or by.event_data:  # the end of a waiting task does not say who cancelled it
        append_events(connection, [_cancel_event(task_id, message, now, by)])
    if task.state is TaskState.RUNNING:
        request_cancel(connection, task_id, message, now)
        return Transition(task=replace(task, cancel_requested_at=now, cancel_reason=message))
    ended = replace(task, state=TaskState.CANCELLED, reason=Reason.CANCELLED, message=message, finished_at=now)
    return end(connection, ended, was=task.state, attempt=None, now=now)


def _add_cancel_reason(connection: Connection, task: Task, reason: str, now: datetime, by: Actor) -> Task:
    """Keep the first reason given, even if the first cancel request had none."""
    if not reason or task.cancel_reason != NO_REASON:
        return task
    set_cancel_reason(connection, task.id, reason)
    append_events(connection, [_cancel_event(task.id, reason, now, by)])
    return replace(task, cancel_reason=reason)


def _cancel_event(task_id: TaskId, reason: str, now: datetime, by: Actor) -> NewEvent:
    data = {"reason": reason, **by.event_data}
    return NewEvent(task_id=task_id, kind=EventKind.CANCEL_REQUESTED, at=now, data=data)


def _log_transition(transition: Transition, lease: LeaseRef, reason: Reason) -> None:
    log.info(
        "attempt ended",
        extra={
            "task_id": transition.task.id,
            "attempt_id": lease.attempt_id,
            "runner_id": lease.slot_id,
            "state": transition.task.state,
            "reason": reason,
        },
    )
    log_dependents(transition)
