"""Removes the texts of an ended task; its states and numbers stay."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, select, update

from delegate.model import TaskId
from delegate.states import Reason
from delegate.store.tables import (
    attempt,
    change,
    checkpoint,
    event_table,
    message,
    output,
    schedule_run,
    task,
)

PURGED = "[purged]"  # in place of a prompt
# What events say in numbers and ids. A `reason` is kept if it is one of ours: that of a cancel is free text.
NUMBERS = {"additions", "bytes", "characters", "deletions", "files", "number", "passed", "pid", "seconds", "total"}
KEPT_DATA = NUMBERS | {"agent", "attempt", "by", "commit", "draft", "exitCode", "ok", "priority", "retryOf", "runner"}
KEPT_DATA |= {"runnerId", "state", "submittedBy", "until", "verb"}
KEPT_RESULT = {"additions", "base_commit", "branch", "checks_passed", "checks_total", "commit", "deletions", "files"}
KEPT_RESULT |= {"is_kept", "pull_request"}
EVENTS_PER_READ = 1_000


def purge_texts(connection: Connection, task_id: TaskId, now: datetime) -> bool:
    """Remove the texts; False if they were removed before. The database's triggers allow this one change."""
    found = connection.execute(select(task.c.result).where(task.c.id == task_id, task.c.purged_at.is_(None)))
    row = found.one_or_none()
    if row is None:
        return False
    result = None if row.result is None else {key: row.result[key] for key in KEPT_RESULT if key in row.result}
    texts: dict[str, object] = {
        "title": None,
        "issue": None,
        "context": None,
        "message": None,
        "cancel_reason": None,
        "questions": [],
    }
    values: dict[str, object] = {"prompt": PURGED, "result": result, "purged_at": now, **texts}
    connection.execute(update(task).where(task.c.id == task_id).values(values))
    connection.execute(update(attempt).where(attempt.c.task_id == task_id).values(message=None, purged_at=now))
    connection.execute(update(schedule_run).where(schedule_run.c.task_id == task_id).values(message=None))
    for table in (output, checkpoint, change, message):
        connection.execute(delete(table).where(table.c.task_id == task_id))
    _purge_events(connection, task_id)
    return True


def _purge_events(connection: Connection, task_id: TaskId) -> None:
    mine = select(event_table.c.id, event_table.c.data).where(event_table.c.task_id == task_id)
    after = 0
    while rows := connection.execute(
        mine.where(event_table.c.id > after).order_by(event_table.c.id).limit(EVENTS_PER_READ)
    ).all():
        for row in rows:
            kept = {key: value for key, value in row.data.items() if _is_kept(key, value)}
            if kept != row.data:
                connection.execute(update(event_table).where(event_table.c.id == row.id).values(data=kept))
        after = rows[-1].id


def _is_kept(key: str, value: object) -> bool:
    if key == "reason":
        return value in set(Reason)
    return key in KEPT_DATA and not isinstance(value, dict | list)
