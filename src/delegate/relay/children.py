"""What an agent may do with tasks, over HTTP and MCP: submit children, and read and cancel those."""

from __future__ import annotations

from dataclasses import replace

from delegate.config.settings import Settings
from delegate.errors import Forbidden, Unauthenticated
from delegate.intake.submit import Request
from delegate.model import Attempt, Task, TaskId
from delegate.relay.requests import Relay
from delegate.store.children import is_descendant
from delegate.store.database import Connection
from delegate.store.tasks import get_task


async def task_of_agent(relay: Relay, attempt: Attempt, named: str | None, *, reads_only: bool) -> Task:
    """Return the agent's own task, if the agent may use the named one."""

    def read(connection: Connection) -> tuple[Task | None, bool]:
        own = get_task(connection, attempt.task_id)
        is_below = own is not None and named is not None and is_descendant(connection, TaskId(named), own)
        return own, is_below

    own, is_below = await relay.database.read(read)
    if own is None:
        raise Unauthenticated
    if not (named is None or is_below or (named == own.id and reads_only)):
        raise Forbidden(what="this; an agent can submit tasks, and read and cancel those")
    return own


def limit_child(relay: Relay, wanted: Request, parent: Task | None) -> tuple[Request, Settings]:
    """Return the request with its parent, the task of the agent that submits it, and the settings that limit it."""
    if parent is None:
        return wanted, relay.settings
    return replace(wanted, submitted_by=parent.id), replace(relay.settings, max_runners=relay.max_runners)
