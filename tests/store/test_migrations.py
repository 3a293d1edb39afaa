"""A database of every earlier version is upgraded with all its rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, exc, text
from tests.databases import Place

from delegate.config.paths import Home
from delegate.model import AttemptId, Mode, TaskId
from delegate.states import TaskState
from delegate.store.attempts import get_attempt
from delegate.store.database import postgres_engine, sqlite_engine
from delegate.store.runners import pool_of
from delegate.store.schema import MIGRATIONS, prepare, revisions
from delegate.store.tasks import get_task

pytestmark = pytest.mark.promise("P15")
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
TASK = """INSERT INTO task (id, state, lane, priority, agent, prompt, working_directory, machine, timeout_ms,
max_output, rerun, created_at, retry_of, parent_task_id, session_id)
VALUES (:id, :state, 'desk/claude', 2, 'claude', 'hi', '/', 'desk', 1000, 1024, false, 1, :of, :parent, 's-1')"""
PROCESS = """INSERT INTO runner (id, name, token_hash, machine, pid, version, agents, registered_at, seen_at)
VALUES (:id, :name, :hash, 'desk-4f', 7, '0.1.0', '[]', 1, 1)"""
ATTEMPT = """INSERT INTO attempt (id, task_id, runner_id, claim_id, fence, number, state, started_at, renewed_at,
finished_at) VALUES (:id, :task, 'runner-b', :id, 1, 1, :state, 1, 1, :ended)"""
ROWS: list[dict[str, str | None]] = [
    {"id": "task-1", "state": "failed", "of": None, "parent": None},
    {"id": "task-2", "state": "completed", "of": "task-1", "parent": "task-1"},
    {"id": "task-3", "state": "queued", "of": "task-2", "parent": "task-1"},
    {"id": "task-4", "state": "running", "of": None, "parent": None},
]


def with_lineage(insert: str) -> str:
    return insert.replace("session_id)", "session_id, lineage)").replace("'s-1')", "'s-1', :parent)")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where no database is yet."""
    if request.param == "sqlite":
        return Place(Home(tmp_path), "")
    return Place(Home(tmp_path), request.getfixturevalue("postgres_url"))


def engine_of(place: Place) -> Engine:
    return postgres_engine(place.url) if place.url else sqlite_engine(place.home.database, begin="BEGIN IMMEDIATE")


def make(place: Place, revision: str) -> None:
    """A database as the version of this step has left it."""
    engine = engine_of(place)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    with engine.begin() as connection:
        for row in ROWS:
            connection.execute(text(TASK if revision == "0001" else with_lineage(TASK)), row)
    engine.dispose()


@pytest.mark.parametrize("revision", revisions()[:-1])
def test_tasks_of_an_older_version_stay_as_they_were(empty_place: Place, revision: str) -> None:
    make(empty_place, revision)

    prepare(empty_place.home, url=empty_place.url, now=NOW)

    engine = engine_of(empty_place)
    with engine.connect() as connection:
        found = [get_task(connection, TaskId(row["id"] or "")) for row in ROWS]
    engine.dispose()
    tasks = [task for task in found if task is not None]
    assert [task.lineage for task in tasks] == ["task-1", "task-1", "task-1", "task-4"]
    assert [task.state for task in tasks] == [TaskState(row["state"] or "") for row in ROWS]
    assert {(task.mode, task.choices, task.issue, task.result, task.session_id) for task in tasks} == {
        (Mode.IN_PLACE, (), None, None, "s-1")
    }


def test_processes_of_an_older_version_keep_what_they_hold(empty_place: Place) -> None:
    make(empty_place, "0007")
    engine = engine_of(empty_place)
    with engine.begin() as connection:
        connection.execute(text(PROCESS), {"id": "runner-a", "name": "desk-1", "hash": "a"})
        connection.execute(text(PROCESS), {"id": "runner-b", "name": "desk-2", "hash": "b"})
        connection.execute(text(ATTEMPT), {"id": "att-1", "task": "task-1", "state": "completed", "ended": 2})
        connection.execute(text(ATTEMPT), {"id": "att-4", "task": "task-4", "state": "running", "ended": None})

    prepare(empty_place.home, url=empty_place.url, now=NOW)

    with engine.connect() as connection:
        pool = pool_of(connection, "desk-4f")
        attempts = [get_attempt(connection, AttemptId(name)) for name in ("att-1", "att-4")]
    engine.dispose()
    assert pool is not None
    assert pool.name == "desk"
    assert [attempt.slot_id for attempt in attempts if attempt is not None] == ["runner-b", f"{pool.id}-2"]


def test_ended_tasks_are_guarded_again_after_the_upgrade(empty_place: Place) -> None:
    make(empty_place, "0001")
    prepare(empty_place.home, url=empty_place.url, now=NOW)
    engine = engine_of(empty_place)

    with pytest.raises(exc.DBAPIError, match="never change"), engine.begin() as connection:
        connection.execute(text("UPDATE task SET lineage = 'task-9' WHERE id = 'task-1'"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE task SET lineage = 'task-9' WHERE id = 'task-3'"))
    engine.dispose()


def test_the_copy_before_an_upgrade_is_of_the_old_version(tmp_path: Path) -> None:
    place = Place(Home(tmp_path), "")
    make(place, "0001")

    prepare(place.home, url="", now=NOW)

    [copy] = place.home.backups.iterdir()
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)
        assert connection.execute("SELECT count(*) FROM task").fetchone() == (len(ROWS),)
