"""Queries on what Linear must still learn. Posts of one session are sent in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from delegate.linear.records import NewPost, OutboxCounts, Post, PostKind, PostPriority
from delegate.model import TaskId
from delegate.store.linear.tables import OPEN_SESSION, WAITING, linear_session, outbox


def add_posts(connection: Connection, posts: Sequence[NewPost], now: datetime) -> None:
    """Queue posts; one whose key is known is not queued again."""
    keys = [post.key for post in posts]
    known = set(connection.execute(select(outbox.c.key).where(outbox.c.key.in_(keys))).scalars()) if keys else set()
    rows = [
        {
            "key": post.key,
            "session_id": post.session_id,
            "kind": post.kind,
            "data": post.data,
            "priority": post.priority,
            "created_at": now,
            "not_before": _waiting_plan_time(connection, post) if post.kind is PostKind.PLAN else None,
        }
        for post in posts
        if post.key not in known
    ]
    if rows:
        connection.execute(insert(outbox), rows)


def _waiting_plan_time(connection: Connection, post: NewPost) -> datetime | None:
    """A plan is sent when the one that it replaces would have been sent."""
    waiting = select(outbox.c.not_before).where(WAITING, outbox.c.session_id == post.session_id)
    row = connection.execute(waiting.where(outbox.c.kind == PostKind.PLAN).order_by(outbox.c.id).limit(1)).first()
    return post.not_before if row is None else row.not_before


def due_posts(connection: Connection, now: datetime, limit: int) -> list[Post]:
    """Return the first waiting post of each session that may be sent now, the most urgent first.

    A plan that is not due yet holds up nothing.
    """
    is_due = outbox.c.not_before.is_(None) | (outbox.c.not_before <= now)
    heads = (
        select(func.min(outbox.c.id))
        .where(WAITING, (outbox.c.kind != PostKind.PLAN) | is_due)
        .group_by(outbox.c.session_id)
    )
    query = select(outbox).where(outbox.c.id.in_(heads), is_due).order_by(outbox.c.priority, outbox.c.id).limit(limit)
    return [_to_post(row) for row in connection.execute(query)]


def _is_replaced() -> ColumnElement[bool]:
    """Whether a later post of the same session replaces it anyway: an ephemeral one, or a plan."""
    later = outbox.alias("later")
    is_later = select(later.c.id).where(
        later.c.session_id == outbox.c.session_id, later.c.id > outbox.c.id, later.c.state == "waiting"
    )
    by_activity = is_later.where(later.c.kind == PostKind.ACTIVITY).exists()
    by_plan = is_later.where(later.c.kind == PostKind.PLAN).exists()
    is_passing, is_plan = outbox.c.priority == PostPriority.EPHEMERAL, outbox.c.kind == PostKind.PLAN
    return WAITING & ((is_passing & by_activity) | (is_plan & by_plan))


def has_replaced(connection: Connection) -> bool:
    return connection.execute(select(outbox.c.id).where(_is_replaced()).limit(1)).first() is not None


def drop_replaced(connection: Connection, now: datetime) -> int:
    gone = update(outbox).where(_is_replaced())
    return connection.execute(gone.values(state="dropped", settled_at=now)).rowcount


def release_plan(connection: Connection, session_id: str) -> None:
    """Send the last plan of a session now."""
    plan = update(outbox).where(WAITING, outbox.c.session_id == session_id, outbox.c.kind == PostKind.PLAN)
    connection.execute(plan.values(not_before=None))


def settle_post(connection: Connection, post_id: int, state: str, now: datetime, error: str | None = None) -> None:
    done = update(outbox).where(outbox.c.id == post_id, WAITING)
    connection.execute(done.values(state=state, settled_at=now, error=error))


def postpone_post(connection: Connection, post: Post, not_before: datetime, why: str) -> None:
    later = update(outbox).where(outbox.c.id == post.id, WAITING)
    connection.execute(later.values(not_before=not_before, tries=post.tries + 1, error=why))


def drop_posts_of(connection: Connection, session_id: str, why: str, now: datetime) -> int:
    """Drop what waits for a session that Linear no longer has."""
    gone = update(outbox).where(outbox.c.session_id == session_id, WAITING)
    return connection.execute(gone.values(state="dead", settled_at=now, error=why)).rowcount


def is_end_posted(connection: Connection, task_id: TaskId) -> bool | None:
    """Whether Linear has the end of a task: the last post of its session; None if Linear will not get it."""
    sessions = select(linear_session.c.id).where(linear_session.c.task_id == task_id)
    if connection.execute(sessions.where(OPEN_SESSION).limit(1)).first() is not None:
        return False
    last = select(outbox.c.state).where(outbox.c.session_id.in_(sessions)).order_by(outbox.c.id.desc()).limit(1)
    return {"waiting": False, "sent": True}.get(connection.execute(last).scalar_one_or_none() or "")


def count_posts(connection: Connection) -> OutboxCounts:
    rows = connection.execute(select(outbox.c.state, func.count()).group_by(outbox.c.state))
    counts: dict[str, int] = {row[0]: row[1] for row in rows}
    failed = select(outbox.c.error).where(outbox.c.error.isnot(None)).order_by(outbox.c.id.desc()).limit(1)
    error = connection.execute(failed).scalar_one_or_none()
    return OutboxCounts(waiting=counts.get("waiting", 0), dead=counts.get("dead", 0), last_error=error)


def drop_settled(connection: Connection, before: datetime) -> int:
    gone = delete(outbox).where(outbox.c.settled_at < before)
    return connection.execute(gone).rowcount


def _to_post(row: Row[Any]) -> Post:
    return Post(
        id=row.id,
        session_id=row.session_id,
        kind=PostKind(row.kind),
        data=row.data,
        priority=PostPriority(row.priority),
        created_at=row.created_at,
        tries=row.tries,
    )
