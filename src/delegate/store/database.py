"""Runs reads and writes on the relay's database, and translates its errors.

SQLite has one writer. Jobs that arrive during a commit are committed together, and one that fails does not affect the
others; separate connections would sleep at BEGIN IMMEDIATE. PostgreSQL uses a connection and a transaction per job.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
from anyio import CapacityLimiter, lowlevel, to_thread
from sqlalchemy import Connection as Connection  # the argument of the functions that `read` and `write` run
from sqlalchemy import Engine, create_engine, event, exc

from delegate.errors import DamagedDatabase, DiskFull, Refused, StoreBusy
from delegate.failpoints import failpoint

log = logging.getLogger(__name__)
T = TypeVar("T")
BATCH_MAX = 64  # jobs in one commit; more would let a burst delay the first of them
# Turns of the event loop before a commit, if the previous one had several jobs: their callers often send the next
# ones, and requests that are being parsed can still join the commit.
GATHER_TURNS = 2
READERS = 8
POSTGRES_WRITERS = 8
CONNECT_TIMEOUT = 5  # seconds for PostgreSQL to accept a connection
RESPONSE_TIMEOUT = 5.0  # seconds for PostgreSQL to respond to one statement; each does a bounded piece of work
QUEUE_TIMEOUT = 5.0  # seconds that a job waits for a connection: those before it may wait for a server that hangs
BUSY_TIMEOUT_MS = 10_000  # another process may hold the file for a backup
TRUNCATE_TIMEOUT_MS = 500  # for readers to leave the journal; all writes wait meanwhile
# Serialization failure and deadlock: the job succeeds when repeated. Unique violation: another job wrote the same key
# first, and the repeated job finds its row.
RETRIED_STATES = {"40001", "40P01", "23505"}
JOB_TRIES = 5


@dataclass(slots=True)
class Job(Generic[T]):
    name: str
    work: Callable[[Connection], T]
    done: anyio.Event = field(default_factory=anyio.Event)
    result: T | None = None
    error: BaseException | None = None


class Database:
    """Opened with `open_database`; `read` and `write` run a function with a connection, off the event loop."""

    def __init__(self, engine: Engine, writer: Engine | None) -> None:
        self.engine = engine
        self._writer = writer
        self._jobs: list[Job[Any]] = []
        self._truncations: list[Job[bool]] = []
        self._arrived = anyio.Event()
        self._readers = CapacityLimiter(READERS)
        self._writers = CapacityLimiter(POSTGRES_WRITERS)

    @property
    def is_sqlite(self) -> bool:
        return self._writer is not None

    async def read(self, work: Callable[[Connection], T]) -> T:
        if self._writer is None:
            return await _run_bounded(self._readers, self._read, work)
        return await to_thread.run_sync(self._read, work, limiter=self._readers)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self.engine.connect() as connection:
                return work(connection)
        except exc.DBAPIError as error:
            raise translate_error(error) from error

    async def write(self, name: str, work: Callable[[Connection], T]) -> T:
        """Commit `work`; when this returns, the change is on disk. `name` is the failpoint around the commit."""
        if self._writer is None:
            return await _run_bounded(self._writers, self._write_alone, name, work)
        job = Job(name=name, work=work)
        self._jobs.append(job)
        self._arrived.set()
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]  # set whenever there is no error

    def _write_alone(self, name: str, work: Callable[[Connection], T]) -> T:
        for remaining in reversed(range(JOB_TRIES)):
            try:
                with self.engine.begin() as connection:
                    result = work(connection)
                    failpoint(f"{name}.before")
                failpoint(f"{name}.after")
                return result
            except exc.DBAPIError as error:
                if remaining and getattr(error.orig, "sqlstate", None) in RETRIED_STATES:
                    continue
                raise translate_error(error) from error
        raise AssertionError("unreachable: the last try returns or raises")

    async def truncate_journal(self) -> bool:
        """Empty SQLite's journal, which still has what was overwritten in the file. False: a reader was in its way."""
        if self._writer is None:
            return True
        job = Job(name="truncate", work=truncate_journal)
        self._truncations.append(job)
        self._arrived.set()
        await job.done.wait()
        return job.result is True

    async def commit_forever(self) -> None:
        """Run the only SQLite writer: commit all waiting jobs together, then wake their callers."""
        assert self._writer is not None
        writer = self._writer
        gathering = 0
        with writer.connect() as connection:
            while True:
                await self._arrived.wait()
                for _ in range(gathering):
                    await lowlevel.checkpoint()
                batch, self._jobs = self._jobs[:BATCH_MAX], self._jobs[BATCH_MAX:]
                if not self._jobs:
                    self._arrived = anyio.Event()
                with anyio.CancelScope(shield=True):  # a batch that has started is committed and its callers are woken
                    await to_thread.run_sync(commit_batch, connection, batch)
                    truncations, self._truncations = self._truncations, []
                    for truncation in truncations:
                        truncation.result = await to_thread.run_sync(truncation.work, connection)
                for job in (*batch, *truncations):
                    job.done.set()
                gathering = GATHER_TURNS if len(batch) > 1 else 0


async def _run_bounded(limiter: CapacityLimiter, work: Callable[..., T], *arguments: object) -> T:
    """Run it in a thread. Only the wait for the thread is cancelled; what has started ends by its own limits."""
    try:
        with anyio.fail_after(QUEUE_TIMEOUT):
            return await to_thread.run_sync(work, *arguments, limiter=limiter)
    except TimeoutError:
        raise StoreBusy(why="all connections are in use", retry_after=1) from None


def truncate_journal(connection: Connection) -> bool:
    """For the writer's connection only: in many versions of SQLite, a checkpoint by another one can lose a commit."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout={TRUNCATE_TIMEOUT_MS}")
        [is_busy, *_] = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    return not is_busy


def commit_batch(connection: Connection, batch: list[Job[Any]]) -> None:
    try:
        with connection.begin():
            if not _run_without_savepoints(connection, batch):
                for job in batch:
                    _run_in_savepoint(connection, job)
            for job in batch:
                failpoint(f"{job.name}.before")
    except (exc.DBAPIError, OSError) as error:
        # The commit failed: nothing of the batch is on disk.
        failure = translate_error(error) if isinstance(error, exc.DBAPIError) else DiskFull(why=error)
        for job in batch:
            job.error = failure  # even if it was refused: the cause may have been rolled back, too
        return
    for job in batch:
        failpoint(f"{job.name}.after")


def _run_without_savepoints(connection: Connection, batch: list[Job[Any]]) -> bool:
    """Run the batch without savepoints, as few jobs fail. False if one failed: the batch must run again with them."""
    connection.exec_driver_sql("SAVEPOINT batch")
    try:
        for job in batch:
            job.result = job.work(connection)
    except Exception:  # the job raises it again in its savepoint, where it is handled
        if not _is_open(connection):
            raise
        connection.exec_driver_sql("ROLLBACK TO batch")
        return False
    return True


def _run_in_savepoint(connection: Connection, job: Job[Any]) -> None:
    # Plain statements: SQLAlchemy compiles its own savepoints every time, a tenth of the cost of a submit.
    connection.exec_driver_sql("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except Exception as error:  # a bug in one job must not fail the others; its caller gets the error
        job.error = translate_error(error) if isinstance(error, exc.DBAPIError) else error
        if isinstance(error, exc.DBAPIError) and not _is_open(connection):
            raise  # SQLite has rolled back the whole batch (full disk)
        connection.exec_driver_sql("ROLLBACK TO job")
    connection.exec_driver_sql("RELEASE job")


def _is_open(connection: Connection) -> bool:
    """Whether the transaction is still open in SQLite; SQLAlchemy does not notice a rollback by SQLite."""
    raw = connection.connection.dbapi_connection
    return isinstance(raw, sqlite3.Connection) and raw.in_transaction


def translate_error(error: exc.DBAPIError) -> Exception:
    """Translate a database error to one of our own."""
    text = str(error.orig)
    lowered = text.lower()
    if "disk is full" in lowered or "no space left" in lowered:
        return DiskFull(why=text)
    if "malformed" in lowered or "not a database" in lowered:
        return DamagedDatabase(path="of the relay", why=text, backup="see `delegate restore --help`")
    if isinstance(error, exc.DataError):
        return Refused(why=text.splitlines()[0])  # for example text with a NUL, which PostgreSQL rejects
    if isinstance(error, exc.OperationalError | exc.InterfaceError):
        return StoreBusy(why=text.splitlines()[0] if text else "no response", retry_after=1)
    return error


def sqlite_engine(path: Path, *, begin: str) -> Engine:
    engine = create_engine(f"sqlite+pysqlite:///{path}", connect_args={"check_same_thread": False}, pool_size=READERS)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not open transactions itself
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # what is deleted leaves nothing in the file, for `delegate purge`
        cursor.close()

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def postgres_engine(url: str, *, response_timeout: float = RESPONSE_TIMEOUT) -> Engine:
    name = url.replace("postgres://", "postgresql://", 1).replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(
        name,
        pool_size=READERS + POSTGRES_WRITERS,
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_TIMEOUT},
    )
    import psycopg  # noqa: PLC0415  slow to load, and only for PostgreSQL

    class BoundedConnection(psycopg.Connection[Any]):
        """Gives up a server that accepts statements and does not respond: no timeout of libpq or of TCP notices it."""

        def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
            return super().wait(bound(gen, self.pgconn.finish), *arguments, **options)

    def bound(gen: Generator[Any, Any, T], close: Callable[[], None]) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + response_timeout
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    close()
                    raise psycopg.OperationalError(f"no response within {response_timeout:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:
        return BoundedConnection.connect(*arguments, **options)

    return engine


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


@asynccontextmanager
async def open_database(*, path: Path, url: str = "") -> AsyncIterator[Database]:
    """Open the database at `url`, or the SQLite file at `path`; call `schema.prepare` first."""
    if is_postgres(url):
        database = Database(postgres_engine(url), None)
        yield database
        database.engine.dispose()
        return
    writer = sqlite_engine(path, begin="BEGIN IMMEDIATE")
    database = Database(sqlite_engine(path, begin="BEGIN"), writer)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(database.commit_forever)
            try:
                yield database
            finally:
                group.cancel_scope.cancel()
    finally:
        database.engine.dispose()
        writer.dispose()
