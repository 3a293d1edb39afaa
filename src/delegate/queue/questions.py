"""Records questions of agents and the answers of users."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from delegate.errors import IllegalMove, InvalidField, NoQuestion, NoSuchAttempt, NoSuchTask, Refused, StaleFence
from delegate.model import (
    OPTION_MAX,
    OPTIONS_MAX,
    OWNER,
    QUESTION_MAX,
    QUESTIONS_MAX,
    Actor,
    AgentName,
    Attempt,
    AttemptId,
    EventKind,
    Outcome,
    Question,
    Task,
    TaskId,
)
from delegate.queue.lease_guard import lock_task_of_attempt, require_written
from delegate.queue.sessions import preferred_runner
from delegate.states import AttemptState, Reason, TaskState, waits_for_answer
from delegate.store.attempts import lock_attempt
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.people import record_audit
from delegate.store.questions import answers_of_task, keep_questions, queue_answered, release_asking_task
from delegate.store.tasks import lock_task

log = logging.getLogger(__name__)


async def ask(database: Database, attempt_id: AttemptId, text: str, options: Sequence[str], now: datetime) -> Task:
    """Record a question of a running attempt's agent. A repeated question is recorded once."""
    question = Question(attempt_id=attempt_id, text=text.strip(), options=tuple(options), asked_at=now)
    check_question(question)
    task = await database.write("ask", lambda connection: _ask(connection, question, now))
    log.info("agent asked", extra={"task_id": task.id, "attempt_id": attempt_id, "state": task.state})
    return task


async def answer(
    database: Database, task_id: TaskId, text: str, *, request_key: str | None, now: datetime, by: Actor = OWNER
) -> Task:
    """Answer all open questions of a task. A waiting task is queued now, a running one when its attempt ends."""
    if not text.strip():
        raise InvalidField(field="text", why="is empty; write the answer, or cancel the task with `delegate cancel`")
    given: dict[str, object] = {"text": text, "requestKey": request_key, **by.event_data}

    def write(connection: Connection) -> tuple[Task, bool]:
        answered, is_new = answer_in(connection, task_id, given, now)
        if is_new:
            record_audit(connection, by, "answer", task_id, now=now)
        return answered, is_new

    task, _ = await database.write("answer", write)
    log.info("question answered", extra={"task_id": task_id, "state": task.state})
    return task


def check_question(question: Question) -> None:
    if not question.text:
        raise InvalidField(field="question", why="is empty; say what you want to know")
    if len(question.text) > QUESTION_MAX:
        length = len(question.text)
        raise InvalidField(field="question", why=f"has {length:,} characters; the limit is {QUESTION_MAX:,}")
    if len(question.options) > OPTIONS_MAX:
        raise InvalidField(field="options", why=f"has {len(question.options)} entries; the limit is {OPTIONS_MAX}")
    if any(not option.strip() or len(option) > OPTION_MAX for option in question.options):
        raise InvalidField(field="options", why=f"must each have 1 to {OPTION_MAX:,} characters")
    if any("\x00" in text for text in (question.text, *question.options)):
        raise InvalidField(field="question", why="contains a NUL character, which the database cannot store")


def _ask(connection: Connection, question: Question, now: datetime) -> Task:
    attempt = lock_attempt(connection, question.attempt_id)
    if attempt is None:
        raise NoSuchAttempt(attempt_id=question.attempt_id)
    if attempt.state is not AttemptState.RUNNING:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    task = lock_task_of_attempt(connection, attempt)
    if task.agent == AgentName.SHELL:
        raise Refused(why="a shell task cannot ask questions")
    mine = [asked for asked in task.questions if asked.attempt_id == attempt.id]
    if any((asked.text, asked.options) == (question.text, question.options) for asked in mine):
        return task
    if len(mine) >= QUESTIONS_MAX:
        why = f"is one too many: the limit is {QUESTIONS_MAX} per attempt; end your turn and wait for the answers"
        raise InvalidField(field="question", why=why)
    asked = replace(task, questions=(*mine, question))
    require_written(keep_questions(connection, task, asked.questions), attempt)
    data: dict[str, object] = {"text": question.text, "options": list(question.options)}
    append_events(connection, [_event(asked, EventKind.QUESTION, data, now, attempt)])
    return asked


def answer_in(connection: Connection, task_id: TaskId, given: dict[str, object], now: datetime) -> tuple[Task, bool]:
    """Answer in the caller's transaction. Return the task, and whether the answer is new; a repeat changes nothing."""
    text, request_key = str(given["text"]), given["requestKey"]
    task = lock_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    if request_key and any(
        event.data.get("requestKey") == request_key for event in answers_of_task(connection, task_id)
    ):
        return task, False
    if task.state not in (TaskState.RUNNING, TaskState.WAITING, TaskState.QUEUED) or not open_questions(task):
        raise NoQuestion(task_id=task_id, state=task.state)
    answered = tuple(replace(asked, answer=asked.answer or text) for asked in task.questions)
    _require_unchanged(keep_questions(connection, task, answered), task)
    append_events(connection, [_event(task, EventKind.ANSWER, given, now)])
    known = replace(task, questions=answered)
    if task.state is not TaskState.WAITING:
        return known, True
    _require_unchanged(queue_answered(connection, task, now), task)
    return replace(known, state=TaskState.QUEUED), True


def open_questions(task: Task) -> tuple[Question, ...]:
    return tuple(asked for asked in task.questions if asked.answer is None)


def has_asked(task: Task, attempt: Attempt) -> bool:
    return any(asked.attempt_id == attempt.id for asked in task.questions)


def release_if_asked(outcome: Outcome, attempt: Attempt, task: Task | None) -> Outcome:
    """Pure: release the task instead of ending it if its agent has asked a question."""
    if attempt.state is AttemptState.RUNNING:
        is_asked = task is not None and has_asked(task, attempt)
    else:
        is_asked = attempt.reason is Reason.QUESTION  # a repeated report
    if not is_asked and outcome.reason is Reason.QUESTION:
        raise InvalidField(field="outcome", why="does not match: the agent has asked nothing")
    if not is_asked or not waits_for_answer(outcome.state, outcome.reason):
        return outcome
    return replace(outcome, state=AttemptState.RELEASED, reason=Reason.QUESTION, not_before=None, result=None)


def park_for_answer(connection: Connection, task: Task, attempt: Attempt, now: datetime) -> Task:
    """Park the task until it is answered; the runner that has its session and its files is preferred then."""
    state = TaskState.WAITING if open_questions(task) else TaskState.QUEUED
    asked = replace(task, state=state, prefers=preferred_runner(task, attempt), not_before=None)
    require_written(release_asking_task(connection, asked), attempt)
    data: dict[str, object] = {
        "reason": Reason.QUESTION,
        "message": "waiting for an answer" if state is TaskState.WAITING else "the question is already answered",
    }
    append_events(connection, [_event(task, EventKind.RELEASED, data, now, attempt)])
    return replace(asked, attempts=task.attempts - 1)


def drop_unanswered(connection: Connection, task: Task) -> Task:
    """Drop unanswered questions before the next attempt, which asks again if necessary."""
    if not open_questions(task):
        return task
    answered = tuple(asked for asked in task.questions if asked.answer is not None)
    _require_unchanged(keep_questions(connection, task, answered), task)
    return replace(task, questions=answered)


def _require_unchanged(written: bool, task: Task) -> None:  # noqa: FBT001  # the result of a guarded write
    if not written:
        raise IllegalMove(
            task_id=task.id, state=f"no longer {task.state}", verb="answered", advice="read its status again"
        )


def _event(
    task: Task, kind: EventKind, data: dict[str, object], now: datetime, attempt: Attempt | None = None
) -> NewEvent:
    return NewEvent(task_id=task.id, attempt_id=attempt.id if attempt else None, kind=kind, at=now, data=data)
