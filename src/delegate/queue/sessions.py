"""Decides which task may resume an agent session: one at a time."""

from __future__ import annotations

from dataclasses import replace

from delegate.errors import IllegalMove
from delegate.model import Mode, Task
from delegate.store.database import Connection
from delegate.store.graph import have_session, is_session_shared
from delegate.store.tasks import chain_of, keep_session, lock_task


def with_session(connection: Connection, task: Task) -> Task:
    """Give the first attempt the session of the task it continues, if that is usable and no other task uses it."""
    if task.continue_from is None or task.fence > 1 or task.session_id is not None:
        return task
    continued_task = lock_task(connection, task.continue_from)  # of two tasks that continue it, one must see the other
    if continued_task is None or continued_task.session_id is None or not can_share(task, continued_task):
        return task
    session_id = continued_task.session_id
    chain = [task_id for task_id, _ in chain_of(connection, continued_task.lineage)]
    later = chain[chain.index(continued_task.id) + 1 :]  # a retry may still use the session
    if have_session(connection, later, session_id) or is_session_shared(connection, chain, session_id):
        return task
    continued = replace(task, session_id=session_id)
    if not keep_session(connection, continued):
        raise IllegalMove(task_id=task.id, state="no longer running", verb="continued", advice="claim again")
    return continued


def without_shared_session(connection: Connection, task: Task) -> Task:
    """Drop the session from the task if a task that continues its lineage has used it."""
    if task.session_id is None:
        return task
    chain = [task_id for task_id, _ in chain_of(connection, task.lineage)]
    return replace(task, session_id=None) if is_session_shared(connection, chain, task.session_id) else task


def can_share(task: Task, continued_task: Task) -> bool:
    """Pure: a session is usable only by the same agent in the same directory."""
    places = {(one.agent, one.mode, one.machine, one.working_directory) for one in (task, continued_task)}
    return task.mode is Mode.IN_PLACE and len(places) == 1
