"""The database without a relay: a look for a command that has just stopped it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, exc, or_, select

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.model import Task
from delegate.states import AttemptState
from delegate.store.database import is_postgres, postgres_engine, sqlite_engine, translated
from delegate.store.tables import attempt, has_state, task
from delegate.store.tasks import to_task


def tasks_at_work_since(settings: Settings, moment: datetime) -> Sequence[Task]:
    """Those with an attempt that still runs, or that ended at that moment or later. Blocks."""
    path, url = Home(settings.home).database, settings.database_url
    if not is_postgres(url) and not path.exists():
        return []
    engine = postgres_engine(url) if is_postgres(url) else sqlite_engine(path, begin="BEGIN")
    try:
        with engine.connect() as connection:
            return at_work_since(connection, moment)
    except exc.DBAPIError as error:
        raise translated(error) from error
    finally:
        engine.dispose()


def at_work_since(connection: Connection, moment: datetime) -> Sequence[Task]:
    is_concerned = or_(has_state(attempt, AttemptState.RUNNING), attempt.c.finished_at >= moment)
    concerned = select(attempt.c.task_id).where(is_concerned)
    rows = connection.execute(select(task).where(task.c.id.in_(concerned)).order_by(task.c.created_at, task.c.id))
    return [to_task(row) for row in rows]
