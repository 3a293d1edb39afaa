"""Queries on received webhooks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, case, func, insert, or_, select, update

from delegate.linear.records import InboxEntry
from delegate.store.linear.tables import UNPROCESSED, inbox

OPENING = "opening a session"  # the outcome of a delivery for which Delegate may have opened a session


def keep_delivery(
    connection: Connection, *, delivery_id: str | None, key: str, name: str, body: bytes, now: datetime
) -> bool:
    """Store a delivery; False if it, or another delivery of the same event, is known."""
    is_same = inbox.c.key == key
    if delivery_id is not None:  # what a poll found has none
        is_same = is_same | (inbox.c.delivery_id == delivery_id)
    known = select(inbox.c.id).where(is_same).limit(1)
    if connection.execute(known).first() is not None:
        return False
    connection.execute(insert(inbox).values(delivery_id=delivery_id, key=key, name=name, body=body, received_at=now))
    return True


def due_deliveries(connection: Connection, now: datetime, limit: int) -> list[InboxEntry]:
    """Return deliveries that are not processed, in the order in which they arrived."""
    is_due = or_(inbox.c.not_before.is_(None), inbox.c.not_before <= now)
    query = select(inbox).where(UNPROCESSED, is_due, inbox.c.body.isnot(None)).order_by(inbox.c.id).limit(limit)
    return [
        InboxEntry(id=row.id, key=row.key, body=bytes(row.body), received_at=row.received_at, tries=row.tries)
        for row in connection.execute(query)
    ]


def settle_delivery(connection: Connection, entry_id: int, outcome: str, now: datetime) -> bool:
    """Mark it as processed; False if it is already."""
    done = update(inbox).where(inbox.c.id == entry_id, UNPROCESSED).values(processed_at=now, outcome=outcome)
    return connection.execute(done).rowcount == 1


def postpone_delivery(connection: Connection, entry: InboxEntry, not_before: datetime, why: str) -> None:
    later = update(inbox).where(inbox.c.id == entry.id, UNPROCESSED)
    outcome = case((inbox.c.outcome == OPENING, OPENING), else_=why)
    connection.execute(later.values(not_before=not_before, tries=entry.tries + 1, outcome=outcome))


def mark_opening(connection: Connection, entry_id: int) -> bool:
    """Note that a session is opened for this delivery next; True if an earlier try may have opened it."""
    known = select(inbox.c.id).where(inbox.c.id == entry_id, inbox.c.outcome == OPENING)
    if connection.execute(known).first() is not None:
        return True
    connection.execute(update(inbox).where(inbox.c.id == entry_id, UNPROCESSED).values(outcome=OPENING))
    return False


def is_opening(connection: Connection) -> bool:
    """Whether a session may have been opened whose delivery is not processed."""
    query = select(inbox.c.id).where(UNPROCESSED, inbox.c.outcome == OPENING).limit(1)
    return connection.execute(query).first() is not None


def drop_bodies(connection: Connection, before: datetime) -> int:
    """Delete the text of old deliveries; the keys stay, to recognise a repeat."""
    old = update(inbox).where(inbox.c.received_at < before, inbox.c.body.isnot(None))
    return connection.execute(old.values(body=None)).rowcount


def count_unprocessed(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(inbox).where(UNPROCESSED)).scalar_one())
