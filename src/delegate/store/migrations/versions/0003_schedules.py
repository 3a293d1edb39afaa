"""Dependencies, schedules and questions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def extend_task() -> None:
    op.add_column("task", sa.Column("depends_on", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("task", sa.Column("on_dependency_failure", sa.Text(), server_default="cancel", nullable=False))
    op.add_column("task", sa.Column("depth", sa.Integer(), server_default="0", nullable=False))
    op.add_column("task", sa.Column("continue_from", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("schedule_id", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("questions", sa.JSON(), server_default="[]", nullable=False))


def extend_attempt() -> None:
    op.add_column("attempt", sa.Column("ask_hash", sa.Text(), nullable=True))
    where = sa.text("ask_hash IS NOT NULL")
    op.create_index("ix_attempt_ask", "attempt", ["ask_hash"], sqlite_where=where, postgresql_where=where)


def create_dependency() -> None:
    op.create_table(
        "dependency",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("depends_on", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_dependency_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "depends_on", name=op.f("pk_dependency")),
    )
    op.create_index("ix_dependency_depends_on", "dependency", ["depends_on"])


def create_schedule() -> None:
    op.create_table(
        "schedule",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("trigger_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=True),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("missed_run_policy", sa.Text(), server_default="skip", nullable=False),
        sa.Column("max_runs", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("after_id", sa.Text(), nullable=True),
        sa.Column("delay_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("runs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_run_at", sa.BigInteger(), nullable=True),
        sa.Column("reckoned_at", sa.BigInteger(), nullable=False),
        sa.Column("last_run_at", sa.BigInteger(), nullable=True),
        sa.Column("last_task_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('active', 'paused', 'completed', 'expired', 'failed', 'cancelled')",
            name=op.f("ck_schedule_state"),
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_schedule")),
        sa.UniqueConstraint("id", name=op.f("uq_schedule_id")),
        sa.UniqueConstraint("trigger_key", name=op.f("uq_schedule_trigger_key")),
        sqlite_autoincrement=True,
    )
    active, follows = sa.text("state = 'active'"), sa.text("after_id IS NOT NULL")
    op.create_index(
        "ix_schedule_due", "schedule", ["state", "next_run_at"], sqlite_where=active, postgresql_where=active
    )
    op.create_index("ix_schedule_state", "schedule", ["state", "seq"])
    op.create_index("ix_schedule_after", "schedule", ["after_id"], sqlite_where=follows, postgresql_where=follows)


def create_schedule_run() -> None:
    op.create_table(
        "schedule_run",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("occurrence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("missed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedule.id"], name=op.f("fk_schedule_run_schedule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_run")),
        sa.UniqueConstraint("schedule_id", "occurrence", name=op.f("uq_schedule_run_schedule_id")),
        sqlite_autoincrement=True,
    )
    where = sa.text("task_id IS NOT NULL")
    op.create_index("ix_schedule_run_task", "schedule_run", ["task_id"], sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    extend_task()
    extend_attempt()
    create_dependency()
    create_schedule()
    create_schedule_run()
