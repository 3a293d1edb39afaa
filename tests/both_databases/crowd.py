"""Thousands of queued tasks at once, and a program that claims them until none is left.

`python crowd.py URL NAME` prints a line per claim: the task and its fence.
"""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
from sqlalchemy import insert

from delegate.config.settings import Settings
from delegate.model import ANY_MACHINE, Runner, RunnerId, RunnerSlot, new_task_id, slot_id
from delegate.placement import Placement, lane_of
from delegate.queue.claim import ClaimQuery, claim
from delegate.queue.limits import QueueRules, rules_of
from delegate.states import TaskState
from delegate.store.database import Connection, Database, open_database
from delegate.store.tables import task

RULES: QueueRules = rules_of(Settings())


def queue_up(connection: Connection, count: int) -> list[str]:
    """Straight into the table: what is measured comes afterwards."""
    now = datetime.now(UTC)
    common = {
        "state": TaskState.QUEUED,
        "lane": lane_of(Placement(agent="shell")),
        "agent": "shell",
        "prompt": "true",
        "machine": ANY_MACHINE,
        "timeout_ms": 1000,
        "max_output": 1024,
        "rerun": False,
        "created_at": now,
        "usage": {},
    }
    ids = [new_task_id() for _ in range(count)]
    rows = [{**common, "id": task_id, "priority": number % 3} for number, task_id in enumerate(ids)]
    connection.execute(insert(task), rows)
    return [*ids]


async def claim_all(database: Database, name: str, *, at_most: int | None = None) -> list[tuple[str, int]]:
    now = datetime.now(UTC)
    pool = Runner(id=RunnerId(name), name=name, machine=name, version="1", paired_at=now, seen_at=now)
    crowd = RunnerSlot(
        id=slot_id(pool.id, "1"),
        runner=pool,
        name="1",
        pid=1,
        version="1",
        agents=("shell",),
        registered_at=now,
        seen_at=now,
    )
    claimed: list[tuple[str, int]] = []
    while at_most is None or len(claimed) < at_most:
        query = ClaimQuery(claim_id=secrets.token_hex(8), slot=crowd, agents=crowd.agents, parked={})
        held = (await claim(database, query, RULES, datetime.now(UTC))).held
        if held is None:
            break
        claimed.append((held.task.id, held.attempt.fence))
    return claimed


async def main(*words: str) -> None:
    url, name, at_most = words
    async with open_database(path=Path(), url=url) as database:
        for task_id, fence in await claim_all(database, name, at_most=int(at_most) or None):
            print(task_id, fence)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
