"""From a claim to the agent's program in a fresh worktree, beside git doing the same by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import anyio

from bench.attempts import Bench, bench_of
from bench.measure import Row, beside, progress, seconds, spread_ms
from bench.origins import HUGE, MEDIUM, SMALL, Origin, in_memory, origin
from bench.product import Connection, Product, running_in, wait_for_end
from bench.programs import Spent, overheard
from bench.start import PAUSE, Bell, spawn_directly

REPEATS = {SMALL: 20, MEDIUM: 15, HUGE: 3}
MOST = 1.25
MOST_AT_HUGE = 1.02  # times git's own fetch and checkout: nothing beyond them that grows with the files
BY_HAND = "fetch + worktree add + spawn"
GITS_OWN = {"git fetch", "git worktree", "git read-tree"}  # however the checkout is asked for


def rows() -> list[Row]:
    return [claim_to_start(SMALL), claim_to_start(MEDIUM), *anyio.run(prepare_huge)]


def claim_to_start(files: int) -> Row:
    progress(f"workspace: {files:,} files")
    with (
        in_memory() as place,
        origin(place / "origin", files) as source,
        running_in(place, 1, **source.environment) as product,
    ):
        bell = Bell(product.work)
        connection = product.connect()
        task_start(product, connection, source, bell)  # the first one makes the mirror
        ours: list[float] = []
        by_hand: list[float] = []
        for number in range(REPEATS[files]):
            time.sleep(PAUSE)  # the runner removes the last workspace, and gets its next supervisor ready
            by_hand.append(start_by_hand(source, bell, f"task-{number}"))
            ours.append(task_start(product, connection, source, bell))
    return beside(f"claim to agent in a worktree, {files:,} files", ours, by_hand, BY_HAND, MOST)


def task_start(product: Product, connection: Connection, source: Origin, bell: Bell) -> float:
    """Seconds from the moment at which the relay gave the task away."""
    wish = {**product.task_request(bell.ring), "workingDirectory": str(source.clone), "worktree": True}
    connection.send("POST", "/api/tasks", wish)
    rang = on_the_wall(bell.wait())
    ended = wait_for_end(connection, connection.receive()["taskId"])
    return rang - event_time(ended, "claimed")


def start_by_hand(source: Origin, bell: Bell, name: str) -> float:
    took = seconds(lambda: source.add_worktree(name)) + spawn_directly(bell)
    source.drop_worktree(name)
    return took


def on_the_wall(moment: float) -> float:
    """A moment of the performance counter as the wall clock shows it."""
    return moment + time.time() - time.perf_counter()


def event_time(detail: dict[str, Any], kind: str) -> float:
    at = next(event["at"] for event in detail["events"] if event["kind"] == kind)
    return datetime.fromisoformat(at).timestamp()


async def prepare_huge() -> list[Row]:
    progress(f"workspace: {HUGE:,} files")
    ours: list[float] = []
    gits_own: list[float] = []
    by_hand: list[float] = []
    with in_memory() as place, origin(place / "origin", HUGE) as source:
        bench = await bench_of(source)
        await bench.mirrored()
        for number in range(1, REPEATS[HUGE] + 1):
            took, gits = await prepare_once(bench, number)
            ours.append(took)
            gits_own.append(gits)
            by_hand.append(seconds(partial(source.add_worktree, f"task-{number}")))
            await anyio.to_thread.run_sync(source.drop_worktree, f"task-{number}")
    claim = f"workspace of {HUGE:,} files"
    beyond = [took - gits for took, gits in zip(ours, gits_own, strict=True)]
    judged = beside(f"{claim}, beyond git", ours, gits_own, "git's own fetch and checkout in it", MOST_AT_HUGE)
    plain = beside(claim, ours, by_hand, "fetch + worktree add", MOST)
    # Three repeats of seconds each tell nothing of a ratio; what is ours in them can be told to the millisecond.
    return [replace(judged, ours=f"{spread_ms(beyond)} more"), replace(plain, target="", met=None)]


async def prepare_once(bench: Bench, number: int) -> tuple[float, float]:
    """How long it took, and how much of that git needed to fetch and to check out."""
    spent: list[Spent] = []
    with overheard(spent.append):
        began = time.perf_counter()
        workspace = await bench.prepared(number)
        took = time.perf_counter() - began
    await bench.closed(workspace, None)
    return took, sum(one.seconds for one in spent if one.what in GITS_OWN)
