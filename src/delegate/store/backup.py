"""Makes verified backups of the SQLite database while it is in use, and restores them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import DamagedDatabase, DelegateError, DiskFull, Refused
from delegate.store.database import is_postgres

log = logging.getLogger(__name__)
STAMP = "%Y%m%dT%H%M%S%fZ"
STAMPED = re.compile(r".+-(\d{8}T\d{6})(\d{0,6})Z")
KEEP_COUNT = 12  # automatic backups: three days of one every six hours
KEEP_COUNT_MIN = 2
OLD_COPIES_MAX = 3  # databases that a restore replaced, and as many that were copied before an upgrade
KEEP_BYTES_MAX = 5 * 1024**3  # above this, older backups are deleted
WAL_SUFFIXES = ("-wal", "-shm")
DAMAGE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)  # an error message may quote damaged text


def backup(settings: Settings, target: Path | None) -> Path:
    """Write a verified copy to `target`, or to the automatic backups."""
    if is_postgres(settings.database_url):
        raise Refused(why="the relay uses PostgreSQL; use pg_dump instead")
    home = Home(settings.home)
    if not home.database.exists():
        raise Refused(why=f"there is no database at {home.database} yet")
    chosen = target or home.backups / f"delegate-{_next_stamp(home):{STAMP}}.db"
    if chosen.exists():
        raise Refused(why=f"{chosen} already exists")
    save_copy(home.database, chosen)
    if target is None:
        prune(home)
    return chosen


def restore(settings: Settings, source: Path | None) -> Path:
    """Replace the database with a backup and keep the old file next to it. No relay may be running."""
    if is_postgres(settings.database_url):
        raise Refused(why="the relay uses PostgreSQL; use pg_restore instead")
    home = Home(settings.home)
    chosen = source or newest_backup(home)
    if chosen is None:
        raise Refused(why=f"there is no backup in {home.backups}")
    if not chosen.is_file():
        raise Refused(why=f"there is no backup {chosen}")
    try:
        check_integrity(chosen)
    except DAMAGE_ERRORS as error:
        raise fault_of(chosen, error, backup="or use another one") from error
    incoming = home.database.with_suffix(".incoming")
    shutil.copyfile(chosen, incoming)
    incoming.chmod(0o600)
    flush(incoming)
    aside = home.database.with_name(f"{home.database.name}.replaced-{datetime.now(UTC):{STAMP}}")
    for suffix in ("", *WAL_SUFFIXES):
        old = home.database.with_name(home.database.name + suffix)
        if old.exists():
            old.rename(aside.with_name(aside.name + suffix))
    incoming.rename(home.database)
    flush(home.root)
    _prune_replaced(home, newest=aside)
    return chosen


def _prune_replaced(home: Home, newest: Path) -> None:
    """Names do not tell which one is the newest: the clock may have gone back."""
    others = set(home.root.glob(f"{home.database.name}.replaced-*Z")) - {newest}
    for old in sorted(others, reverse=True)[OLD_COPIES_MAX - 1 :]:
        for suffix in ("", *WAL_SUFFIXES):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def save_copy(database: Path, target: Path) -> None:
    """Copy a database that may be in use; the target appears only when it is complete."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            source.backup(copy)  # in one step: several would start over at every write of the relay
        check_integrity(partial)
        flush(partial)
        partial.rename(target)
        flush(target.parent)
    except DAMAGE_ERRORS as error:
        raise fault_of(database, error, backup="no new backup was made") from error
    finally:
        partial.unlink(missing_ok=True)


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict.splitlines()[-1])


def fault_of(path: Path, error: Exception, *, backup: str) -> DelegateError:
    return DiskFull(why=error) if "full" in str(error) else DamagedDatabase(path=path, why=error, backup=backup)


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def backups(home: Home) -> list[Path]:
    """Newest first, by the stamp in the name; a file that a person named, by its time."""
    found = home.backups.glob("*.db") if home.backups.is_dir() else iter(())
    return sorted(found, key=lambda path: _stamp_of(path) or _written_at(path), reverse=True)


def newest_backup(home: Home) -> Path | None:
    return next(iter(backups(home)), None)


def last_backup_at(home: Home, now: datetime) -> datetime | None:
    """When the newest backup was made; None if that is unknown, because the clock has been ahead."""
    newest = newest_backup(home)
    times = [] if newest is None else [_stamp_of(newest), _written_at(newest)]
    return next((time for time in times if time is not None and time <= now), None)


def _next_stamp(home: Home) -> datetime:
    """Return the time, but after the newest stamp: the order of the names holds even if the clock has gone back."""
    stamps = [stamp for path in backups(home) if (stamp := _stamp_of(path)) is not None]
    return max([datetime.now(UTC), *(stamp + timedelta.resolution for stamp in stamps)])


def _stamp_of(path: Path) -> datetime | None:
    found = STAMPED.fullmatch(path.stem)
    return None if found is None else datetime.strptime(f"{found[1]}{found[2]:0<6}Z", STAMP).replace(tzinfo=UTC)


def _written_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def prune_upgrade_copies(home: Home, newest: Path) -> None:
    """Delete the oldest copies made before upgrades, but never the newest one: its stamp may be one of a clock that
    has gone back."""
    others = [path for path in backups(home) if path.name.startswith("before-") and path != newest]
    for path in others[OLD_COPIES_MAX - 1 :]:
        path.unlink()


def prune(home: Home) -> None:
    automatic = [path for path in backups(home) if path.name.startswith("delegate-") and _stamp_of(path) is not None]
    total = 0
    for number, path in enumerate(automatic):
        total += path.stat().st_size
        if number >= KEEP_COUNT or (number >= KEEP_COUNT_MIN and total > KEEP_BYTES_MAX):
            path.unlink()
