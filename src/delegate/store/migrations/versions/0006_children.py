"""Tasks that agents submit."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("task", sa.Column("submitted_by", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("root_id", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("generation", sa.Integer(), server_default="0", nullable=False))
    where = sa.text("submitted_by IS NOT NULL")
    op.create_index("ix_task_submitted_by", "task", ["submitted_by"], sqlite_where=where, postgresql_where=where)
    op.create_index("ix_task_root", "task", ["root_id"], sqlite_where=where, postgresql_where=where)
