from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.both_databases.scene import Scene

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import DamagedDatabase, Refused
from delegate.store.backup import (
    KEEP_COUNT,
    OLD_COPIES_MAX,
    backup,
    backups,
    check_integrity,
    last_backup_at,
    newest_backup,
    restore,
)
from delegate.store.database import open_database
from delegate.store.schema import prepare

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    prepare(Home(tmp_path), url="", now=NOW)
    return Settings(home=tmp_path)


def tasks_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM task").fetchone()[0])


async def submit(settings: Settings, count: int) -> None:
    async with open_database(path=Home(settings.home).database) as database:
        for _ in range(count):
            await Scene(database).submit()


@pytest.mark.promise("P15")
def test_a_backup_of_a_database_in_use_is_a_consistent_snapshot(settings: Settings, tmp_path: Path) -> None:
    made: list[Path] = []

    async def while_working() -> None:
        async with open_database(path=Home(settings.home).database) as database, anyio.create_task_group() as group:
            scene = Scene(database)

            async def submit_on() -> None:
                while len(made) < 3:
                    await scene.submit()

            group.start_soon(submit_on)
            for target in (tmp_path / "one.db", tmp_path / "two.db", tmp_path / "three.db"):
                await to_thread.run_sync(backup, settings, target)
                made.append(target)

    anyio.run(while_working)

    counts = [tasks_in(path) for path in made]
    assert counts == sorted(counts)
    for path in made:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_backup_is_private_and_leaves_nothing_else_behind(settings: Settings) -> None:
    made = backup(settings, None)

    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert list(made.parent.iterdir()) == [made]


def test_only_the_newest_automatic_backups_are_kept_and_named_ones_for_ever(settings: Settings) -> None:
    home = Home(settings.home)
    named = backup(settings, home.backups / "precious.db")
    os.utime(named, (0, 0))
    made = [backup(settings, None) for _ in range(KEEP_COUNT + 2)]
    for age, path in enumerate(reversed(made)):  # copied from another disk, the oldest last
        if path.exists():
            os.utime(path, (1_000_000 + age, 1_000_000 + age))

    newest = backup(settings, None)

    assert len(backups(home)) == KEEP_COUNT + 1
    assert newest_backup(home) == newest
    assert backups(home)[-1] == named
    assert not made[0].exists()


def test_only_the_newest_replaced_databases_are_kept(settings: Settings) -> None:
    home = Home(settings.home)
    chosen = backup(settings, None)
    for _ in range(OLD_COPIES_MAX + 2):
        restore(settings, chosen)
        home.database.with_name(replaced(home)[-1] + "-wal").touch()

    assert len(replaced(home)) == OLD_COPIES_MAX
    assert len(list(home.root.glob("*.replaced-*-wal"))) == OLD_COPIES_MAX


@pytest.mark.promise("P23")
def test_the_database_just_replaced_is_kept_although_the_clock_has_gone_back(settings: Settings) -> None:
    home = Home(settings.home)
    chosen = backup(settings, None)
    for day in range(1, 5):
        home.database.with_name(f"delegate.db.replaced-2999010{day}T000000000000Z").touch()

    restore(settings, chosen)

    assert [name[21:29] for name in replaced(home)][1:] == ["29990103", "29990104"]
    check_integrity(home.database.with_name(replaced(home)[0]))


def replaced(home: Home) -> list[str]:
    return sorted(path.name for path in home.root.glob("delegate.db.replaced-*Z"))


@pytest.mark.promise("P23")
def test_backups_keep_their_order_and_go_on_after_one_that_a_clock_made_which_was_ahead(settings: Settings) -> None:
    home, now = Home(settings.home), datetime.now(UTC)
    early = backup(settings, None)
    ahead = early.rename(early.with_name("delegate-20990101T000000000000Z.db"))
    later = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    os.utime(ahead, (later, later))
    before = last_backup_at(home, now)

    made = [backup(settings, None) for _ in range(KEEP_COUNT)]

    assert before is None
    assert backups(home) == made[::-1]
    last = last_backup_at(home, datetime.now(UTC))
    assert last is not None
    assert now - timedelta(seconds=1) <= last


def test_a_backup_never_overwrites_a_file(settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "diary.txt"
    target.write_text("dear diary")

    with pytest.raises(Refused, match="already exists"):
        backup(settings, target)

    assert target.read_text() == "dear diary"


def test_there_is_nothing_to_back_up_before_the_first_start(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no database"):
        backup(Settings(home=tmp_path), None)


@pytest.mark.promise("P15")
def test_a_damaged_database_makes_no_backup(settings: Settings) -> None:
    home = Home(settings.home)
    anyio.run(submit, settings, 20)
    damaged = bytearray(home.database.read_bytes())
    damaged[4096:8192] = b"\xff" * 4096
    home.database.write_bytes(damaged)

    with pytest.raises(DamagedDatabase, match=r"delegate\.db"):
        backup(settings, None)

    assert list(home.backups.iterdir()) == []
    assert home.database.read_bytes() == bytes(damaged)


@pytest.mark.promise("P15")
def test_a_damaged_backup_is_not_restored(settings: Settings, tmp_path: Path) -> None:
    anyio.run(submit, settings, 2)
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"SQLite format 3\0 and so on")

    with pytest.raises(DamagedDatabase, match=r"bad\.db"):
        restore(settings, bad)

    assert tasks_in(Home(settings.home).database) == 2


def test_without_a_backup_there_is_nothing_to_restore(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no backup in"):
        restore(settings, None)
    with pytest.raises(Refused, match="there is no backup"):
        restore(settings, tmp_path / "nowhere.db")


@pytest.mark.parametrize("verb", [backup, restore])
def test_backups_of_postgresql_are_made_with_its_own_tools(
    tmp_path: Path, verb: Callable[[Settings, Path | None], Path]
) -> None:
    settings = Settings(home=tmp_path, database_url="postgresql://localhost/delegate")

    with pytest.raises(Refused, match="PostgreSQL"):
        verb(settings, None)
