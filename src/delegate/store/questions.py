"""Queries on questions of agents, and on the tokens with which they ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, select, update

from delegate.model import Attempt, Event, EventKind, Question, Task, TaskId
from delegate.states import AttemptState, TaskState
from delegate.store.attempts import to_attempt
from delegate.store.events import to_event
from delegate.store.tables import attempt, event_table, has_state, task
from delegate.store.tasks import question_data


def asking_attempt(connection: Connection, ask_hash: str) -> Attempt | None:
    """Return the running attempt of this token."""
    mine = select(attempt).where(attempt.c.ask_hash == ask_hash, has_state(attempt, AttemptState.RUNNING))
    row = connection.execute(mine.limit(1)).first()
    return None if row is None else to_attempt(row)


def keep_ask_hash(connection: Connection, held: Attempt, ask_hash: str | None) -> None:
    mine = (attempt.c.id == held.id, has_state(attempt, AttemptState.RUNNING), attempt.c.fence == held.fence)
    connection.execute(update(attempt).where(*mine).values(ask_hash=ask_hash))


def keep_questions(connection: Connection, known: Task, questions: Sequence[Question]) -> bool:
    """Write the questions of a task if its state and fence are unchanged."""
    result = connection.execute(
        update(task)
        .where(task.c.id == known.id, has_state(task, known.state), task.c.fence == known.fence)
        .values(questions=[question_data(question) for question in questions])
    )
    return result.rowcount == 1


def release_asking_task(connection: Connection, asked: Task) -> bool:
    """Move a running task to waiting, or to queued if it is answered. The attempt does not count."""
    result = connection.execute(
        update(task)
        .where(task.c.id == asked.id, has_state(task, TaskState.RUNNING), task.c.fence == asked.fence)
        .values(
            state=asked.state,
            attempts=task.c.attempts - 1,
            not_before=None,
            session_id=asked.session_id,
            usage=asdict(asked.usage),
            prefers=asked.prefers,
            lane=asked.lane,
        )
    )
    return result.rowcount == 1


def queue_answered(connection: Connection, waiting: Task, now: datetime) -> bool:
    result = connection.execute(
        update(task)
        .where(task.c.id == waiting.id, has_state(task, TaskState.WAITING), task.c.fence == waiting.fence)
        .values(state=TaskState.QUEUED, claimable_at=now)
    )
    return result.rowcount == 1


def answers_of_task(connection: Connection, task_id: TaskId) -> list[Event]:
    query = select(event_table).where(event_table.c.task_id == task_id, event_table.c.kind == EventKind.ANSWER)
    return [to_event(row) for row in connection.execute(query.order_by(event_table.c.id))]
