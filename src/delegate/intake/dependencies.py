"""Checks the dependencies of a new task and locks them until the task is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delegate.errors import DependencyFailed, InvalidField, TooDeep, UnknownDependency
from delegate.model import DEPENDENCIES_MAX, DEPENDENTS_MAX, DEPTH_MAX, Task, TaskId
from delegate.queue.cascade import first_failed_dependency, is_ready
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection
from delegate.store.graph import Dependency, count_dependents, lock_dependencies


def all_dependencies(depends_on: Sequence[TaskId], continue_from: TaskId | None) -> tuple[TaskId, ...]:
    """Pure: merge both fields into one list without duplicates."""
    wanted = tuple(dict.fromkeys([*depends_on, *([continue_from] if continue_from else [])]))
    if len(wanted) > DEPENDENCIES_MAX:
        raise InvalidField(
            field="dependsOn", why=f"has {len(wanted)} tasks including continueFrom; the limit is {DEPENDENCIES_MAX}"
        )
    return wanted


def resolve_dependencies(connection: Connection, new: Task) -> Task:
    """Return the task queued or blocked, as its dependencies require, or raise the reason to refuse it.

    No dependency can end before the transaction does: an end releases only the dependents written by then.
    """
    if not new.depends_on:
        return new
    found = lock_dependencies(connection, new.depends_on)
    for task_id in new.depends_on:
        if task_id not in found:
            raise UnknownDependency(field=_field(new, task_id), task_id=task_id)
    known = list(found.values())
    if (bad := first_failed_dependency(new, known)) is not None:
        raise DependencyFailed(field=_field(new, bad.id), task_id=bad.id, state=bad.state)
    depth = 1 + max(one.depth for one in known)
    if depth > DEPTH_MAX:
        raise TooDeep(field="dependsOn", depth=depth, limit=DEPTH_MAX)
    _check_dependent_counts(connection, new, known)
    return replace(new, depth=depth, state=TaskState.QUEUED if is_ready(known) else TaskState.BLOCKED)


def _check_dependent_counts(connection: Connection, new: Task, known: Sequence[Dependency]) -> None:
    """Concurrent submits may exceed the limit by a few tasks, which does no harm."""
    live = [one.id for one in known if one.state not in FINAL_TASK_STATES]
    for task_id, waiting in count_dependents(connection, live).items():
        if waiting >= DEPENDENTS_MAX:
            why = (
                f"cannot name {task_id}: {waiting:,} tasks depend on it, and the limit is {DEPENDENTS_MAX:,}; "
                "add a task in between, or depend on one of those"
            )
            raise InvalidField(field=_field(new, task_id), why=why)


def _field(new: Task, task_id: TaskId) -> str:
    return "continueFrom" if task_id == new.continue_from else "dependsOn"
