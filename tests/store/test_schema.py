from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, Column, Engine, inspect, text
from tests.databases import Place, run

from delegate.config.paths import Home
from delegate.errors import BadSetting, DamagedDatabase, NewerDatabase, StoreBusy
from delegate.states import FINAL_TASK_STATES, TASK_MOVES, AttemptState, TaskState
from delegate.store.database import postgres_engine, sqlite_engine
from delegate.store.migrations.triggers import FINAL_TASKS
from delegate.store.schema import prepare, revisions
from delegate.store.tables import metadata

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


INDEXES = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
}


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    made = postgres_engine(place.url) if place.url else sqlite_engine(place.home.database, begin="BEGIN")
    yield made
    made.dispose()


def json_alone(_context: object, _found: object, column: Column[object], *_defaults: object) -> bool | None:
    """PostgreSQL has no equality for JSON, with which Alembic would compare its default; for the rest, as usual."""
    return False if isinstance(column.type, JSON) else None


def test_all_migrations_together_are_the_schema(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": json_alone})

        assert compare_metadata(context, metadata) == []


def test_the_indexes_are_the_same_with_all_their_conditions(engine: Engine, place: Place, tmp_path: Path) -> None:
    """Alembic does not look at the WHERE of a partial index."""
    query = text(INDEXES[engine.dialect.name])
    with engine.connect() as connection:
        migrated = {row[0]: row[1] for row in connection.execute(query)}
        if place.url:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
            metadata.create_all(connection)
            direct = {row[0]: row[1] for row in connection.execute(query)}
            connection.rollback()
    if not place.url:
        other = sqlite_engine(tmp_path / "direct.db", begin="BEGIN")
        with other.begin() as connection:
            metadata.create_all(connection)
            direct = {row[0]: row[1] for row in connection.execute(query)}
        other.dispose()
    migrated.pop("alembic_version_pkc", None)

    assert migrated == direct


@pytest.mark.parametrize(("table", "states"), [("task", TaskState), ("attempt", AttemptState)])
def test_the_states_of_the_database_are_the_states_of_the_code(
    engine: Engine, table: str, states: type[TaskState] | type[AttemptState]
) -> None:
    [check] = inspect(engine).get_check_constraints(table)

    assert re.findall(r"'(\w+)'", str(check["sqltext"])) == list(states)


def test_the_triggers_guard_exactly_the_final_states() -> None:
    assert set(re.findall(r"'(\w+)'", FINAL_TASKS)) == FINAL_TASK_STATES
    assert all(not TASK_MOVES[state] for state in FINAL_TASK_STATES)


def test_preparing_again_changes_nothing(place: Place) -> None:
    before = place.home.database.read_bytes() if not place.url else b""

    prepare(place.home, url=place.url, now=NOW)

    assert not place.home.backups.exists()
    if not place.url:
        assert place.home.database.read_bytes() == before


def test_a_commit_on_sqlite_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepare(home, url="", now=NOW)
    engine = sqlite_engine(home.database, begin="BEGIN IMMEDIATE")

    with engine.connect() as connection:
        synchronous = connection.execute(text("PRAGMA synchronous")).scalar_one()
        journal = connection.execute(text("PRAGMA journal_mode")).scalar_one()
    engine.dispose()

    assert (synchronous, journal) == (2, "wal")


@pytest.mark.real
def test_a_postgresql_database_of_another_program_is_refused(postgres_url: str) -> None:
    run(postgres_url, "CREATE TABLE theirs (x int)")

    with pytest.raises(DamagedDatabase, match="tables of another program"):
        prepare(Home(Path("/nonexistent")), url=postgres_url, now=NOW)


@pytest.mark.real
@pytest.mark.promise("P15")
def test_a_postgresql_database_of_a_newer_version_is_refused(postgres_url: str) -> None:
    prepare(Home(Path("/nonexistent")), url=postgres_url, now=NOW)
    run(postgres_url, "UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(NewerDatabase, match=f"schema 9999; this version supports {revisions()[-1]}"):
        prepare(Home(Path("/nonexistent")), url=postgres_url, now=NOW)


@pytest.mark.real
@pytest.mark.parametrize(("old", "new"), [("/delegate_", "/none_"), ("//postgres:", "//nobody:")])
def test_an_address_that_postgresql_refuses_is_a_bad_setting(postgres_url: str, old: str, new: str) -> None:
    with pytest.raises(BadSetting, match=r"DELEGATE_DATABASE_URL.*does not exist"):
        prepare(Home(Path("/nonexistent")), url=postgres_url.replace(old, new), now=NOW)


def test_a_postgresql_that_does_not_answer_may_do_so_later(tmp_path: Path) -> None:
    with pytest.raises(StoreBusy):
        prepare(Home(tmp_path), url=f"postgresql://postgres@/delegate?host={tmp_path}", now=NOW)
