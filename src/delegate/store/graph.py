"""Verbs on what waits for what. Rows are locked in the order they were born in: a task is younger than all it waits
for, so two who lock some of the same rows do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from delegate.model import Task, TaskId
from delegate.states import Reason, TaskState
from delegate.store.tables import dependency, task
from delegate.store.tasks import to_task

INSERT = insert(dependency)
# Every end of a task asks this: made once, it is hashed once.
DEPENDENTS = (
    select(dependency.c.task_id).where(dependency.c.depends_on.in_(bindparam("ids", expanding=True))).distinct()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """How a task stands that another one waits for."""

    id: TaskId
    state: TaskState
    reason: Reason | None
    depth: int


def insert_dependencies(connection: Connection, new: Task) -> None:
    connection.execute(INSERT, [{"task_id": new.id, "depends_on": other} for other in new.depends_on])


def hold_dependencies(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, Dependency]:
    """Those of these tasks that exist; none of them can end before this transaction does."""
    query = select(task.c.id, task.c.state, task.c.reason, task.c.depth).where(task.c.id.in_(ids))
    rows = connection.execute(query.order_by(task.c.seq).with_for_update(read=True))
    return {TaskId(row.id): to_dependency(row) for row in rows}


def dependents_of(connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
    """Whoever waits for any of these, or has."""
    return [TaskId(task_id) for task_id in connection.execute(DEPENDENTS, {"ids": ids}).scalars()]


def needed_by(connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
    """Whatever any of these waits for, or has waited for; some may have been dropped."""
    query = select(dependency.c.depends_on).where(dependency.c.task_id.in_(ids)).distinct()
    return [TaskId(task_id) for task_id in connection.execute(query).scalars()]


def lock_blocked(connection: Connection, ids: Sequence[TaskId]) -> list[Task]:
    """Those of these tasks that still wait for others, held until the transaction ends."""
    query = select(task).where(task.c.id.in_(ids), task.c.state == TaskState.BLOCKED)
    return [to_task(row) for row in connection.execute(query.order_by(task.c.seq).with_for_update())]


def dependencies_of(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, list[Dependency]]:
    """What each of these tasks waits for, the oldest first. One that was dropped had ended as it should have."""
    query = (
        select(dependency.c.task_id, task.c.id, task.c.state, task.c.reason, task.c.depth)
        .join(task, task.c.id == dependency.c.depends_on)
        .where(dependency.c.task_id.in_(ids))
        .order_by(task.c.seq)
    )
    found: dict[TaskId, list[Dependency]] = {task_id: [] for task_id in ids}
    for row in connection.execute(query):
        found[TaskId(row.task_id)].append(to_dependency(row))
    return found


def release_blocked(connection: Connection, ids: Sequence[TaskId]) -> int:
    """To the queue; returns how many of them still waited."""
    waiting = (task.c.id.in_(ids), task.c.state == TaskState.BLOCKED)
    return connection.execute(update(task).where(*waiting).values(state=TaskState.QUEUED)).rowcount


def tasks_by_id(connection: Connection, ids: Iterable[TaskId]) -> list[Task]:
    """Those that exist, the oldest first."""
    query = select(task).where(task.c.id.in_(list(ids))).order_by(task.c.seq)
    return [to_task(row) for row in connection.execute(query)]


def have_session(connection: Connection, ids: Sequence[TaskId], session_id: str) -> bool:
    """Whether any of these works, or has worked, in an agent's session."""
    query = select(task.c.id).where(task.c.id.in_(ids), task.c.session_id == session_id).limit(1)
    return connection.execute(query).first() is not None


def to_dependency(row: Row[*tuple[Any, ...]]) -> Dependency:
    reason = None if row.reason is None else Reason(row.reason)
    return Dependency(id=TaskId(row.id), state=TaskState(row.state), reason=reason, depth=row.depth)
