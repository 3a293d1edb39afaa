"""Reads the database without a relay, for a command that has just stopped it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, exc, or_, select

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.model import Task
from delegate.states import AttemptState
from delegate.store.database import is_postgres, postgres_engine, sqlite_engine, translate_error
from delegate.store.tables import attempt, has_state, task
from delegate.store.tasks import to_task


def read_tasks_running_since(settings: Settings, since: datetime) -> Sequence[Task]:
    """Return tasks with an attempt that is running or ended at `since` or later. Blocks."""
    path, url = Home(settings.home).database, settings.database_url
    if not is_postgres(url) and not path.exists():
        return []
    engine = postgres_engine(url) if is_postgres(url) else sqlite_engine(path, begin="BEGIN")
    try:
        with engine.connect() as connection:
            return tasks_running_since(connection, since)
    except exc.DBAPIError as error:
        raise translate_error(error) from error
    finally:
        engine.dispose()


def tasks_running_since(connection: Connection, since: datetime) -> Sequence[Task]:
    is_concerned = or_(has_state(attempt, AttemptState.RUNNING), attempt.c.finished_at >= since)
    concerned = select(attempt.c.task_id).where(is_concerned)
    rows = connection.execute(select(task).where(task.c.id.in_(concerned)).order_by(task.c.created_at, task.c.id))
    return [to_task(row) for row in rows]
