"""Whose an agent's session is: one task at a time goes on in it."""

from __future__ import annotations

from dataclasses import replace

from delegate.errors import IllegalMove
from delegate.model import Mode, Task
from delegate.store.database import Connection
from delegate.store.graph import have_session, is_session_lent
from delegate.store.tasks import chain_of, keep_session, lock_task


def with_session(connection: Connection, task: Task) -> Task:
    """As its first attempt gets it: in its forerunner's session, if that can be reached and nobody else is in it."""
    if task.continue_from is None or task.fence > 1 or task.session_id is not None:
        return task
    forerunner = lock_task(connection, task.continue_from)  # so that of two that continue it, one finds the other
    if forerunner is None or forerunner.session_id is None or not can_share(task, forerunner):
        return task
    session_id = forerunner.session_id
    chain = [task_id for task_id, _ in chain_of(connection, forerunner.lineage)]
    later = chain[chain.index(forerunner.id) + 1 :]  # a retry has it, and may have more to say in it
    if have_session(connection, later, session_id) or is_session_lent(connection, chain, session_id):
        return task
    continued = replace(task, session_id=session_id)
    if not keep_session(connection, continued):
        raise IllegalMove(task_id=task.id, state="not running any more", verb="continued", advice="claim again")
    return continued


def without_lent_session(connection: Connection, again: Task) -> Task:
    """As a later one of a chain gets it: a session in which a task after it has gone on is not its own any more."""
    if again.session_id is None:
        return again
    chain = [task_id for task_id, _ in chain_of(connection, again.lineage)]
    return replace(again, session_id=None) if is_session_lent(connection, chain, again.session_id) else again


def can_share(task: Task, forerunner: Task) -> bool:
    """Pure: a session is of use only to the same agent in the same place."""
    places = {(one.agent, one.mode, one.machine, one.working_directory) for one in (task, forerunner)}
    return task.mode is Mode.IN_PLACE and len(places) == 1
