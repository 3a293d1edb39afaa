"""Whose an agent's session is: one task at a time goes on in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delegate.model import Mode, Task, TaskId
from delegate.store.database import Connection
from delegate.store.graph import dependents_of, have_session
from delegate.store.tasks import chain_of, keep_session, lock_task


def with_session(connection: Connection, task: Task) -> Task:
    """As its first attempt gets it: in its forerunner's session, if that can be reached and nobody else is in it."""
    if task.continue_from is None or task.fence > 1 or task.session_id is not None:
        return task
    forerunner = lock_task(connection, task.continue_from)  # so that of two that continue it, one finds the other
    if forerunner is None or not can_share(task, forerunner):
        return task
    chain = [task_id for task_id, _ in chain_of(connection, forerunner.lineage)]
    later = chain[chain.index(forerunner.id) + 1 :]  # a retry has it, and may have more to say in it
    if is_used(connection, forerunner, [*later, *dependents_of(connection, chain)]):
        return task
    continued = replace(task, session_id=forerunner.session_id)
    keep_session(connection, continued)
    return continued


def without_lent_session(connection: Connection, again: Task) -> Task:
    """As a later one of a chain gets it: a session in which a task after it has gone on is not its own any more."""
    chain = [task_id for task_id, _ in chain_of(connection, again.lineage)]
    is_lent = is_used(connection, again, dependents_of(connection, chain))
    return replace(again, session_id=None) if is_lent else again


def can_share(task: Task, forerunner: Task) -> bool:
    """Pure: a session is of use only to the same agent in the same place."""
    places = {(one.agent, one.mode, one.machine, one.working_directory) for one in (task, forerunner)}
    return forerunner.session_id is not None and task.mode is Mode.IN_PLACE and len(places) == 1


def is_used(connection: Connection, owner: Task, others: Sequence[TaskId]) -> bool:
    return owner.session_id is not None and have_session(connection, others, owner.session_id)
