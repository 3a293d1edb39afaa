"""The keeper's side of the pool: what it says to its runners, what it hears, and which slots it has settled."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from delegate.config.settings import Settings
from delegate.keeper import runners
from delegate.keeper.children import OPEN_COMMAND, RunnerChild, hold_command
from delegate.keeper.runners import SETTLING_MAX, RunnerCount, RunnerScaler
from delegate.keeper.scaling import RETIRE_AFTER

PIPE = 65_536


@pytest.fixture
def deaf() -> Iterator[RunnerChild]:
    """A runner that reads nothing; should that stop its keeper, it is killed after a while."""
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE) as process:
        timer = threading.Timer(5, process.kill)
        timer.start()
        yield RunnerChild(name="runner-1", arguments=[], slot=1, process=process)
        timer.cancel()
        process.kill()


def test_a_runner_that_does_not_read_does_not_stop_its_keeper_and_hears_the_latest_when_it_does(
    deaf: RunnerChild,
) -> None:
    orders = [hold_command(f"{number:0100}") for number in range(PIPE // 100)]
    for order in orders:
        deaf.send_command(order)
    assert deaf.process is not None
    pipe = os.open(f"/proc/{deaf.process.pid}/fd/0", os.O_RDONLY)
    received = os.read(pipe, PIPE)
    deaf.send_command(OPEN_COMMAND)
    latest = os.read(pipe, PIPE)
    os.close(pipe)

    assert received == b"".join(orders)[: len(received)]
    assert len(received) < len(b"".join(orders))
    assert (latest, deaf.is_open) == (OPEN_COMMAND, True)


class Crowd:
    """The runners of a keeper, without processes: what they would say is put into their pipes."""

    def __init__(self, home: Path, size: RunnerCount) -> None:
        settings = Settings(home=home, cpu_threshold=100, memory_reserve=10**12)
        self.scaling = RunnerScaler(settings, size, "http://127.0.0.1:1", selectors.DefaultSelector())
        self.scaling.begin(0.0)
        self.scaling.tick(0.0)

    def slots(self) -> set[int]:
        return {child.slot for child in self.scaling.children if child.wanted}

    def says(self, slot: int, now: float, **news: object) -> None:
        self.says_line(slot, now, json.dumps(news).encode())

    def says_line(self, slot: int, now: float, said: bytes) -> None:
        (child,) = [child for child in self.scaling.children if child.slot == slot]
        child.reports, writing = os.pipe()
        os.write(writing, said + b"\n")
        self.scaling.read_reports(child, now)
        os.close(child.reports)
        os.close(writing)
        child.reports = None
        self.scaling.tick(now)


def leave(home: Path, slots: range, what: str) -> None:
    for slot in slots:
        (home / "runners" / str(slot) / what).mkdir(parents=True)


def test_slots_whose_runner_only_waited_are_left_to_whoever_gets_them(tmp_path: Path) -> None:
    leave(tmp_path, range(1, 41), "claim")

    assert Crowd(tmp_path, RunnerCount(fixed=None, ceiling=1)).slots() == {1}


@pytest.mark.parametrize("what", ["spool/att-1", "effects/push-1"])
def test_slots_that_have_something_to_settle_get_a_runner_a_few_at_a_time(tmp_path: Path, what: str) -> None:
    leave(tmp_path, range(11, 15), what)
    crowd = Crowd(tmp_path, RunnerCount(fixed=None, ceiling=1))
    first = crowd.slots()
    crowd.says(12, 1.0, trouble=True)
    after_trouble = crowd.slots()
    crowd.says(11, 2.0, idle=True)
    crowd.says(13, 3.0, idle=True)

    assert (len(first), first) == (SETTLING_MAX, {11, 12})
    assert after_trouble == {11, 12, 13}
    assert crowd.slots() >= {12, 14}
    assert len(crowd.slots()) <= 3  # who has settled went home


def test_with_a_ceiling_of_none_what_was_left_is_settled_all_the_same(tmp_path: Path) -> None:
    leave(tmp_path, range(3, 4), "spool/att-1")
    crowd = Crowd(tmp_path, RunnerCount(fixed=0, ceiling=0))
    before = crowd.slots()
    crowd.says(3, 1.0, idle=True)

    assert (before, crowd.slots()) == ({3}, set())


def test_one_runner_in_trouble_is_replaced_and_goes_home_in_the_end(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, RunnerCount(fixed=None, ceiling=9))
    base = crowd.slots()
    for slot in base:
        crowd.says(slot, 1.0, idle=True)
    crowd.says(1, 2.0, trouble=True)
    with_another = crowd.slots()
    crowd.says(max(with_another), 3.0, idle=True)
    crowd.says(1, 2.0 + RETIRE_AFTER, trouble=True)

    assert with_another == {*base, max(base) + 1}
    assert crowd.slots() == with_another - {1}


def test_unknown_reports_are_logged_and_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(tmp_path, RunnerCount(fixed=1, ceiling=1))
    crowd.says(1, 1.0, weather="fine")
    crowd.says_line(1, 2.0, b'{"busy": \xff')

    assert [record.message for record in caplog.records] == ["runner report not understood"] * 2
    assert crowd.slots() == {1}


class Ticking(datetime):
    """Every look at the clock is a minute later."""

    minutes = itertools.count(1)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Ticking:
        return cls(2026, 1, 1, 12, next(cls.minutes), tzinfo=tz)


def test_the_words_of_a_lack_follow_its_figures_and_keep_the_moment_when_it_began(
    tmp_path: Path, deaf: RunnerChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "datetime", Ticking)
    crowd = Crowd(tmp_path, RunnerCount(fixed=3, ceiling=None))
    held = crowd.scaling.children[2]
    held.process = deaf.process
    for slot in (1, 2, 3):
        crowd.says(slot, 1.0, idle=True)
    crowd.scaling.tick(20.0)

    orders = []
    for slot, now in ((1, 21.0), (2, 25.0)):
        crowd.says(slot, now, busy=f"att-{slot}", agent="shell", task="task-1")
        orders.append(str(held.last_command))
    crowd.scaling.tick(31.0)
    orders.append(str(held.last_command))

    assert orders[0] == orders[1] != orders[2]
    assert orders[0].partition("UTC")[0] == orders[2].partition("UTC")[0]
    assert "the machine has been short of memory since 2026-01-01" in orders[2]
