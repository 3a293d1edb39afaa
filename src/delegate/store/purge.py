"""Removes the texts of an ended task; its states and numbers stay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, or_, select, update

from delegate.model import TaskId
from delegate.states import Reason
from delegate.store.linear.tables import UNPROCESSED, WAITING, inbox, linear_session, outbox
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
BODIES_PER_READ = 500


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
        "blockers": None,
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


def purge_linear(connection: Connection, task_id: TaskId, lineage: Sequence[TaskId]) -> list[str]:
    """Remove what webhooks brought and posts said about the issue of a task; returns the keys of the issues.

    What still waits to be posted or processed stays if it belongs to a later task of the lineage.
    """
    sessions = connection.execute(select(linear_session).where(linear_session.c.task_id.in_(lineage))).all()
    own = [row.id for row in sessions if row.task_id == task_id]
    ids = [row.id for row in sessions]
    connection.execute(update(linear_session).where(linear_session.c.id.in_(ids)).values(question=None, log=[]))
    connection.execute(delete(outbox).where(outbox.c.session_id.in_(ids), or_(~WAITING, outbox.c.session_id.in_(own))))
    _purge_bodies(connection, [name.encode() for row in sessions for name in (row.id, row.issue_id)])
    return sorted({row.issue_key for row in sessions})


def _purge_bodies(connection: Connection, names: Sequence[bytes]) -> None:
    kept = select(inbox.c.id, inbox.c.body).where(inbox.c.body.isnot(None), ~UNPROCESSED).order_by(inbox.c.id)
    after = 0
    while names and (rows := connection.execute(kept.where(inbox.c.id > after).limit(BODIES_PER_READ)).all()):
        found = [row.id for row in rows if any(name in row.body for name in names)]
        connection.execute(update(inbox).where(inbox.c.id.in_(found)).values(body=None))
        after = rows[-1].id


def _is_kept(key: str, value: object) -> bool:
    if key == "reason":
        return value in set(Reason)
    return key in KEPT_DATA and not isinstance(value, dict | list)
