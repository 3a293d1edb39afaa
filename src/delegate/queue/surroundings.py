"""What `why` must know of the relay besides the task itself, read in one go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from delegate.model import Task
from delegate.queue.claim import budget_left
from delegate.queue.rules import Rules
from delegate.queue.why import Surroundings
from delegate.states import TaskState
from delegate.store.attempts import running_attempts
from delegate.store.database import Connection
from delegate.store.graph import dependencies_of
from delegate.store.runners import all_runners


def around_tasks(connection: Connection, tasks: Sequence[Task], rules: Rules, now: datetime) -> Surroundings:
    """Of these tasks too, if they wait for others."""
    blocked = [task.id for task in tasks if task.state is TaskState.BLOCKED]
    attempts = running_attempts(connection)
    silent = [attempt for attempt in attempts if now - attempt.renewed_at > rules.lease]
    return Surroundings(
        runners=all_runners(connection),
        busy=frozenset(attempt.runner_id for attempt in attempts if attempt not in silent),
        silent=frozenset(attempt.task_id for attempt in silent),
        silent_after=rules.lease,
        budget_left=budget_left(connection, rules, now),
        max_runners=rules.max_runners,
        now=now,
        waited_for=dependencies_of(connection, blocked) if blocked else {},
    )
