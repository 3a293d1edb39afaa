"""A full disk, at any moment: nothing that was accepted is lost, no failed task is completed, and work continues."""

from __future__ import annotations

import json
import sqlite3
import threading
import urllib.error
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fakes.origin import make_origin
from tests.fakes.small_disk import filled, small_disk
from tests.fakes.world import World, homes_in, living, wait_until

from delegate.config.home_files import machine_id
from delegate.config.paths import Home

pytestmark = [pytest.mark.slow, pytest.mark.promise("P13")]
ROUNDS = 10
BACK_IN_TIME = 30.0  # seconds from space to work
MIB = 1024 * 1024
LINES = "".join(f"{number}\n" for number in range(1, 2001))


class Submitter:
    """Submits one task after the other, and remembers what was accepted and how the rest was refused."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.accepted: list[str] = []
        self.refused: Counter[str] = Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def _submit(self) -> None:
        body = {"prompt": "seq 2000", "agent": "shell", "workingDirectory": str(self.world.work)}
        body["machine"] = machine_id(Home(self.world.home))
        while not self._is_over.wait(0.02):
            try:
                self.accepted.append(self.world.post("/api/tasks", body)["taskId"])
            except urllib.error.HTTPError as refusal:
                self.refused[json.load(refusal)["type"]] += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()


def rows(world: World, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{world.relay_home / 'delegate.db'}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def output_of(world: World, task_id: str) -> bytes:
    found = f"SELECT data FROM output WHERE task_id = '{task_id}' ORDER BY id"
    return b"".join(data for (data,) in rows(world, found))


FLOORS = {"DELEGATE_RELAY_MIN_FREE": str(8 * MIB), "DELEGATE_RUNNER_MIN_FREE": str(16 * MIB)}


@pytest.fixture
def one_disk(tmp_path: Path) -> Iterator[World]:
    home = tmp_path / "home"
    with small_disk(homes_in(home)[1], 48), living(home, **FLOORS) as made:
        yield made


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[World]:
    """The runners' spools are on the second one."""
    home = tmp_path / "home"
    of_relay, of_runners = homes_in(home)
    with small_disk(of_relay, 48), small_disk(of_runners / "runners", 24), living(home, **FLOORS) as made:
        yield made


def test_the_disk_of_the_relay_runs_full_again_and_again(two_disks: World) -> None:
    world = two_disks
    world.ok("up", "--runners", "2")
    submitter, dice = Submitter(world), Random(13)

    with submitter.at_work():
        for _ in range(ROUNDS):
            enough = len(submitter.accepted) + dice.randrange(1, 8)
            wait_until(lambda enough=enough: len(submitter.accepted) >= enough, BACK_IN_TIME)  # type: ignore[misc]
            with filled(world.relay_home):
                refusals = submitter.refused["disk_full"]
                wait_until(lambda refusals=refusals: submitter.refused["disk_full"] > refusals + 3)  # type: ignore[misc]

    assert set(submitter.refused) == {"disk_full"}
    wait_until(lambda: not rows(world, "SELECT id FROM task WHERE finished_at IS NULL"))
    stored = {task_id: (state, reason) for task_id, state, reason in rows(world, "SELECT id, state, reason FROM task")}
    assert [task_id for task_id in submitter.accepted if task_id not in stored] == []
    # The runners' own places are on that disk, too: who was at work when it ran full was stopped.
    assert set(stored.values()) <= {("completed", "done"), ("failed", "disk_full")}
    done = [task_id for task_id, (state, _) in stored.items() if state == "completed"]
    assert len(done) >= ROUNDS
    assert {output_of(world, task_id) for task_id in done} == {LINES.encode()}
    world.ok("down")
    world.audit()


def waiting_task(world: World, task_id: str) -> dict[str, Any] | None:
    task = world.task(task_id)
    return task if "accepting work" in (task["why"] or "") else None


def test_the_disk_of_the_runner_runs_full_before_and_during_an_attempt(two_disks: World) -> None:
    world = two_disks
    world.ok("up", "--runners", "1")
    gate, dice = world.work / "go", Random(13)
    runners = world.home / "runners"

    for _ in range(ROUNDS // 3):
        gate.unlink(missing_ok=True)
        during = world.submit(f"seq {dice.randrange(1, 50_000)}; until [ -e {gate} ]; do sleep 0.02; done")
        wait_until(lambda task_id=during: world.task(task_id)["attempts"])  # type: ignore[misc]
        with filled(runners):
            stopped = world.wait_for(during)
            before = world.submit("seq 2000")
            waiting = wait_until(partial(waiting_task, world, before))
        ended = world.wait_for(before, patience=BACK_IN_TIME)

        assert (stopped["status"], stopped["reason"]) == ("failed", "disk_full")
        assert waiting["status"] == "queued"
        assert f"are free on the disk of {runners}" in waiting["why"]
        assert (ended["status"], ended["attempt"]) == ("completed", 1)
        assert output_of(world, before) == LINES.encode()
    world.ok("down")
    world.audit()


def test_a_worktree_that_fills_the_disk_of_everybody_is_stopped_and_its_work_is_kept(one_disk: World) -> None:
    world = one_disk
    make_origin(world.work)
    world.ok("up", "--runners", "1")
    nearly_all = f"$(($(df --output=avail -B1 . | tail -n 1) - {3 * MIB // 2}))"

    big = f"echo work > made.txt; head -c {nearly_all} /dev/zero > big; sleep 60"
    ended = world.wait_for(world.submit(big, "--worktree"))
    after = world.wait_for(world.submit("echo more > more.txt", "--worktree"), patience=BACK_IN_TIME)

    assert (ended["status"], ended["reason"]) == ("failed", "disk_full")
    assert ended["result"]["isKept"]
    assert (after["status"], after["reason"]) == ("completed", "done")
    wait_until(lambda: not list((world.home / "workspaces").iterdir()))  # before a runner claims again, it tidies up
    world.ok("down")
    world.audit()
