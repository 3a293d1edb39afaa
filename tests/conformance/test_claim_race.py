"""Many runners, one queue: every task goes to exactly one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.conformance.crowd import claim_all, queue_up

from delegate.store.database import Database

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P3"), pytest.mark.slow]
TASKS = 10_000
TAKEN_BY_TWO = 2_000  # the rest is left to eight
CROWD = Path(__file__).with_name("crowd.py")


async def in_one_relay(database: Database, claimers: int, at_most: int | None) -> list[tuple[str, int]]:
    """As on SQLite: all runners speak to the one relay, which has the one writer."""
    claimed: list[tuple[str, int]] = []

    async def ask(name: str) -> None:
        claimed.extend(await claim_all(database, name, at_most=at_most))

    async with anyio.create_task_group() as group:
        for number in range(claimers):
            group.start_soon(ask, f"runner-{number}")
    return claimed


async def in_processes(url: str, claimers: int, at_most: int | None) -> list[tuple[str, int]]:
    """As on PostgreSQL: several relays on one database."""
    claimed: list[tuple[str, int]] = []

    async def ask(name: str) -> None:
        command = [sys.executable, str(CROWD), url, name, str(at_most or 0)]
        done = await anyio.run_process(command, stderr=subprocess.PIPE)
        pairs = (line.split() for line in done.stdout.decode().splitlines())
        claimed.extend((task_id, int(fence)) for task_id, fence in pairs)

    async with anyio.create_task_group() as group:
        for number in range(claimers):
            group.start_soon(ask, f"runner-{number}")
    return claimed


async def test_ten_thousand_tasks_are_claimed_once_each_by_two_and_then_by_eight(place, database: Database) -> None:  # type: ignore[no-untyped-def]
    submitted = await database.write("crowd", lambda c: queue_up(c, TASKS))

    if database.is_sqlite:
        claimed = await in_one_relay(database, 2, TAKEN_BY_TWO // 2)
        claimed += await in_one_relay(database, 8, None)
    else:
        claimed = await in_processes(place.url, 2, TAKEN_BY_TWO // 2)
        claimed += await in_processes(place.url, 8, None)

    assert len(claimed) == TASKS
    assert {task_id for task_id, _ in claimed} == set(submitted)
    assert {fence for _, fence in claimed} == {1}
