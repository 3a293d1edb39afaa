"""The single writer of SQLite, the many of PostgreSQL, and their failures."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import OperationalError
from tests.both_databases.scene import NOON, Scene
from tests.databases import Place, run

from delegate.config.paths import Home
from delegate.errors import DamagedDatabase, DiskFull, StaleFence, StoreBusy
from delegate.states import TaskState
from delegate.store import database as database_module
from delegate.store.database import (
    BATCH_MAX,
    POSTGRES_WRITERS,
    READERS,
    Connection,
    Database,
    Job,
    commit_batch,
    open_database,
    sqlite_engine,
)
from delegate.store.schema import prepare
from delegate.store.tables import relay
from delegate.store.tasks import count_by_state

pytestmark = pytest.mark.anyio


def writing(name: str) -> Callable[[Connection], object]:
    """A job that writes one row."""
    return lambda connection: connection.execute(insert(relay).values(name=name, seen_at=NOON))


def names(connection: Connection) -> list[str]:
    return sorted(connection.execute(select(relay.c.name)).scalars())


async def test_the_journal_is_truncated_by_the_writer_between_its_commits(tmp_path: Path) -> None:
    prepare(Home(tmp_path), url="", now=datetime.now(UTC))
    journal = tmp_path / f"{Home(tmp_path).database.name}-wal"
    async with open_database(path=Home(tmp_path).database, url="") as database:
        await database.write("one", writing("one"))
        before = journal.stat().st_size
        with database.engine.connect() as reader:
            reader.execute(select(relay.c.name)).all()
            await database.write("two", writing("two"))
            assert not await database.truncate_journal()
        done: list[bool] = []

        async def truncate() -> None:
            done.append(await database.truncate_journal())

        async with anyio.create_task_group() as group:
            group.start_soon(truncate)
            for number in range(20):
                group.start_soon(database.write, "more", writing(f"more-{number}"))
        assert await database.truncate_journal()

        assert before > 0
        assert journal.stat().st_size == 0
        assert len(await database.read(names)) == 22


async def test_every_write_of_a_storm_is_answered_and_stored(database: Database) -> None:
    wanted = [f"{number:03d}" for number in range(3 * BATCH_MAX)]

    async with anyio.create_task_group() as group:
        for name in wanted:
            group.start_soon(database.write, "storm", writing(name))

    assert await database.read(names) == wanted


async def test_a_write_that_was_answered_is_seen_by_every_reader(place: Place, database: Database) -> None:
    await database.write("one", writing("one"))

    async with open_database(path=place.home.database, url=place.url) as other:
        assert await other.read(names) == ["one"]


async def test_a_write_whose_caller_has_gone_is_made_all_the_same(database: Database) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await database.write("abandoned", writing("abandoned"))
    await database.write("after", writing("after"))

    assert await database.read(names) in (["abandoned", "after"], ["after"])


async def test_a_defect_in_one_job_reaches_only_its_own_caller(database: Database) -> None:
    failures = []

    def broken(connection: Connection) -> None:
        writing("broken")(connection)
        raise ZeroDivisionError

    async def try_it() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            await database.write("broken", broken)
        failures.append(caught)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(database.write, "good", writing(f"good-{number}"))
            group.start_soon(try_it)

    assert len(failures) == 4
    assert await database.read(names) == [f"good-{number}" for number in range(4)]


async def test_a_full_disk_is_said_and_costs_nothing_that_was_accepted(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepare(home, url="", now=datetime.now(UTC))
    async with open_database(path=home.database) as database:
        scene = Scene(database)
        kept = [await scene.submit() for _ in range(3)]
        await limit_pages(database, 0)

        with pytest.raises(DiskFull):
            await scene.submit("x" * 200_000)
        await limit_pages(database, 1_000_000)
        kept.append(await scene.submit("x" * 200_000))

        assert await database.read(count_by_state) == {TaskState.QUEUED: len(kept)}
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_on_a_full_disk_every_job_of_a_batch_reports_the_failure(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepare(home, url="", now=datetime.now(UTC))
    async with open_database(path=home.database) as database:
        scene = Scene(database)
        await limit_pages(database, 60)
        accepted: list[str] = []

        async def submit(number: int) -> None:
            with suppress(DiskFull):
                accepted.append((await scene.submit("x" * 20_000, request_key=str(number))).id)

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(submit, number)

        stored = await database.read(count_by_state)
        assert stored.get(TaskState.QUEUED, 0) == len(accepted) < 50


async def limit_pages(database: Database, pages: int) -> None:
    """The file may grow to this many pages (to no more than it has, if they are fewer), as if the disk were full."""
    await database.write("limit", lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages or 1}"))


async def test_a_file_that_breaks_while_it_is_in_use_is_called_damaged(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepare(home, url="", now=datetime.now(UTC))
    async with open_database(path=home.database) as database:
        await database.write("one", writing("one"))
        home.database.write_bytes(b"\xff" * home.database.stat().st_size)

        with pytest.raises(DamagedDatabase):
            await database.read(names)


@pytest.mark.real
async def test_a_deadlock_of_two_jobs_is_solved_by_doing_one_again(prepared_postgres_url: str) -> None:
    run(prepared_postgres_url, "DELETE FROM relay")
    meeting = threading.Barrier(2)

    def crossing(first: str, second: str) -> Callable[[Connection], int]:
        tries: list[str] = []

        def work(connection: Connection) -> int:
            tries.append(first)
            connection.execute(update(relay).where(relay.c.name == first).values(seen_at=NOON))
            if len(tries) == 1:
                meeting.wait(5)
            connection.execute(update(relay).where(relay.c.name == second).values(seen_at=NOON))
            return len(tries)

        return work

    tries = []
    async with open_database(path=Path(), url=prepared_postgres_url) as database:
        await database.write("a", writing("a"))
        await database.write("b", writing("b"))

        async def cross(first: str, second: str) -> None:
            tries.append(await database.write("cross", crossing(first, second)))

        async with anyio.create_task_group() as group:
            group.start_soon(cross, "a", "b")
            group.start_soon(cross, "b", "a")

    assert len(tries) == 2
    assert max(tries) > 1


@pytest.mark.real
async def test_a_lost_connection_is_replaced_by_a_new_one(prepared_postgres_url: str) -> None:
    async with open_database(path=Path(), url=prepared_postgres_url) as database:
        await database.read(names)
        run(
            prepared_postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

        assert await database.read(names) is not None


@pytest.mark.real
async def test_a_connection_lost_in_the_middle_means_try_again_later(prepared_postgres_url: str) -> None:
    async with open_database(path=Path(), url=prepared_postgres_url) as database:
        with pytest.raises(StoreBusy) as caught:
            await database.read(lambda c: c.execute(text("SELECT pg_terminate_backend(pg_backend_pid())")).scalar_one())

    assert caught.value.retry_after == 1


async def test_a_refusal_based_on_another_jobs_lost_write_is_not_reported(tmp_path: Path) -> None:
    """One batch: the second job refuses because of what the first has written, then the disk is full."""
    home = Home(tmp_path)
    prepare(home, url="", now=datetime.now(UTC))
    engine = sqlite_engine(home.database, begin="BEGIN IMMEDIATE")
    batch = [Job(name="first", work=writing("first")), Job(name="second", work=refusing), Job(name="third", work=full)]

    with engine.connect() as connection:
        commit_batch(connection, batch)
        stored = names(connection)
    engine.dispose()

    assert [type(job.error) for job in batch] == [DiskFull, DiskFull, DiskFull]
    assert stored == []


def refusing(connection: Connection) -> object:
    raise StaleFence(attempt_id="one", fence=len(names(connection)))


def full(connection: Connection) -> object:
    """On a full disk SQLite rolls the whole transaction back by itself."""
    connection.exec_driver_sql("ROLLBACK")
    raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


@pytest.mark.real
@pytest.mark.promise("P8")
@pytest.mark.parametrize(("kind", "count"), [("read", READERS), ("write", POSTGRES_WRITERS)])
async def test_a_job_waits_for_a_connection_only_for_a_while(
    prepared_postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    monkeypatch.setattr(database_module, "QUEUE_TIMEOUT", 0.1)
    started, finish = threading.Semaphore(0), threading.Event()

    def occupy(_: Connection) -> None:
        started.release()
        finish.wait(60)

    async with open_database(path=Path(), url=prepared_postgres_url) as database:
        start = partial(database.write, "queue") if kind == "write" else database.read
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(start, occupy)
            for _ in range(count):
                await anyio.to_thread.run_sync(started.acquire)

            try:
                with anyio.fail_after(30), pytest.raises(StoreBusy, match="all connections are in use"):
                    await start(names)
            finally:
                finish.set()
