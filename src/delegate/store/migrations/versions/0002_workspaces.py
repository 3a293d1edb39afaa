"""Workspaces: what a task works on, what came of it, and what its attempts left for the next."""

import sqlalchemy as sa
from alembic import op

from delegate.store.migrations.triggers import final_tasks_may_change

revision = "0002"
down_revision = "0001"


def serial() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False)


def extend_task() -> None:
    op.add_column("task", sa.Column("mode", sa.Text(), server_default="in_place", nullable=False))
    op.add_column("task", sa.Column("repository", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("base", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("title", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("issue", sa.JSON(), nullable=True))
    op.add_column("task", sa.Column("context", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("choices", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("task", sa.Column("lineage", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("result", sa.JSON(), nullable=True))
    with final_tasks_may_change():
        op.execute("UPDATE task SET lineage = parent_task_id")
    op.create_index(
        "ix_task_lineage",
        "task",
        ["lineage"],
        unique=False,
        sqlite_where=sa.text("lineage IS NOT NULL"),
        postgresql_where=sa.text("lineage IS NOT NULL"),
    )


def create_effect() -> None:
    op.create_table(
        "effect",
        serial(),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expected", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_effect_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effect")),
        sa.UniqueConstraint("task_id", "kind", "target", "fence", name=op.f("uq_effect_task_id")),
        sqlite_autoincrement=True,
    )


def create_checkpoint() -> None:
    op.create_table(
        "checkpoint",
        serial(),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_checkpoint_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_checkpoint_task", "checkpoint", ["task_id", "id"], unique=False)


def create_change() -> None:
    op.create_table(
        "change",
        serial(),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("base_commit", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("patch", sa.Text(), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_change_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_change_task", "change", ["task_id", "id"], unique=False)


def upgrade() -> None:
    extend_task()
    create_effect()
    create_checkpoint()
    create_change()
    op.add_column("runner", sa.Column("problem", sa.Text(), nullable=True))
