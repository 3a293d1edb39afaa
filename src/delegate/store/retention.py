"""Verbs that forget: ended tasks of a certain age, and output when there is too much of it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, func, select

from delegate.states import FINAL_TASK_STATES
from delegate.store.tables import output, task


def drop_ended_before(connection: Connection, moment: datetime, limit: int) -> int:
    """Ended tasks with everything that belongs to them."""
    old = select(task.c.id).where(task.c.state.in_(FINAL_TASK_STATES), task.c.finished_at < moment).limit(limit)
    return connection.execute(delete(task).where(task.c.id.in_(old))).rowcount


def drop_oldest_output(connection: Connection, excess: int, limit: int) -> int:
    """The output of the tasks that ended first, until `excess` bytes are gone; their events stay."""
    oldest = (
        select(task.c.id, func.sum(output.c.size).label("size"))
        .join(output, output.c.task_id == task.c.id)
        .where(task.c.state.in_(FINAL_TASK_STATES))
        .group_by(task.c.id, task.c.finished_at)
        .order_by(task.c.finished_at)
        .limit(limit)
    )
    ids = []
    for row in connection.execute(oldest):
        if excess <= 0:
            break
        ids.append(row.id)
        excess -= int(row.size)
    connection.execute(delete(output).where(output.c.task_id.in_(ids)))
    return len(ids)


def output_total(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.sum(output.c.size), 0))).scalar_one())
