"""Defines the triggers that prevent changes to final rows, in both dialects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import op

FINAL_TASKS = "'cancelled', 'completed', 'failed'"
# Separate statements: a driver sends one at a time.
SQLITE_TASK = f"""CREATE TRIGGER task_final BEFORE UPDATE ON task WHEN old.state IN ({FINAL_TASKS})
BEGIN SELECT RAISE(ABORT, 'final task rows never change'); END"""
SQLITE = (
    SQLITE_TASK,
    """CREATE TRIGGER attempt_final BEFORE UPDATE ON attempt WHEN old.state <> 'running'
BEGIN SELECT RAISE(ABORT, 'final attempt rows never change'); END""",
)
POSTGRESQL = (
    """CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'final rows of % never change', TG_TABLE_NAME; END $$""",
    f"""CREATE TRIGGER task_final BEFORE UPDATE ON task FOR EACH ROW
WHEN (old.state IN ({FINAL_TASKS})) EXECUTE FUNCTION refuse_change()""",
    """CREATE TRIGGER attempt_final BEFORE UPDATE ON attempt FOR EACH ROW
WHEN (old.state <> 'running') EXECUTE FUNCTION refuse_change()""",
)


def final_rows_never_change(dialect: str) -> tuple[str, ...]:
    return SQLITE if dialect == "sqlite" else POSTGRESQL


@contextmanager
def final_tasks_may_change() -> Iterator[None]:
    """Allow changes to final tasks while a migration fills a new column."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER task_final")
        yield
        op.execute(SQLITE_TASK)
    else:
        op.execute("ALTER TABLE task DISABLE TRIGGER task_final")
        yield
        op.execute("ALTER TABLE task ENABLE TRIGGER task_final")
