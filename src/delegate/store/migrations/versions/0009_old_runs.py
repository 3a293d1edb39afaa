"""Old runs of schedules are found by their time."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_index("ix_schedule_run_at", "schedule_run", ["at"])
