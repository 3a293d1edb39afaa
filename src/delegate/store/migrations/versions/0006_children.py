"""Tasks that agents submit."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("task", sa.Column("submitted_by", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("root_id", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("generation", sa.Integer(), server_default="0", nullable=False))
    is_open = sa.text("submitted_by IS NOT NULL AND state IN ('blocked', 'queued', 'running', 'waiting')")
    op.create_index("ix_task_open_child", "task", ["submitted_by"], sqlite_where=is_open, postgresql_where=is_open)
    has_root = sa.text("root_id IS NOT NULL")
    op.create_index("ix_task_root", "task", ["root_id"], sqlite_where=has_root, postgresql_where=has_root)
