"""Purges a task and lists where its texts may remain."""

from __future__ import annotations

from collections.abc import Iterator

from anyio import to_thread

from delegate.config.paths import Home
from delegate.model import Actor, TaskId
from delegate.relay.requests import Relay
from delegate.report.purge import Purge, purge
from delegate.store.backup import backups
from delegate.wire.tasks import PurgedTaskView

JOURNAL_TRIES = 5


async def purge_task(relay: Relay, task_id: TaskId, by: Actor) -> PurgedTaskView:
    purged = await purge(relay.database, task_id, by, relay.now())
    assert purged.task.purged_at is not None
    remains = [*_outside(purged), *await _in_database(relay)]
    return PurgedTaskView(task_id=task_id, purged_at=purged.task.purged_at, remains=remains)


async def _in_database(relay: Relay) -> list[str]:
    if not relay.database.is_sqlite:
        return ["PostgreSQL keeps the old rows in its files until its next VACUUM, and in its own backups and archives"]
    remains = []
    for _ in range(JOURNAL_TRIES):
        if await relay.database.truncate_journal():
            break
    else:
        remains.append("the database's journal still has it until the relay restarts; run this command again")
    home = Home(relay.settings.home)
    copies = await to_thread.run_sync(backups, home)
    copies += list(home.root.glob(f"{home.database.name}.replaced-*Z"))
    if copies:
        count = "1 backup" if len(copies) == 1 else f"{len(copies)} backups"
        remains.append(
            f"{count} of the database made before now, below {home.root}; delete those that must not have it"
        )
    return remains


def _outside(purged: Purge) -> Iterator[str]:
    """Pure: what the relay cannot recall."""
    if purged.others:
        yield f"other tasks of the same work, with the same prompt: {', '.join(purged.others)}; purge them, too"
    if purged.schedule is not None:
        yield f"the schedule {purged.schedule} has the prompt, and its other tasks"
    yield from (f"the pushed branch {branch}" for branch in purged.branches)
    yield from (f"the pull request {url}" for url in purged.pull_requests)
    yield from (f"the issue {key} in Linear, and what was posted there" for key in purged.issues)
    if purged.runners:
        names = ", ".join(purged.runners)
        yield f"files on the machines of its runners ({names}): workspace, kept work, spool, the agent's own sessions"
