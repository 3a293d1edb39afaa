"""Queries on the tasks that agents submit: children, their parents, and the trees they form."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select

from delegate.model import Task, TaskId, Usage
from delegate.states import FINAL_TASK_STATES
from delegate.store.tables import is_open_child, task
from delegate.store.tasks import get_task

# Built once: every renewal needs it.
OPEN_CHILD = select(task.c.id).where(task.c.submitted_by == bindparam("parent"), is_open_child(task)).limit(1)


def count_children_since(connection: Connection, root: TaskId, since: datetime) -> int:
    """Count the tasks that agents have submitted below this root task since then."""
    mine = (task.c.root_id == root, task.c.created_at > since)
    return int(connection.execute(select(func.count()).select_from(task).where(*mine)).scalar_one())


def committed_budget(connection: Connection, root: TaskId) -> float:
    """Return what the tasks below this root task have spent, or may still spend if they have not ended."""
    columns = (task.c.state, task.c.max_budget_usd, task.c.usage)
    below = connection.execute(select(*columns).where(task.c.root_id == root))
    return sum(_commitment(row.state, row.max_budget_usd, Usage(**row.usage).cost_usd) for row in below)


def _commitment(state: str, budget: float | None, spent: float) -> float:
    return spent if state in FINAL_TASK_STATES else max(budget or 0.0, spent)


def open_parents(connection: Connection) -> set[str]:
    """Return the tasks that have not ended and have such a child: each holds a runner, now or when it is tried again,
    and may wait for its child."""
    child = task.alias("child")
    ended = [state.value for state in FINAL_TASK_STATES]
    parents = (
        select(task.c.id)
        .join(child, child.c.submitted_by == task.c.id)
        .where(task.c.state.not_in(ended), is_open_child(child))
    )
    return set(connection.execute(parents).scalars())


def has_open_child(connection: Connection, task_id: TaskId) -> bool:
    return connection.execute(OPEN_CHILD, {"parent": task_id}).first() is not None


def is_descendant(connection: Connection, task_id: TaskId, ancestor: Task) -> bool:
    """Whether an agent of the ancestor's lineage, or of a task below it, has submitted the task."""
    found = get_task(connection, task_id)
    while found is not None and found.submitted_by is not None:
        found = get_task(connection, found.submitted_by)
        if found is not None and found.lineage == ancestor.lineage:
            return True
    return False
