"""Queries on the results of attempts: checkpoints for the next attempt, changes for users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, insert, select

from delegate.model import Attempt, Change, Checkpoint, TaskId, Usage
from delegate.store.tables import change, checkpoint, from_row


def insert_checkpoint(connection: Connection, attempt: Attempt, new: Checkpoint, now: datetime) -> None:
    connection.execute(
        insert(checkpoint).values(task_id=attempt.task_id, attempt_id=attempt.id, at=now, data=asdict(new))
    )


def last_checkpoint(connection: Connection, tasks: Sequence[TaskId]) -> Checkpoint | None:
    query = select(checkpoint.c.data).where(checkpoint.c.task_id.in_(tasks)).order_by(checkpoint.c.id.desc()).limit(1)
    data = connection.execute(query).scalar_one_or_none()
    if data is None:
        return None
    files = data["dirty_files"]
    lists = {"dirty_files": None if files is None else tuple(files), "output_tail": tuple(data["output_tail"])}
    return Checkpoint(**{**data, **lists, "usage": Usage(**data["usage"])})


def insert_change(connection: Connection, attempt: Attempt, new: Change) -> None:
    connection.execute(insert(change).values(task_id=attempt.task_id, attempt_id=attempt.id, **asdict(new)))


def last_change(connection: Connection, task_id: TaskId) -> Change | None:
    query = select(change).where(change.c.task_id == task_id).order_by(change.c.id.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else from_row(Change, row)
