"""Queries on messages to running agents."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select

from delegate.model import AgentMessage, TaskId
from delegate.store.tables import message

# Built once: every report of a runner needs it.
AFTER = (
    select(message)
    .where(message.c.task_id == bindparam("task"), message.c.id > bindparam("after"))
    .order_by(message.c.id)
)


def insert_message(
    connection: Connection, task_id: TaskId, text: str, *, trigger_key: str | None, now: datetime
) -> None:
    connection.execute(insert(message).values(task_id=task_id, trigger_key=trigger_key, text=text, at=now))


def task_of_message(connection: Connection, trigger_key: str) -> TaskId | None:
    """Return the task to which the message with this key was sent."""
    query = select(message.c.task_id).where(message.c.trigger_key == trigger_key)
    task_id = connection.execute(query).scalar_one_or_none()
    return None if task_id is None else TaskId(task_id)


def messages_after(connection: Connection, task_id: TaskId, after: int) -> list[AgentMessage]:
    rows = connection.execute(AFTER, {"task": task_id, "after": after})
    return [AgentMessage(id=row.id, text=row.text) for row in rows]
