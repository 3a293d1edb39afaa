"""Tasks, attempts, events, output, runners and messages."""

import sqlalchemy as sa
from alembic import op

from delegate.store.migrations.triggers import final_rows_never_change

revision = "0001"
down_revision = None


def create_relay() -> None:
    op.create_table(
        "relay",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_relay")),
    )


def create_runner() -> None:
    op.create_table(
        "runner",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("agents", sa.JSON(), nullable=False),
        sa.Column("parked", sa.JSON(), server_default="{}", nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runner")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_runner_token_hash")),
    )


def create_task() -> None:
    op.create_table(
        "task",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("trigger_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("effort", sa.Text(), nullable=True),
        sa.Column("permission_mode", sa.Text(), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("working_directory", sa.Text(), nullable=True),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_output", sa.BigInteger(), nullable=False),
        sa.Column("max_budget_usd", sa.Float(), nullable=True),
        sa.Column("max_turns", sa.Integer(), nullable=True),
        sa.Column("rerun", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("parent_task_id", sa.Text(), nullable=True),
        sa.Column("retry_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("usage", sa.JSON(), server_default="{}", nullable=False),
        sa.CheckConstraint(
            "state IN ('blocked', 'queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_task_state"),
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_task")),
        sa.UniqueConstraint("id", name=op.f("uq_task_id")),
        sa.UniqueConstraint("trigger_key", name=op.f("uq_task_trigger_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_finished_at", "task", ["finished_at"], unique=False)
    op.create_index(
        "ix_task_queued",
        "task",
        ["lane", "priority", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index("ix_task_state", "task", ["state", "seq"], unique=False)


def create_attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("runner_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("renewed_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("next_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("messages_seen", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("budget_usd", sa.Float(), nullable=True),
        sa.Column("cost_usd", sa.Float(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("output_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("truncated_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("usage", sa.JSON(), server_default="{}", nullable=False),
        sa.CheckConstraint(
            "state IN ('running', 'completed', 'failed', 'cancelled', 'released', 'lost')",
            name=op.f("ck_attempt_state"),
        ),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_attempt_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("claim_id", name=op.f("uq_attempt_claim_id")),
        sa.UniqueConstraint("task_id", "fence", name=op.f("uq_attempt_task_id")),
    )
    op.create_index("ix_attempt_finished_at", "attempt", ["finished_at"], unique=False)
    op.create_index(
        "ix_attempt_lease",
        "attempt",
        ["renewed_at"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "ix_attempt_runner",
        "attempt",
        ["runner_id"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "uq_attempt_holder",
        "attempt",
        ["task_id"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )


def create_event() -> None:
    op.create_table(
        "event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_event_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sa.UniqueConstraint("attempt_id", "seq", name=op.f("uq_event_attempt_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_event_task", "event", ["task_id", "id"], unique=False)


def create_message() -> None:
    op.create_table(
        "message",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("trigger_key", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_message_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_message")),
        sa.UniqueConstraint("trigger_key", name=op.f("uq_message_trigger_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_message_task", "message", ["task_id", "id"], unique=False)


def create_output() -> None:
    op.create_table(
        "output",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_output_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_output")),
        sa.UniqueConstraint("attempt_id", "offset", name=op.f("uq_output_attempt_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_output_task", "output", ["task_id", "id"], unique=False)


def upgrade() -> None:
    create_relay()
    create_runner()
    create_task()
    create_attempt()
    create_event()
    create_message()
    create_output()
    for statement in final_rows_never_change(op.get_bind().dialect.name):
        op.execute(statement)
