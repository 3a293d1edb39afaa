"""The tables for Linear. `migrations/versions/0010_linear.py` and `0011_issue_graphs.py` create them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    false,
    literal_column,
    true,
)

from delegate.store.tables import Instant, MaybeJson, Serial, metadata

linear_connection = Table(
    "linear_connection",
    metadata,
    Column("organization_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("organization_name", Text, nullable=False),
    Column("url_key", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("client_id", Text),
    Column("scopes", JSON, nullable=False),
    Column("members", JSON, nullable=False),
    Column("secrets", LargeBinary, nullable=False),  # encrypted
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("expires_at", Instant),
    Column("connected_at", Instant, nullable=False),
    Column("problem", Text),
    Column("delivered_at", Instant),
    Column("polled_at", Instant),
)

linear_map = Table(
    "linear_map",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("target_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("repository", Text, nullable=False),
    Column("agent", Text),
)

linear_session = Table(
    "linear_session",
    metadata,
    Column("id", Text, primary_key=True),
    Column("issue_id", Text, nullable=False),
    Column("issue_key", Text, nullable=False),
    Column("creator", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("is_comment", Boolean, nullable=False, server_default=false()),
    Column("is_delegated", Boolean, nullable=False, server_default=true()),
    Column("task_id", Text),
    Column("team_id", Text, nullable=False),
    Column("started_state_id", Text),
    Column("review_state_id", Text),
    Column("cursor", BigInteger, nullable=False, server_default="0"),
    Column("posted_at", Instant),
    Column("question", MaybeJson),
    Column("log", JSON, nullable=False, server_default="[]"),
    Column("created_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("parent_id", Text),
    Column("text_hash", Text),
)
HAS_PARENT = linear_session.c.parent_id.isnot(None)
Index("ix_linear_session_parent", linear_session.c.parent_id, sqlite_where=HAS_PARENT, postgresql_where=HAS_PARENT)
Index("ix_linear_session_issue", linear_session.c.issue_id, linear_session.c.created_at)
Index("ix_linear_session_created", linear_session.c.created_at)
OPEN_SESSION = linear_session.c.ended_at.is_(None)
Index("ix_linear_session_open", linear_session.c.task_id, sqlite_where=OPEN_SESSION, postgresql_where=OPEN_SESSION)

inbox = Table(
    "inbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("delivery_id", Text, unique=True),
    Column("key", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("received_at", Instant, nullable=False),
    Column("body", LargeBinary),  # NULL after a week
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("not_before", Instant),
    Column("processed_at", Instant),
    Column("outcome", Text),
    sqlite_autoincrement=True,
)
UNPROCESSED = inbox.c.processed_at.is_(None)
Index("ix_inbox_unprocessed", inbox.c.id, sqlite_where=UNPROCESSED, postgresql_where=UNPROCESSED)
Index("ix_inbox_received", inbox.c.received_at)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False, unique=True),
    Column("session_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="waiting"),  # waiting, sent, dropped, dead
    Column("created_at", Instant, nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("not_before", Instant),
    Column("settled_at", Instant),
    Column("error", Text),
    sqlite_autoincrement=True,
)


def is_waiting(table: Table) -> ColumnElement[bool]:
    """Compared with a literal for the partial index."""
    return table.c.state == literal_column("'waiting'")


WAITING = is_waiting(outbox)
Index("ix_outbox_waiting", outbox.c.session_id, outbox.c.id, sqlite_where=WAITING, postgresql_where=WAITING)
Index("ix_outbox_settled", outbox.c.settled_at)
