"""Linear: the connection, maps, sessions, and the tables of incoming and outgoing messages."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("task", sa.Column("is_from_linear", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "linear_connection",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("organization_name", sa.Text(), nullable=False),
        sa.Column("url_key", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text()),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("connected_at", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text()),
        sa.Column("delivered_at", sa.BigInteger()),
        sa.Column("polled_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("organization_id", name="pk_linear_connection"),
    )
    op.create_table(
        "linear_map",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("repository", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text()),
        sa.PrimaryKeyConstraint("kind", "target_id", name="pk_linear_map"),
    )
    _create_sessions()
    _create_inbox()
    _create_outbox()


def _create_sessions() -> None:
    op.create_table(
        "linear_session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("issue_id", sa.Text(), nullable=False),
        sa.Column("issue_key", sa.Text(), nullable=False),
        sa.Column("creator", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("is_comment", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("is_delegated", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("task_id", sa.Text()),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("started_state_id", sa.Text()),
        sa.Column("review_state_id", sa.Text()),
        sa.Column("cursor", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("posted_at", sa.BigInteger()),
        sa.Column("question", sa.JSON()),
        sa.Column("log", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_linear_session"),
    )
    op.create_index("ix_linear_session_issue", "linear_session", ["issue_id", "created_at"])
    op.create_index("ix_linear_session_created", "linear_session", ["created_at"])
    is_open = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_linear_session_open", "linear_session", ["task_id"], sqlite_where=is_open, postgresql_where=is_open
    )


def _create_inbox() -> None:
    op.create_table(
        "inbox",
        sa.Column("id", Serial, nullable=False, autoincrement=True),
        sa.Column("delivery_id", sa.Text()),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("not_before", sa.BigInteger()),
        sa.Column("processed_at", sa.BigInteger()),
        sa.Column("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_inbox"),
        sa.UniqueConstraint("delivery_id", name="uq_inbox_delivery_id"),
        sa.UniqueConstraint("key", name="uq_inbox_key"),
        sqlite_autoincrement=True,
    )
    is_open = sa.text("processed_at IS NULL")
    op.create_index("ix_inbox_unprocessed", "inbox", ["id"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_index("ix_inbox_received", "inbox", ["received_at"])


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", Serial, nullable=False, autoincrement=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="waiting"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("not_before", sa.BigInteger()),
        sa.Column("settled_at", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("key", name="uq_outbox_key"),
        sqlite_autoincrement=True,
    )
    is_waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_outbox_waiting", "outbox", ["session_id", "id"], sqlite_where=is_waiting, postgresql_where=is_waiting
    )
    op.create_index("ix_outbox_settled", "outbox", ["settled_at"])
