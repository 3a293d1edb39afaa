"""The pool on this machine: twelve tasks that want much memory on a machine made small, and a burst of small ones."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise

from bench.measure import Row, progress
from bench.product import FINAL, PYTHON, Connection, Product, wait_until, workplace
from delegate.config.disk import format_bytes
from delegate.keeper.machine import available_memory, measure_descendants

GIB = 1024**3
HUNGRY, APPETITE, GROWS, STAYS = 12, 1.5 * GIB, 8.0, 6.0
SMALL_MACHINE = 8 * GIB  # what is left of this one by the reserve
BURST, BURSTS = 5, 5
LOOK_EVERY = 0.1
GAP_MOST = 1.0  # seconds
EAT = """
import time
began, held = time.monotonic(), []
while (age := time.monotonic() - began) < {grows}:
    while len(held) < age / {grows} * {pieces}:
        held.append(bytearray(b"x") * 2**20)
    time.sleep(0.02)
time.sleep({stays})
"""


class Watch:
    """Looks at what all agents of a keeper use, until it is left."""

    def __init__(self, keeper: int) -> None:
        self._keeper = keeper
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._without = memory_below(keeper)  # relay and runners
        self.most_memory = 0
        self.least_available = available_memory()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_EVERY):
            with suppress(OSError):
                self.most_memory = max(self.most_memory, memory_below(self._keeper) - self._without)
                self.least_available = min(self.least_available, available_memory())

    @contextmanager
    def looking(self) -> Iterator[Watch]:
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join()


def memory_below(pid: int) -> int:
    used = measure_descendants(pid)
    return used.memory if used else 0


def rows() -> list[Row]:
    return [*hungry(), burst()]


def hungry() -> list[Row]:
    """The reserve makes the machine small: what it leaves is SMALL_MACHINE."""
    reserve = max(0, available_memory() - SMALL_MACHINE)
    with pool(DELEGATE_MEMORY_RESERVE=str(reserve)) as product:
        script = product.work / "eat.py"
        script.write_text(EAT.format(grows=GROWS, stays=STAYS, pieces=int(APPETITE / 2**20)))
        with Watch(keeper_of(product)).looking() as watch:
            tasks, seconds, whys = run_all(product, [f"{PYTHON} {script}"] * HUNGRY)
    starts = sorted(started(task) for task in tasks)
    progress(f"starts: {', '.join(f'{start - starts[0]:.1f}' for start in starts)} s")
    for why in sorted(whys):
        progress(f"why: {why}")
    fits = watch.most_memory <= SMALL_MACHINE
    return [
        Row(
            claim=f"{HUNGRY} tasks that each grow to {format_bytes(APPETITE)}, {format_bytes(SMALL_MACHINE)} for all",
            ours=f"{format_bytes(watch.most_memory)} at most, {at_once(tasks)} at once, {seconds:.0f} s in all",
            against=f"at least {format_bytes(watch.least_available)} of the machine stayed available",
            ratio=f"longest gap between starts {longest_gap(starts):.1f} s",
            target=f"never more than {format_bytes(SMALL_MACHINE)}",
            met=fits and all(task["status"] == "completed" for task in tasks),
        )
    ]


def burst() -> Row:
    lasts, gaps = [], []
    for _ in range(BURSTS):
        with pool() as product:
            product.wait_for_idle(min(BURST, os.cpu_count() or 1))
            tasks, _, _ = run_all(product, ["sleep 3"] * BURST)
            starts = sorted(started(task) for task in tasks)
            lasts.append(starts[-1] - min(moment(task["createdAt"]) for task in tasks))
            gaps.append(longest_gap(starts))
    return Row(
        claim=f"burst of {BURST} on an idle pool, {os.cpu_count()} cores",
        ours=f"the last one starts after {sorted(lasts)[len(lasts) // 2]:.2f} s (most {max(lasts):.2f})",
        ratio=f"longest gap {max(gaps):.2f} s",
        target=f"no gap over {GAP_MOST:.0f} s",
        met=max(gaps) <= GAP_MOST,
    )


@contextmanager
def pool(**settings: str) -> Iterator[Product]:
    """As `delegate up` starts it: the machine decides; only its CPU does not count, or others at work would matter."""
    with workplace() as place:
        product = Product(place, **settings)
        try:
            product.command("up")
            product.wait_for_idle(1)
            yield product
        finally:
            product.down()


def keeper_of(product: Product) -> int:
    return int(json.loads((product.home / "relay.json").read_text())["keeperPid"])


def run_all(product: Product, commands: Sequence[str]) -> tuple[list[dict[str, object]], float, set[str]]:
    """The tasks once they have ended, how long that took, and all that was said about why they waited."""
    connection = product.connect()
    began = time.monotonic()
    ids = [connection.call("POST", "/api/tasks", product.task_request(command))["taskId"] for command in commands]
    whys: set[str] = set()

    def all_ended() -> list[dict[str, object]] | None:
        tasks = [look_at(connection, task_id) for task_id in ids]
        whys.update(str(task["why"]) for task in tasks if task["status"] == "queued" and task["why"])
        time.sleep(LOOK_EVERY)
        return tasks if all(task["status"] in FINAL for task in tasks) else None

    ended: list[dict[str, object]] = wait_until(all_ended)
    return ended, time.monotonic() - began, whys


def look_at(connection: Connection, task_id: str) -> dict[str, object]:
    task: dict[str, object] = connection.call("GET", f"/api/tasks/{task_id}")["task"]
    return task


def moment(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()


def started(task: dict[str, object]) -> float:
    return moment(task["startedAt"])


def longest_gap(starts: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(starts)), default=0.0)


def at_once(tasks: Sequence[dict[str, object]]) -> int:
    """The most that ran in the same moment."""
    begun = [(started(task), 1) for task in tasks]
    ended = [(moment(task["finishedAt"]), -1) for task in tasks]
    most = now = 0
    for _, step in sorted(begun + ended):
        now += step
        most = max(most, now)
    return most
