"""A damaged, older or newer database is never made worse, and `restore` brings a good one back."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from tests.both_databases.scene import DONE, Scene, fact, output

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import BadData, DamagedDatabase, DelegateError, NewerDatabase
from delegate.model import Priority
from delegate.states import TaskState
from delegate.store import schema
from delegate.store.backup import backup, restore
from delegate.store.database import open_database
from delegate.store.schema import check_sqlite, prepare

pytestmark = pytest.mark.promise("P15")
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
FLIPS = 200
PAGE = 4096
KILLER = Path(__file__).with_name("killed_migrations.py")
NEWEST = schema.revisions()[-1]
NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0099", "{NEWEST}"


def upgrade() -> None:
    op.add_column("runner", sa.Column("colour", sa.Text()))
    op.execute("UPDATE runner SET colour = 'blue'")
    op.create_index("ix_runner_colour", "runner", ["colour"])
"""


def make_home(parent: Path) -> Home:
    made = Home(parent / "home")
    made.root.mkdir()
    prepare(made, url="", now=NOW)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A place where a flush costs nothing, for tests with thousands."""
    parent = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=parent if parent.is_dir() else None) as place:
        yield Path(place)


async def work(home: Home, tasks: int = 1) -> None:
    """New tasks, from submit to end."""
    async with open_database(path=home.database) as database:
        scene = Scene(database)
        for _ in range(tasks):
            held = await scene.take(priority=Priority.P0)
            await scene.record(held, fact(0, text="x" * 200), output(1, b"y" * 2000))
            assert (await scene.finish(held, DONE, next_seq=2)).state is TaskState.COMPLETED


def count(home: Home) -> int:
    with closing(sqlite3.connect(home.database)) as connection:
        return int(connection.execute("SELECT count(*) FROM task").fetchone()[0])


def contents(home: Home) -> dict[str, bytes]:
    """Everything that matters in a home: the index of the journal is scratch and may come and go."""
    files = [path for path in home.root.iterdir() if path.is_file() and not path.name.endswith("-shm")]
    return {path.name: data for path in files if (data := path.read_bytes()) or path == home.database}


def refusal(home: Home) -> DelegateError:
    """It is refused, twice, by name, and not a byte of it changes."""
    before = contents(home)
    for _ in range(2):
        with pytest.raises(BadData) as caught:
            prepare(home, url="", now=NOW)
        assert contents(home) == before
    error = caught.value
    assert str(home.database) in error.message
    assert "delegate restore" in error.hint
    assert error.exit_code == 3
    return error


def place_of(dice: random.Random, size: int) -> int:
    """Anywhere, or where the structure is: the header, the schema, the beginnings of pages."""
    if dice.random() < 0.5:
        return dice.randrange(size)
    page = dice.choice([0, 1, dice.randrange(size // PAGE)])
    return page * PAGE + dice.randrange(dice.choice([64, PAGE]))


@pytest.mark.slow
@pytest.mark.anyio
async def test_two_hundred_flipped_bits_are_noticed_or_do_no_harm(memory: Path) -> None:
    home = make_home(memory)
    await work(home, 20)
    good = home.database.read_bytes()
    dice = random.Random(15)
    verdicts = {"refused": 0, "harmless": 0}
    for _ in range(FLIPS):
        bad = bytearray(good)
        bad[place_of(dice, len(good))] ^= 1 << dice.randrange(8)
        home.database.write_bytes(bad)
        try:
            prepare(home, url="", now=NOW)
        except (DamagedDatabase, NewerDatabase):
            assert home.database.read_bytes() == bytes(bad)
            verdicts["refused"] += 1
        else:
            await work(home)
            verdicts["harmless"] += 1

    assert min(verdicts.values()) > FLIPS / 20
    assert sum(verdicts.values()) == FLIPS


@pytest.mark.parametrize("kept", [1, 15, 16, 100, 4096, 5000, -4096])
def test_a_truncated_file_is_refused(home: Home, kept: int) -> None:
    anyio.run(work, home, 3)
    home.database.write_bytes(home.database.read_bytes()[:kept])

    assert isinstance(refusal(home), DamagedDatabase)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty or not an SQLite file"),
        (b"\0" * 8192, "empty or not an SQLite file"),
        (b"my shopping list\n" * 300, "empty or not an SQLite file"),
        (b"SQLite format 3\0" + b"\xff" * 8176, "not a database|malformed|disk image"),
    ],
)
def test_a_file_that_is_not_a_database_is_refused(home: Home, content: bytes, words: str) -> None:
    home.database.write_bytes(content)

    assert re.search(words, refusal(home).message)


def test_a_database_of_another_program_is_refused(home: Home) -> None:
    home.database.unlink()
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")

    assert "belongs to another program" in refusal(home).message


def test_a_newer_schema_is_refused(home: Home) -> None:
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
        connection.commit()

    refused = refusal(home)

    assert isinstance(refused, NewerDatabase)
    assert "schema 0099" in refused.message


def crashed_copy(home: Home, target: Path) -> Home:
    """The files of a killed relay, whose last writes are only in the journal."""

    async def crash() -> None:
        async with open_database(path=home.database) as database:
            scene = Scene(database)
            for _ in range(5):
                await scene.submit()
            shutil.copytree(home.root, target)

    anyio.run(crash)
    return Home(target)


def test_what_is_only_in_the_journal_is_there_after_a_crash(home: Home, tmp_path: Path) -> None:
    crashed = crashed_copy(home, tmp_path / "crashed")

    prepare(crashed, url="", now=NOW)

    assert count(crashed) == 5


def test_without_its_journal_the_database_opens_as_it_was_before(home: Home, tmp_path: Path) -> None:
    crashed = crashed_copy(home, tmp_path / "crashed")
    crashed.database.with_name("delegate.db-wal").unlink()

    prepare(crashed, url="", now=NOW)

    assert count(crashed) == 0
    anyio.run(work, crashed)


def test_a_journal_without_its_database_is_refused(home: Home, tmp_path: Path) -> None:
    crashed = crashed_copy(home, tmp_path / "crashed")
    crashed.database.unlink()

    assert "its journal delegate.db-wal is still there" in refusal(crashed).message


def test_the_journal_of_another_database_is_noticed_or_does_no_harm(home: Home, tmp_path: Path) -> None:
    anyio.run(work, home, 60)
    stranger = Home(tmp_path / "stranger")
    stranger.root.mkdir()
    prepare(stranger, url="", now=NOW)
    crashed = crashed_copy(stranger, tmp_path / "crashed")
    shutil.copyfile(crashed.database.with_name("delegate.db-wal"), home.database.with_name("delegate.db-wal"))
    before = home.database.read_bytes()

    try:
        prepare(home, url="", now=NOW)
    except DamagedDatabase:
        assert home.database.read_bytes() == before
    else:
        anyio.run(work, home)


@pytest.mark.parametrize("damage", [bytearray.clear, lambda data: data.extend(b"junk" * 1000)])
def test_a_torn_journal_costs_at_most_its_last_commits(
    home: Home, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    crashed = crashed_copy(home, tmp_path / "crashed")
    journal = crashed.database.with_name("delegate.db-wal")
    torn = bytearray(journal.read_bytes())
    damage(torn)
    journal.write_bytes(torn)

    prepare(crashed, url="", now=NOW)

    assert count(crashed) in range(6)
    anyio.run(work, crashed)


@pytest.fixture
def readable_home() -> Iterator[Home]:
    """One that another user may look into; pytest's own directories are closed to others."""
    root = Path(tempfile.mkdtemp(prefix="delegate-open-"))
    root.chmod(0o777)
    prepare(Home(root), url="", now=NOW)
    yield Home(root)
    shutil.rmtree(root)


def test_a_file_that_may_not_be_written_is_refused(readable_home: Home) -> None:
    readable_home.database.chmod(0o444)
    me = os.geteuid()
    os.seteuid(65534 if me == 0 else me)  # root may write everything, so another user must try
    try:
        refused = refusal(readable_home)
    finally:
        os.seteuid(me)

    assert "cannot be used: Permission denied" in refused.message


@pytest.mark.slow
def test_a_first_start_killed_at_any_statement_is_made_good_by_the_next(memory: Path) -> None:
    homes = killed_homes(memory, schema.MIGRATIONS)

    assert len(homes) > 15
    for home in {repr(sorted(contents(home).items())): home for home in homes}.values():  # most are the same
        prepare(home, url="", now=NOW)
        assert count(home) == 0


@pytest.mark.slow
def test_a_migration_killed_at_any_statement_leaves_the_old_database_whole(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anyio.run(work, home)
    migrations = migrations_with(tmp_path, NEXT)
    where = tmp_path / "killed"
    where.mkdir()
    shutil.copyfile(home.database, where / "sample.db")

    homes = killed_homes(where, migrations)

    assert len(homes) > 5
    for killed in homes[:-1]:
        assert check_sqlite(killed) == NEWEST
        assert count(killed) == 1
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    assert check_sqlite(homes[-1]) == "0099"
    for killed in homes:
        prepare(killed, url="", now=NOW)
        assert check_sqlite(killed) == "0099"
        assert len(list(killed.backups.iterdir())) == 1


def test_a_migration_that_fails_changes_nothing_and_has_made_a_backup(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anyio.run(work, home)
    before = home.database.read_bytes()
    monkeypatch.setattr(schema, "MIGRATIONS", migrations_with(tmp_path, NEXT + "    raise RuntimeError('oh')\n"))

    with pytest.raises(RuntimeError, match="oh"):
        prepare(home, url="", now=NOW)

    assert home.database.read_bytes() == before
    assert [path.name for path in home.backups.iterdir()] == ["before-0099-20260304T120000Z.db"]


@pytest.mark.promise("P23")
def test_only_the_newest_copies_made_before_an_upgrade_are_kept(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anyio.run(work, home)
    home.backups.mkdir(exist_ok=True)
    for day in range(1, 5):
        (home.backups / f"before-0001-2999010{day}T000000Z.db").touch()  # made while the clock was ahead
    monkeypatch.setattr(schema, "MIGRATIONS", migrations_with(tmp_path, NEXT))

    prepare(home, url="", now=NOW)

    copies = ["before-0001-29990103T000000Z.db", "before-0001-29990104T000000Z.db", "before-0099-20260304T120000Z.db"]
    assert sorted(path.name for path in home.backups.iterdir()) == copies


def killed_homes(directory: Path, migrations: Path) -> list[Home]:
    subprocess.run([sys.executable, str(KILLER), str(directory), str(migrations)], check=True, cwd="/")
    numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    return [Home(directory / str(number)) for number in numbers]


def migrations_with(directory: Path, following: str) -> Path:
    copy = directory / "migrations"
    shutil.copytree(schema.MIGRATIONS, copy)
    (copy / "versions" / "0099_colour.py").write_text(following)
    return copy


@pytest.mark.parametrize("damage", ["flipped", "truncated", "text", "gone", "newer"])
def test_restore_brings_back_the_newest_backup_and_keeps_what_was_there(home: Home, damage: str) -> None:
    settings = Settings(home=home.root)
    anyio.run(work, home)
    backup(settings, None)
    anyio.run(work, home)
    newest = backup(settings, None)
    anyio.run(work, home)
    bad = bytearray(home.database.read_bytes())
    match damage:
        case "flipped":
            bad[100:200] = b"\xff" * 100
        case "truncated":
            del bad[5000:]
        case "text":
            bad[:] = b"oh no"
        case "newer":
            bad[:] = bad.replace(NEWEST.encode(), b"0100")
    home.database.write_bytes(bad)
    if damage == "gone":
        home.database.unlink()
    else:
        refusal(home)

    assert restore(settings, None) == newest

    prepare(home, url="", now=NOW)
    assert count(home) == 2
    kept = [path.read_bytes() for path in home.root.glob("delegate.db.replaced-*Z")]
    assert kept == ([] if damage == "gone" else [bytes(bad)])
    anyio.run(work, home)
