"""A relay that is killed again and again costs no task, no output and no lease."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from tests.databases import Postgres
from tests.fakes.world import PATIENCE, World, living, tree_of, wait_until

pytestmark = pytest.mark.slow
RUNNERS = 4
KILLS = 5
# Numbered lines, slowly enough that several kills fall into each task.
LINES = 120
TALK = f"n=0; while [ $n -lt {LINES} ]; do echo line-$n; n=$((n+1)); sleep 0.1; done"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def talking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, str]]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    environment = {"DELEGATE_DATABASE_URL": url} if url else {}
    with living(tmp_path / "home", **environment) as world:
        yield world, url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.mark.promise("P8")
@pytest.mark.promise("P1")
def test_killing_the_relay_under_load_costs_no_task_no_line_and_no_lease(talking: tuple[World, str]) -> None:
    world, database = talking
    dice = random.Random(8)
    world.ok("up", "--runners", str(RUNNERS))
    ids = [world.submit(TALK) for _ in range(RUNNERS)]
    wait_until(lambda: all(world.task(task_id)["status"] == "running" for task_id in ids))

    killed: set[int] = set()
    for _ in range(KILLS):
        pid = wait_until(lambda: (found := world.relay_pid()) not in killed and found)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        wait_until(lambda: world.run("info").returncode == 0)
        wait_until(lambda: dice.random() < 0.05)

    ended = [world.wait_for(task_id) for task_id in ids]
    outputs = [world.ok("logs", "--raw", task_id) for task_id in ids]
    world.ok("down")
    world.audit(database or None)
    assert [(task["status"], task["attempt"]) for task in ended] == [("completed", 1)] * RUNNERS
    assert outputs == ["".join(f"line-{n}\n" for n in range(LINES))] * RUNNERS


@pytest.mark.promise("P8")
def test_a_task_that_ends_while_the_relay_is_away_is_reported_when_it_is_back(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    task_id = world.submit(f"touch started; while [ ! -e {gate} ]; do sleep 0.05; done; echo last words; touch ended")
    wait_until((world.work / "started").exists)

    relay = world.relay_pid()
    os.kill(relay, signal.SIGKILL)
    gate.touch()

    ended = world.wait_for(task_id)
    assert (ended["status"], ended["attempt"]) == ("completed", 1)
    assert world.ok("logs", task_id) == "last words\n"
    assert world.relay_pid() != relay


@contextmanager
def server_stopped(url: str) -> Iterator[None]:
    """All processes of the server are stopped, as on a machine that hangs: connections stay open."""
    with psycopg.connect(url) as connection:
        stat = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
    server = int(stat.rpartition(")")[2].split()[1])
    try:
        signal_all(tree_of(server), signal.SIGSTOP)
        yield
    finally:
        signal_all(tree_of(server), signal.SIGCONT)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a connection that was just closed
            os.kill(pid, number)


def status_of(world: World, path: str) -> int:
    try:
        world.get(path)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    return 200


@pytest.mark.real
@pytest.mark.promise("P8")
def test_a_postgresql_that_stops_responding_is_a_503_for_everybody(tmp_path: Path, postgres_url: str) -> None:
    with living(tmp_path / "home", DELEGATE_DATABASE_URL=postgres_url) as world:
        world.ok("up", "--runners", "0")
        assert status_of(world, "/api/tasks") == 200
        with server_stopped(postgres_url), ThreadPoolExecutor(24) as clients:
            answers = list(clients.map(lambda _: status_of(world, "/api/tasks"), range(24)))

        assert set(answers) == {503}
        wait_until(lambda: status_of(world, "/api/tasks") == 200)


@pytest.mark.real
@pytest.mark.parametrize("words", [("up",), ("up", "--foreground")], ids=" ".join)
def test_a_relay_that_starts_before_its_postgresql_waits_for_it(
    tmp_path: Path, postgres: Postgres, postgres_url: str, words: tuple[str, ...]
) -> None:
    sockets = str(postgres.uri.rpartition("host=")[2])
    place = tmp_path / "sockets"
    url = postgres_url.replace(f"host={sockets}", f"host={place}")
    with living(tmp_path / "home", DELEGATE_DATABASE_URL=url) as world:
        starting = world.popen(*words, "--runners", "1")
        log = world.home / "logs" / "relay.log"
        wait_until(lambda: log.exists() and "the database does not respond" in log.read_text())

        place.symlink_to(sockets)

        wait_until((world.home / "relay.json").exists)
        world.ok("delegate", "-a", "shell", "-f", "true")
        world.down()
        assert starting.wait(PATIENCE) == 0
        starting.communicate()


def test_a_keeper_does_not_give_up_while_the_database_is_busy(tmp_path: Path) -> None:
    with living(tmp_path / "home") as world:
        world.ok("up", "--runners", "0")
        world.down()
        log = world.home / "logs" / "keeper.log"
        with closing(sqlite3.connect(world.home / "delegate.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            starting = world.popen("up", "--runners", "0")
            wait_until(lambda: log.read_text().count("child started child=relay") == 3)
            other.rollback()

            starting.communicate(timeout=PATIENCE)

        assert starting.returncode == 0
        world.down()
