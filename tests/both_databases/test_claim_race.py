"""Many runners, one queue: every task goes to exactly one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.both_databases.crowd import claim_all, queue_up
from tests.databases import Place

from delegate.store.database import Database

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P3")]
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


async def race(place: Place, database: Database, tasks: int) -> list[tuple[str, int]]:
    """The task and the fence of each claim: two runners claim a tenth each, eight the rest."""
    share = tasks // 10

    if database.is_sqlite:
        claimed = await in_one_relay(database, 2, share)
        claimed += await in_one_relay(database, 8, None)
    else:
        claimed = await in_processes(place.url, 2, share)
        claimed += await in_processes(place.url, 8, None)
    return claimed


@pytest.mark.slow
async def test_thousands_of_tasks_are_claimed_once_each_by_two_and_then_by_eight(
    place: Place, database: Database
) -> None:
    # Eight processes with PostgreSQL beside them are slow on two cores; the soak gives them all ten thousand.
    tasks = 10_000 if database.is_sqlite else 1_000
    submitted = await database.write("crowd", lambda c: queue_up(c, tasks))

    claimed = await race(place, database, tasks)

    assert sorted(claimed) == [(task_id, 1) for task_id in sorted(submitted)]


@pytest.mark.soak
async def test_ten_thousand_tasks_are_claimed_once_each_by_processes(place: Place, database: Database) -> None:
    submitted = await database.write("crowd", lambda c: queue_up(c, 10_000))

    claimed = await race(place, database, 10_000)

    assert sorted(claimed) == [(task_id, 1) for task_id in sorted(submitted)]
