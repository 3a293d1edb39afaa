"""What a task waits for and what waits for it, near and far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from delegate.errors import NoSuchTask
from delegate.model import Task, TaskId
from delegate.queue.rules import Rules
from delegate.queue.waiting import Surroundings, around_tasks
from delegate.store.database import Connection, Database
from delegate.store.graph import dependents_of, needed_by, tasks_by_id
from delegate.store.tasks import get_task

GRAPH_MAX = 500  # tasks that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    tasks: list[Task]  # the oldest first
    is_cut: bool
    around: Surroundings


async def graph_of(database: Database, task_id: TaskId, rules: Rules, now: datetime) -> Graph:
    """Every task that leads to this one or waits for it; of more than can be shown, the nearest."""

    def read(connection: Connection) -> Graph:
        if get_task(connection, task_id) is None:
            raise NoSuchTask(task_id=task_id)
        related = _related(connection, task_id)
        tasks = tasks_by_id(connection, related[:GRAPH_MAX])
        around = around_tasks(connection, tasks, rules, now)
        return Graph(tasks=tasks, is_cut=len(related) > GRAPH_MAX, around=around)

    return await database.read(read)


def _related(connection: Connection, task_id: TaskId) -> list[TaskId]:
    """The nearest first; stops when it has more than can be shown."""
    found = {task_id: None}
    above, below = [task_id], [task_id]

    def unseen(ids: Iterable[TaskId]) -> list[TaskId]:
        new = [one for one in ids if one not in found][: GRAPH_MAX + 1]
        found.update(dict.fromkeys(new))
        return new

    while (above or below) and len(found) <= GRAPH_MAX:
        above = unseen(needed_by(connection, above)) if above else []
        below = unseen(dependents_of(connection, below)) if below else []
    return list(found)
