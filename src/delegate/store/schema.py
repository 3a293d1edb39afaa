"""Checks the database before the relay opens it, then creates or upgrades it."""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, exc, inspect, text

from delegate.config.paths import Home
from delegate.errors import BadSetting, DamagedDatabase, DelegateError, NewerDatabase, StoreBusy
from delegate.store.backup import DAMAGE_ERRORS, WAL_SUFFIXES, flush, newest_backup, prune_upgrade_copies, save_copy
from delegate.store.database import is_postgres, postgres_engine, sqlite_engine

log = logging.getLogger(__name__)
SQLITE_HEADER = b"SQLite format 3\x00"
SCHEMA_ROWS = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
MIGRATIONS = Path(__file__).parent / "migrations"
# In older versions a checkpoint can, very rarely, lose a commit (https://sqlite.org/wal.html, "WAL-reset bug").
FIRST_FIXED_SQLITE = (3, 51, 3)
PATCHED_SQLITE = {(3, 44): 6, (3, 50): 7}
UPGRADE_TIMEOUT = 300.0  # seconds for one statement; another relay may be upgrading
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afpfs"})


def revisions() -> list[str]:
    """Return the migrations that this version knows, oldest first."""
    return sorted(path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def prepare(home: Home, *, url: str, now: datetime) -> None:
    """Create or upgrade the database, or raise an error and leave it unchanged."""
    if is_postgres(url):
        _prepare_postgres(url)
        return
    found = check_sqlite(home)
    warn_of_risks(home.database)
    if found is None:
        _create(home)
    elif found != revisions()[-1]:
        copy = home.backups / f"before-{revisions()[-1]}-{now:%Y%m%dT%H%M%SZ}.db"
        save_copy(home.database, copy)
        _upgrade_file(home.database)
        prune_upgrade_copies(home, newest=copy)


def _create(home: Home) -> None:
    """Create the file under another name and move it when complete: a killed first start leaves no partial database."""
    incoming = home.database.with_name(f"{home.database.name}.new")
    for suffix in ("", *WAL_SUFFIXES):
        incoming.with_name(incoming.name + suffix).unlink(missing_ok=True)
    _upgrade_file(incoming)
    flush(incoming)
    incoming.rename(home.database)
    flush(home.root)


def _upgrade_file(path: Path) -> None:
    engine = sqlite_engine(path, begin="BEGIN IMMEDIATE")
    try:
        with engine.begin() as connection:
            upgrade(connection)
            mark = fingerprint(connection.exec_driver_sql(SCHEMA_ROWS))
            connection.exec_driver_sql(f"PRAGMA user_version={mark}")
    finally:
        engine.dispose()


def fingerprint(rows: Iterable[Sequence[object]]) -> int:
    """Return a checksum of the schema as SQLite stores it, in 31 bits because `user_version` is signed."""
    return zlib.crc32(repr([tuple(row) for row in rows]).encode()) & 0x7FFFFFFF


def check_sqlite(home: Home) -> str | None:
    """Return the revision of the file, or None if it does not exist. Only reads, to leave a damaged file unchanged."""
    path = home.database
    journal = path.with_name(f"{path.name}-wal")
    with _report_damage(home):
        if not path.exists():
            if journal.exists() and journal.stat().st_size:
                raise sqlite3.DatabaseError(f"it is missing, but its journal {journal.name} is still there")
            return None
        with path.open("r+b") as file:  # opened for writing, to detect a read-only file
            if file.read(len(SQLITE_HEADER)) != SQLITE_HEADER:
                raise sqlite3.DatabaseError("it is empty or not an SQLite file")
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict.splitlines()[-1])
            found = revision_of(connection)
            [mark] = connection.execute("PRAGMA user_version").fetchone()
            # quick_check does not know what the schema should be. No mark: the file was rebuilt by hand.
            if mark not in (0, fingerprint(connection.execute(SCHEMA_ROWS))):
                raise sqlite3.DatabaseError("its schema is not the one that Delegate created")
    if found not in revisions():
        raise NewerDatabase(path=path, found=found, known=revisions()[-1])
    return found


def revision_of(connection: sqlite3.Connection) -> str:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" not in names:
        raise sqlite3.DatabaseError("it belongs to another program")
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("it has no schema version")
    return str(row[0])


@contextmanager
def _report_damage(home: Home) -> Iterator[None]:
    try:
        yield
    except (*DAMAGE_ERRORS, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        backup = newest_backup(home) or "there is no backup yet"
        raise DamagedDatabase(path=home.database, why=why, backup=backup) from error


def _prepare_postgres(url: str) -> None:
    engine = postgres_engine(url, response_timeout=UPGRADE_TIMEOUT)
    try:
        with engine.begin() as connection:
            # Two relays may start at once; the second waits here and finds the database upgraded.
            connection.execute(text("SELECT pg_advisory_xact_lock(814250)"))
            found = _postgres_revision(connection)
            if found is not None and found not in revisions():
                raise NewerDatabase(path=engine.url.render_as_string(), found=found, known=revisions()[-1])
            for name in ("fsync", "synchronous_commit"):
                if connection.execute(text(f"SHOW {name}")).scalar_one() == "off":
                    log.warning("the database may lose commits in a power failure", extra={"setting": f"{name}=off"})
            if found != revisions()[-1]:
                upgrade(connection)
    except exc.DBAPIError as error:
        raise _postgres_fault(engine.url.render_as_string(), error) from error
    finally:
        engine.dispose()


def _postgres_fault(address: str, error: exc.DBAPIError) -> DelegateError:
    why = str(error.orig).splitlines()[0]
    is_refused = any(words in why for words in ("authentication failed", "does not exist", "permission denied"))
    if is_refused or not isinstance(error, exc.OperationalError):
        advice = "use a PostgreSQL database in which this user may create tables"
        return BadSetting(name="DELEGATE_DATABASE_URL", value=address, why=why, advice=advice)
    return StoreBusy(why=why)


def _postgres_revision(connection: Connection) -> str | None:
    names = set(inspect(connection).get_table_names())
    if "alembic_version" in names:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if found is not None:
            return str(found)
    if names - {"alembic_version"}:
        raise DamagedDatabase(
            path=connection.engine.url.render_as_string(),
            why="it contains tables of another program",
            backup="use a separate database for Delegate",
        )
    return None


def upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def warn_of_risks(path: Path) -> None:
    version = sqlite3.sqlite_version_info
    if version < FIRST_FIXED_SQLITE and version[2] < PATCHED_SQLITE.get(version[:2], 1000):
        log.warning("this SQLite version has the WAL-reset bug", extra={"version": sqlite3.sqlite_version})
    if (kind := filesystem_of(path)) in NETWORK_FILESYSTEMS:
        log.warning("the database is on a network file system: file locks may not work", extra={"filesystem": kind})


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system of `path`, if the system reports it (Linux)."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return None
    entries = [line.split(" ")[1:3] for line in mounts.read_text(errors="replace").splitlines()]
    real = os.path.realpath(path)
    below = [(len(point), kind) for point, kind in entries if real.startswith(point.rstrip("/") + "/") or point == "/"]
    return max(below)[1] if below else None
