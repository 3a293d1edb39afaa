"""What a page of 100 tasks costs among 1,000 tasks, and among 100,000."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio

from bench.claim import LARGE, RULES, SMALL, filled
from bench.measure import Row, beside, progress
from bench.product import workplace
from delegate.queue.waiting import read_snapshot
from delegate.store.database import Database
from delegate.store.tasks import page_of_tasks

PAGES = 100
PAGE = 100
MOST = 2.0


def rows() -> list[Row]:
    with workplace() as place:
        return [anyio.run(compare, place)]


async def compare(place: Path) -> Row:
    async with AsyncExitStack() as stack:
        databases = []
        for size in (SMALL, LARGE):
            progress(f"pages: {size:,} tasks")
            databases.append(await stack.enter_async_context(filled(place / str(size), "", size)))
        small, large = await timed(databases)
    return beside(f"page of {PAGE} among {LARGE:,} tasks", large, small, f"among {SMALL:,}", MOST)


async def timed(databases: Sequence[Database]) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in databases]
    for _ in range(PAGES):
        for database, taken in zip(databases, samples, strict=True):
            began = time.perf_counter()
            found = await database.read(partial(page_of_tasks, states=[], before=None, limit=PAGE))
            tasks = [task for _, task in found]
            await database.read(partial(read_snapshot, tasks=tasks, rules=RULES, now=datetime.now(UTC)))
            taken.append(time.perf_counter() - began)
            assert len(found) == PAGE
    return samples
