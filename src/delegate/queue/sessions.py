"""Whose an agent's session is: one task at a time goes on in it."""

from __future__ import annotations

from dataclasses import replace

from delegate.errors import IllegalMove
from delegate.model import Mode, Task
from delegate.store.database import Connection
from delegate.store.graph import have_session, is_session_shared
from delegate.store.tasks import chain_of, keep_session, lock_task


def with_session(connection: Connection, task: Task) -> Task:
    """As its first attempt gets it: in its forerunner's session, if that can be reached and nobody else is in it."""
    if task.continue_from is None or task.fence > 1 or task.session_id is not None:
        return task
    continued_task = lock_task(connection, task.continue_from)  # so that of two that continue it, one finds the other
    if continued_task is None or continued_task.session_id is None or not can_share(task, continued_task):
        return task
    session_id = continued_task.session_id
    chain = [task_id for task_id, _ in chain_of(connection, continued_task.lineage)]
    later = chain[chain.index(continued_task.id) + 1 :]  # a retry has it, and may have more to say in it
    if have_session(connection, later, session_id) or is_session_shared(connection, chain, session_id):
        return task
    continued = replace(task, session_id=session_id)
    if not keep_session(connection, continued):
        raise IllegalMove(task_id=task.id, state="not running any more", verb="continued", advice="claim again")
    return continued


def without_shared_session(connection: Connection, task: Task) -> Task:
    """As a later one of a chain gets it: a session in which a task after it has gone on is not its own any more."""
    if task.session_id is None:
        return task
    chain = [task_id for task_id, _ in chain_of(connection, task.lineage)]
    return replace(task, session_id=None) if is_session_shared(connection, chain, task.session_id) else task


def can_share(task: Task, continued_task: Task) -> bool:
    """Pure: a session is of use only to the same agent in the same place."""
    places = {(one.agent, one.mode, one.machine, one.working_directory) for one in (task, continued_task)}
    return task.mode is Mode.IN_PLACE and len(places) == 1
