"""Deletes old tasks, schedules, output and runners."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

from delegate.config.settings import Settings
from delegate.store.database import Connection, Database
from delegate.store.people import delete_old_audit
from delegate.store.retention import (
    drop_ended_before,
    drop_oldest_output,
    drop_runs_above,
    drop_runs_before,
    drop_schedules_ended_before,
    output_total,
)
from delegate.store.runners import delete_silent_runners

log = logging.getLogger(__name__)
RUNNER_FORGOTTEN_AFTER = timedelta(days=7)
AUDIT_KEPT = timedelta(days=365)
RUNS_PER_STEP = 1_000
RUNS_MAX = 10_000  # of one schedule: a week of one that is due every minute
TASKS_PER_STEP = 10  # per transaction; a task may have 10 MiB of output, and other writers must get their turn


async def retain(database: Database, settings: Settings, now: datetime) -> int:
    """Delete what is too old, then the oldest output above the limit; returns the number of tasks affected."""
    oldest_kept = now - timedelta(days=settings.retention_days)
    touched = 0
    while count := await database.write(
        "retain.age", lambda connection: drop_ended_before(connection, oldest_kept, TASKS_PER_STEP)
    ):
        touched += count
    await _retain_schedules(database, oldest_kept)
    while count := await database.write("retain.size", lambda connection: _drop_excess(connection, settings)):
        touched += count
    while await database.write("retain.audit", partial(delete_old_audit, before=now - AUDIT_KEPT, limit=RUNS_PER_STEP)):
        pass
    silent_since = now - RUNNER_FORGOTTEN_AFTER
    await database.write(
        "retain.runners", lambda connection: delete_silent_runners(connection, silent_since=silent_since)
    )
    if touched:
        log.info("old tasks dropped", extra={"count": touched})
    return touched


async def _retain_schedules(database: Database, oldest_kept: datetime) -> None:
    for drop in (drop_schedules_ended_before, drop_runs_before):
        while await database.write("retain.schedules", partial(drop, cutoff=oldest_kept, limit=RUNS_PER_STEP)):
            pass
    while await database.write(
        "retain.schedules", lambda connection: drop_runs_above(connection, RUNS_MAX, RUNS_PER_STEP)
    ):
        pass


def _drop_excess(connection: Connection, settings: Settings) -> int:
    excess = output_total(connection) - settings.retention_bytes
    return drop_oldest_output(connection, excess, TASKS_PER_STEP) if excess > 0 else 0
