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


# A purge sets purged_at, once, and removes texts; what happened stays.
IS_NO_PURGE = """(old.purged_at IS NOT NULL OR new.purged_at IS NULL OR new.state <> old.state
OR new.fence <> old.fence OR new.finished_at <> old.finished_at)"""
PURGE_SQLITE = (
    "DROP TRIGGER task_final",
    "DROP TRIGGER attempt_final",
    f"""CREATE TRIGGER task_final BEFORE UPDATE ON task WHEN old.state IN ({FINAL_TASKS}) AND {IS_NO_PURGE}
BEGIN SELECT RAISE(ABORT, 'final task rows never change'); END""",
    f"""CREATE TRIGGER attempt_final BEFORE UPDATE ON attempt WHEN old.state <> 'running' AND {IS_NO_PURGE}
BEGIN SELECT RAISE(ABORT, 'final attempt rows never change'); END""",
)
PURGE_POSTGRESQL = (
    "DROP TRIGGER task_final ON task",
    "DROP TRIGGER attempt_final ON attempt",
    f"""CREATE TRIGGER task_final BEFORE UPDATE ON task FOR EACH ROW
WHEN (old.state IN ({FINAL_TASKS}) AND {IS_NO_PURGE}) EXECUTE FUNCTION refuse_change()""",
    f"""CREATE TRIGGER attempt_final BEFORE UPDATE ON attempt FOR EACH ROW
WHEN (old.state <> 'running' AND {IS_NO_PURGE}) EXECUTE FUNCTION refuse_change()""",
)
AUDIT_SQLITE = """CREATE TRIGGER audit_final BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows never change'); END"""
AUDIT_POSTGRESQL = """CREATE TRIGGER audit_final BEFORE UPDATE ON audit FOR EACH ROW
EXECUTE FUNCTION refuse_change()"""


def allow_purge() -> None:
    for statement in PURGE_SQLITE if op.get_bind().dialect.name == "sqlite" else PURGE_POSTGRESQL:
        op.execute(statement)


def audit_never_changes() -> None:
    op.execute(AUDIT_SQLITE if op.get_bind().dialect.name == "sqlite" else AUDIT_POSTGRESQL)


@contextmanager
def final_tasks_may_change() -> Iterator[None]:
    """Allow changes to final tasks while a migration fills a new column."""
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        [statement] = bind.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'task_final'").one()
        op.execute("DROP TRIGGER task_final")
        yield
        op.execute(statement)
    else:
        op.execute("ALTER TABLE task DISABLE TRIGGER task_final")
        yield
        op.execute("ALTER TABLE task ENABLE TRIGGER task_final")
