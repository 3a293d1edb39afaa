"""Decides who may resume an agent session: one task at a time, for a while only the runner that has it."""

from __future__ import annotations

from dataclasses import replace

from delegate.errors import IllegalMove
from delegate.model import ANY_MACHINE, Attempt, Mode, Runner, RunnerId, Task
from delegate.store.attempts import attempts_of_task
from delegate.store.database import Connection
from delegate.store.graph import have_session, is_session_shared
from delegate.store.runners import get_runner
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


def preferred_runner(task: Task, last: Attempt | None) -> RunnerId | None:
    """Pure: return the runner that has the session and the files of a task that is not bound to a machine anyway."""
    return last.runner_id if last is not None and task.machine == ANY_MACHINE else None


def last_attempt(connection: Connection, task: Task, *, before: int | None = None) -> Attempt | None:
    """Return the last attempt of the task, with a fence below `before`, or else of the one it repeats."""
    attempts = [one for one in attempts_of_task(connection, task.id) if before is None or one.fence < before]
    if not attempts and task.retry_of is not None:
        attempts = attempts_of_task(connection, task.retry_of)
    return attempts[-1] if attempts else None


def session_elsewhere(connection: Connection, task: Task, runner: Runner, before: Attempt | None) -> Runner | None:
    """Return the other runner that has the session and the files of the task, which `runner` continues."""
    if before is None or before.runner_id == runner.id:
        return None
    other = get_runner(connection, before.runner_id)
    if other is None or (task.mode is Mode.IN_PLACE and other.machine == runner.machine):
        return None
    return other


def can_share(task: Task, continued_task: Task) -> bool:
    """Pure: a session is usable only by the same agent in the same directory."""
    places = {(one.agent, one.mode, one.machine, one.working_directory) for one in (task, continued_task)}
    return task.mode is Mode.IN_PLACE and len(places) == 1
