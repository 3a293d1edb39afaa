"""What it costs to fire one schedule among 10, and among 10,000."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
from sqlalchemy import create_engine

from bench.measure import Row, beside, progress
from bench.product import workplace
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.intake.firing import fire_due
from delegate.model import new_schedule_id
from delegate.schedule.model import Schedule, ScheduleState, Timing
from delegate.store.database import Database, open_database
from delegate.store.schedules import insert_schedule
from delegate.store.schema import prepare

SMALL, LARGE = 10, 10_000
FIRINGS = 200
MOST = 1.3
TEMPLATE: dict[str, object] = {
    "prompt": "true",
    "agent": "shell",
    "workingDirectory": "/",
    "machine": "bench",
}


def rows() -> list[Row]:
    with workplace() as place:
        return [anyio.run(compare, place)]


async def compare(place: Path) -> Row:
    now = datetime.now(UTC)
    async with AsyncExitStack() as stack:
        databases = []
        for size in (SMALL, LARGE):
            progress(f"firing: {size:,} schedules")
            databases.append(await stack.enter_async_context(filled(place / str(size), size, now)))
        small, large = await timed(databases, now)
    return beside(f"firing one of {LARGE:,} schedules", large, small, f"one of {SMALL}", MOST)


def filled(place: Path, size: int, now: datetime) -> AbstractAsyncContextManager[Database]:
    """Many schedules for later, and one that is due in each of the seconds that are measured."""
    home = Home(place)
    place.mkdir()
    prepare(home, url="", now=now)
    engine = create_engine(f"sqlite:///{home.database}")
    with engine.begin() as connection:
        for number in range(FIRINGS):
            insert_schedule(connection, schedule(now + timedelta(seconds=number), now), trigger_key=None)
        for _ in range(size - 1):
            insert_schedule(connection, schedule(now + timedelta(days=365), now), trigger_key=None)
    engine.dispose()
    return open_database(path=home.database)


def schedule(at: datetime, now: datetime) -> Schedule:
    return Schedule(
        id=new_schedule_id(),
        state=ScheduleState.ACTIVE,
        timing=Timing(at=at),
        request=TEMPLATE,
        created_at=now,
        reckoned_at=now,
        next_run_at=at,
    )


async def timed(databases: Sequence[Database], now: datetime) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in databases]
    settings = Settings()
    for number in range(FIRINGS):
        for database, taken in zip(databases, samples, strict=True):
            began = time.perf_counter()
            done = await fire_due(database, settings, now + timedelta(seconds=number))
            taken.append(time.perf_counter() - began)
            assert len(done.fired) == 1
    return samples
