"""Reads the dependency graph of a task: direct and indirect dependencies and dependents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from delegate.errors import NoSuchTask
from delegate.model import Task, TaskId
from delegate.queue.limits import QueueRules
from delegate.queue.waiting import QueueSnapshot, read_snapshot
from delegate.store.database import Connection, Database
from delegate.store.graph import dependency_ids_of, dependents_of, tasks_by_id
from delegate.store.tasks import get_task

GRAPH_MAX = 500  # tasks that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    tasks: list[Task]  # the oldest first
    is_cut: bool
    snapshot: QueueSnapshot


async def graph_of(database: Database, task_id: TaskId, rules: QueueRules, now: datetime) -> Graph:
    """Return the dependencies and dependents of a task; of more than GRAPH_MAX, the nearest."""

    def read(connection: Connection) -> Graph:
        if get_task(connection, task_id) is None:
            raise NoSuchTask(task_id=task_id)
        related = _find_related(connection, task_id)
        tasks = tasks_by_id(connection, related[:GRAPH_MAX])
        snapshot = read_snapshot(connection, tasks, rules, now)
        return Graph(tasks=tasks, is_cut=len(related) > GRAPH_MAX, snapshot=snapshot)

    return await database.read(read)


def _find_related(connection: Connection, task_id: TaskId) -> list[TaskId]:
    """Return the nearest tasks first; stops after GRAPH_MAX."""
    found = {task_id: None}
    above, below = [task_id], [task_id]

    def add_unseen(ids: Iterable[TaskId]) -> list[TaskId]:
        new = [one for one in ids if one not in found][: GRAPH_MAX + 1]
        found.update(dict.fromkeys(new))
        return new

    while (above or below) and len(found) <= GRAPH_MAX:
        above = add_unseen(dependency_ids_of(connection, above)) if above else []
        below = add_unseen(dependents_of(connection, below)) if below else []
    return list(found)
