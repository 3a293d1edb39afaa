"""Queries on the conversations about issues."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from delegate.linear.records import IssueSession, PendingQuestion, Scope
from delegate.model import Event
from delegate.store.events import to_event
from delegate.store.linear.tables import OPEN_SESSION, linear_session
from delegate.store.tables import event_table, from_row


def insert_session(connection: Connection, new: IssueSession) -> None:
    connection.execute(insert(linear_session).values(**_columns(new)))


def save_session(connection: Connection, session: IssueSession) -> None:
    values = _columns(session)
    connection.execute(update(linear_session).where(linear_session.c.id == session.id).values(**values))


def get_session(connection: Connection, session_id: str) -> IssueSession | None:
    row = connection.execute(select(linear_session).where(linear_session.c.id == session_id)).one_or_none()
    return None if row is None else _to_session(row)


def lock_session(connection: Connection, session_id: str) -> IssueSession | None:
    query = select(linear_session).where(linear_session.c.id == session_id).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else _to_session(row)


def sessions_of_issue(connection: Connection, issue_id: str) -> list[IssueSession]:
    """Return the sessions of an issue, oldest first."""
    query = select(linear_session).where(linear_session.c.issue_id == issue_id).order_by(linear_session.c.created_at)
    return [_to_session(row) for row in connection.execute(query)]


def child_sessions(connection: Connection, session_id: str) -> list[IssueSession]:
    """Return the sessions about sub-issues that this one started."""
    query = select(linear_session).where(linear_session.c.parent_id == session_id)
    return [_to_session(row) for row in connection.execute(query.order_by(linear_session.c.created_at))]


def open_sessions(connection: Connection) -> list[IssueSession]:
    query = select(linear_session).where(OPEN_SESSION).order_by(linear_session.c.created_at)
    return [_to_session(row) for row in connection.execute(query)]


def count_sessions(connection: Connection, since: datetime, issue_id: str | None = None) -> int:
    query = select(func.count()).select_from(linear_session).where(linear_session.c.created_at >= since)
    if issue_id is not None:
        query = query.where(linear_session.c.issue_id == issue_id)
    return int(connection.execute(query).scalar_one())


def unreported_events(connection: Connection, limit: int) -> list[tuple[str, Event]]:
    """Return events of tasks with an open session that the session has not reported, in their order."""
    query = (
        select(linear_session.c.id.label("session"), event_table)
        .join(event_table, event_table.c.task_id == linear_session.c.task_id)
        .where(OPEN_SESSION, event_table.c.id > linear_session.c.cursor)
        .order_by(event_table.c.id)
        .limit(limit)
    )
    return [(row.session, to_event(row)) for row in connection.execute(query)]


def quiet_sessions(connection: Connection, posted_before: datetime) -> list[IssueSession]:
    """Return open sessions that wait for no answer and whose last post is older."""
    query = select(linear_session).where(
        OPEN_SESSION, linear_session.c.question.is_(None), linear_session.c.posted_at < posted_before
    )
    return [_to_session(row) for row in connection.execute(query)]


def _columns(session: IssueSession) -> dict[str, object]:
    question = None if session.question is None else asdict(session.question)
    return {**asdict(session), "log": list(session.log), "question": question}


def _to_question(data: dict[str, Any]) -> PendingQuestion:  # Any: as _columns wrote it
    scope = data.get("scope")
    return PendingQuestion(text=data["text"], options=tuple(data["options"]), scope=Scope(scope) if scope else None)


def _to_session(row: Row[Any]) -> IssueSession:
    question = None if row.question is None else _to_question(row.question)
    return from_row(IssueSession, row, question=question, log=tuple(row.log))
