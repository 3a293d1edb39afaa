"""Who may ask for work."""

from __future__ import annotations

import logging

from delegate.model import Runner
from delegate.store.database import Database
from delegate.store.runners import delete_runner, put_runner

log = logging.getLogger(__name__)


async def register(database: Database, runner: Runner, *, token_hash: str) -> None:
    """Make a runner known, or known again: its token from before is void."""
    await database.write("register", lambda connection: put_runner(connection, runner, token_hash=token_hash))
    log.info(
        "runner registered", extra={"runner_id": runner.id, "runner": runner.name, "agents": ",".join(runner.agents)}
    )


async def leave(database: Database, runner: Runner) -> None:
    """A runner that has stopped is not waited for: what still counts on it should say so."""
    await database.write("leave", lambda connection: delete_runner(connection, runner.id))
    log.info("runner left", extra={"runner_id": runner.id, "runner": runner.name})
