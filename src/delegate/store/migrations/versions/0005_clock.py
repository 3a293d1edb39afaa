"""Schedules that open again after a clock was ahead, leases that the relay extends once, and when tasks can start."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("task", sa.Column("claimable_at", sa.BigInteger(), nullable=True))
    op.add_column("attempt", sa.Column("is_extended", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("schedule", sa.Column("reopens_as", sa.Text(), nullable=True))
