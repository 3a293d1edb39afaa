"""Schedules that become active again when the clock was ahead."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("schedule", sa.Column("reopens_as", sa.Text(), nullable=True))
