"""Queries on dependencies between tasks.

Rows are locked by depth, then by age. A task is deeper than its dependencies, so transactions that lock some of the
same rows do not deadlock. Other locks (attempts, schedules, the task that a claim continues) have no order: PostgreSQL
resolves a deadlock, and the job runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, and_, bindparam, case, func, insert, or_, select, update

from delegate.model import Blocker, OnDependencyFailure, Task, TaskId
from delegate.states import FINAL_TASK_STATES, Reason, TaskState
from delegate.store.tables import WAITS_FOR_ISSUE, dependency, has_state, task
from delegate.store.tasks import blocker_data, to_task

T = TypeVar("T", TaskId, int)
UNSUCCESSFUL_TASK_STATES = (TaskState.FAILED, TaskState.CANCELLED)
OPEN_TASK_STATES = tuple(state for state in TaskState if state not in FINAL_TASK_STATES)
IDS_AT_ONCE = 500  # in one statement: both databases limit the number of parameters
INSERT = insert(dependency)
# Built once: every end of a task runs it. States are filtered in Python: with a condition on them, a planner would
# start from all blocked tasks.
DEPENDENTS = select(task.c.depth, task.c.seq, task.c.id, task.c.state).where(
    task.c.id.in_(select(dependency.c.task_id).where(dependency.c.depends_on.in_(bindparam("ids", expanding=True))))
)
CANCEL_BLOCKED = (
    update(task)
    .where(
        task.c.id == bindparam("known_id"),
        has_state(task, TaskState.BLOCKED),
        task.c.fence == bindparam("known_fence"),
    )
    .values(
        state=TaskState.CANCELLED,
        reason=bindparam("why"),
        message=bindparam("words"),
        finished_at=bindparam("ended_at", type_=task.c.finished_at.type),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """The state of a task that another one depends on."""

    id: TaskId
    state: TaskState
    reason: Reason | None
    depth: int


@dataclass(frozen=True, slots=True, order=True)
class BlockedTask:
    """A blocked task, sortable in lock order."""

    depth: int
    seq: int
    id: TaskId


def in_batches(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def insert_dependencies(connection: Connection, new: Task) -> None:
    connection.execute(INSERT, [{"task_id": new.id, "depends_on": other} for other in new.depends_on])


def lock_dependencies(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, Dependency]:
    """Lock and return those of these tasks that exist; none can end before this transaction does."""
    columns = select(task.c.id, task.c.state, task.c.reason, task.c.depth).order_by(task.c.depth, task.c.seq)
    found: dict[TaskId, Dependency] = {}
    for some in in_batches(_in_lock_order(connection, ids)):
        rows = connection.execute(columns.where(task.c.id.in_(some)).with_for_update(read=True))
        found |= {TaskId(row.id): to_dependency(row) for row in rows}
    return found


def _in_lock_order(connection: Connection, ids: Sequence[TaskId]) -> Sequence[TaskId]:
    if len(ids) <= IDS_AT_ONCE:
        return ids  # a single statement locks them in order
    places = select(task.c.depth, task.c.seq, task.c.id)
    rows = [row for some in in_batches(ids) for row in connection.execute(places.where(task.c.id.in_(some)))]
    return [TaskId(row.id) for row in sorted(rows, key=lambda row: (row.depth, row.seq))]


def count_dependents(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, int]:
    """Count the past and present dependents of each task; tasks without any are left out."""
    query = select(dependency.c.depends_on, func.count()).where(dependency.c.depends_on.in_(ids))
    return {TaskId(task_id): count for task_id, count in connection.execute(query.group_by(dependency.c.depends_on))}


def dependents_of(connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
    """Return the past and present dependents of these tasks."""
    query = select(dependency.c.task_id).distinct()
    slices = (query.where(dependency.c.depends_on.in_(some)) for some in in_batches(ids))
    return list(dict.fromkeys(TaskId(one) for query in slices for one in connection.execute(query).scalars()))


def dependency_ids_of(connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
    """Return the past and present dependencies of these tasks; some may have been deleted."""
    query = select(dependency.c.depends_on).distinct()
    slices = (query.where(dependency.c.task_id.in_(some)) for some in in_batches(ids))
    return list(dict.fromkeys(TaskId(one) for query in slices for one in connection.execute(query).scalars()))


def blocked_dependents(connection: Connection, ids: Sequence[TaskId]) -> set[BlockedTask]:
    """Return the blocked dependents of these tasks."""
    rows = (row for some in in_batches(ids) for row in connection.execute(DEPENDENTS, {"ids": some}))
    return {to_blocked(row) for row in rows if row.state == TaskState.BLOCKED}


def find_unsettled_blocked(connection: Connection, *, limit: int) -> list[BlockedTask]:
    """Return blocked tasks that could be settled: a dependency ended with too many dependents for one transaction."""
    other = task.alias()
    dependencies = (
        select(other.c.id)
        .join(dependency, dependency.c.depends_on == other.c.id)
        .where(dependency.c.task_id == task.c.id)
        .correlate(task)
    )
    is_spoilt = dependencies.where(other.c.state.in_(UNSUCCESSFUL_TASK_STATES)).exists()
    is_open = dependencies.where(other.c.state.in_(OPEN_TASK_STATES)).exists()
    is_ready = and_(~is_open, task.c.blockers.is_(None))
    is_late = or_(and_(task.c.on_dependency_failure == OnDependencyFailure.CANCEL, is_spoilt), is_ready)
    query = select(task.c.depth, task.c.seq, task.c.id).where(has_state(task, TaskState.BLOCKED), is_late)
    return [to_blocked(row) for row in connection.execute(query.order_by(task.c.seq).limit(limit))]


def lock_blocked(connection: Connection, ids: Sequence[TaskId]) -> list[Task]:
    """Lock and return those of these tasks that are still blocked."""
    query = select(task).where(task.c.id.in_(ids), has_state(task, TaskState.BLOCKED))
    rows = connection.execute(query.order_by(task.c.depth, task.c.seq).with_for_update())
    return [to_task(row) for row in rows]


def dependencies_of(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, list[Dependency]]:
    """Return the dependencies of each task, oldest first. A deleted dependency had ended."""
    query = (
        select(dependency.c.task_id, task.c.id, task.c.state, task.c.reason, task.c.depth)
        .join(task, task.c.id == dependency.c.depends_on)
        .order_by(task.c.seq)
    )
    found: dict[TaskId, list[Dependency]] = {task_id: [] for task_id in ids}
    for some in in_batches(ids):
        for row in connection.execute(query.where(dependency.c.task_id.in_(some))):
            found[TaskId(row.task_id)].append(to_dependency(row))
    return found


def decisive_dependencies(connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, list[Dependency]]:
    """Return the dependencies of each task that decide its state: the oldest that did not complete, and the oldest that
    is still open."""
    spoiler, unended = (
        func.min(case((task.c.state.in_(states), task.c.seq)))
        for states in (UNSUCCESSFUL_TASK_STATES, OPEN_TASK_STATES)
    )
    query = (
        select(dependency.c.task_id, spoiler.label("spoiler"), unended.label("unended"))
        .join(task, task.c.id == dependency.c.depends_on)
        .group_by(dependency.c.task_id)
    )
    rows = [row for some in in_batches(ids) for row in connection.execute(query.where(dependency.c.task_id.in_(some)))]
    known = _dependencies_at(connection, sorted({seq for row in rows for seq in row[1:] if seq is not None}))
    found: dict[TaskId, list[Dependency]] = {task_id: [] for task_id in ids}
    for row in rows:
        found[TaskId(row.task_id)] = [known[seq] for seq in row[1:] if seq is not None]
    return found


def _dependencies_at(connection: Connection, places: Sequence[int]) -> dict[int, Dependency]:
    columns = select(task.c.seq, task.c.id, task.c.state, task.c.reason, task.c.depth)
    slices = (columns.where(task.c.seq.in_(some)) for some in in_batches(places))
    return {row.seq: to_dependency(row) for query in slices for row in connection.execute(query)}


def waiting_for_issues(connection: Connection) -> list[tuple[BlockedTask, tuple[Blocker, ...]]]:
    """Return the tasks that wait for issues, and these issues."""
    query = select(task.c.depth, task.c.seq, task.c.id, task.c.blockers).where(WAITS_FOR_ISSUE)
    return [(to_blocked(row), tuple(Blocker(**one) for one in row.blockers)) for row in connection.execute(query)]


def set_blockers(connection: Connection, task_id: TaskId, blockers: Sequence[Blocker]) -> None:
    waiting = update(task).where(task.c.id == task_id, has_state(task, TaskState.BLOCKED))
    connection.execute(waiting.values(blockers=blocker_data(blockers)))


def release_blocked(connection: Connection, ids: Sequence[TaskId], now: datetime) -> int:
    """Queue these tasks; returns how many were still blocked."""
    waiting = (task.c.id.in_(ids), has_state(task, TaskState.BLOCKED))
    return connection.execute(update(task).where(*waiting).values(state=TaskState.QUEUED, claimable_at=now)).rowcount


def cancel_blocked(connection: Connection, cancelled: Sequence[Task]) -> int:
    """Write the ends of tasks that never ran; returns how many were still blocked and unchanged."""
    rows = [
        {
            "known_id": one.id,
            "known_fence": one.fence,
            "why": one.reason,
            "words": one.message,
            "ended_at": one.finished_at,
        }
        for one in cancelled
    ]
    return connection.execute(CANCEL_BLOCKED, rows).rowcount


def tasks_by_id(connection: Connection, ids: Iterable[TaskId]) -> list[Task]:
    """Return the tasks that exist, oldest first."""
    query = select(task).where(task.c.id.in_(list(ids))).order_by(task.c.seq)
    return [to_task(row) for row in connection.execute(query)]


def have_session(connection: Connection, ids: Sequence[TaskId], session_id: str) -> bool:
    """Whether any of these tasks uses, or has used, an agent session."""
    query = select(task.c.id).where(task.c.session_id == session_id).limit(1)
    slices = (query.where(task.c.id.in_(some)) for some in in_batches(ids))
    return any(connection.execute(query).first() is not None for query in slices)


def is_session_shared(connection: Connection, owners: Sequence[TaskId], session_id: str) -> bool:
    """Whether a dependent of these tasks uses, or has used, an agent session."""
    query = (
        select(task.c.id)
        .join(dependency, dependency.c.task_id == task.c.id)
        .where(task.c.session_id == session_id)
        .limit(1)
    )
    slices = (query.where(dependency.c.depends_on.in_(some)) for some in in_batches(owners))
    return any(connection.execute(query).first() is not None for query in slices)


def to_blocked(row: Row[*tuple[Any, ...]]) -> BlockedTask:
    return BlockedTask(depth=row.depth, seq=row.seq, id=TaskId(row.id))


def to_dependency(row: Row[*tuple[Any, ...]]) -> Dependency:
    reason = None if row.reason is None else Reason(row.reason)
    return Dependency(id=TaskId(row.id), state=TaskState(row.state), reason=reason, depth=row.depth)
