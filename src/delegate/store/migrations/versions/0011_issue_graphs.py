"""Tasks wait for issues; sessions about sub-issues belong to that of their parent; edits are told once."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("task", sa.Column("blockers", sa.JSON(), nullable=True))
    waits = sa.text("state = 'blocked' AND blockers IS NOT NULL")
    op.create_index("ix_task_blockers", "task", ["seq"], sqlite_where=waits, postgresql_where=waits)
    op.add_column("linear_session", sa.Column("parent_id", sa.Text(), nullable=True))
    op.add_column("linear_session", sa.Column("text_hash", sa.Text(), nullable=True))
    has_parent = sa.text("parent_id IS NOT NULL")
    op.create_index(
        "ix_linear_session_parent",
        "linear_session",
        ["parent_id"],
        sqlite_where=has_parent,
        postgresql_where=has_parent,
    )
