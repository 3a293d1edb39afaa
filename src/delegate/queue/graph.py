"""When a task that waits for others may run, and when it never will. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from delegate.model import OnDependencyFailure, Task
from delegate.states import FINAL_TASK_STATES, Reason, TaskState
from delegate.store.graph import Dependency

ENDED_AS = {TaskState.FAILED: "failed", TaskState.CANCELLED: "was cancelled"}


def spoiler(task: Task, dependencies: Sequence[Dependency]) -> Dependency | None:
    """The first one that has not ended well, if that keeps the task from ever running."""
    if task.on_dependency_failure is OnDependencyFailure.RUN:
        return None
    return next((one for one in dependencies if one.state in ENDED_AS), None)


def is_ready(dependencies: Sequence[Dependency]) -> bool:
    return all(one.state in FINAL_TASK_STATES for one in dependencies)


def settled(task: Task, dependencies: Sequence[Dependency], now: datetime) -> Task:
    """The task as it stands when those it waits for stand like this: still blocked, queued, or cancelled."""
    bad = spoiler(task, dependencies)
    if bad is not None:
        message = f"{bad.id}, which it waited for, {ENDED_AS[bad.state]}" + (f" ({bad.reason})" if bad.reason else "")
        return replace(
            task, state=TaskState.CANCELLED, reason=Reason.DEPENDENCY_FAILED, message=message, finished_at=now
        )
    return replace(task, state=TaskState.QUEUED if is_ready(dependencies) else TaskState.BLOCKED)
