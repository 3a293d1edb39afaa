"""Admits a task that the agent of another task submits: within the limits of its tree, and with no more rights."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from delegate.config.settings import Settings
from delegate.errors import ChildRefused, ChildrenOverBudget, ChildrenTooDeep, NoRunnerLeft, TooManyChildren
from delegate.model import PAID_AGENTS, AgentName, EventKind, Mode, Task, TaskId
from delegate.store.attempts import lock_budget
from delegate.store.children import committed_budget, count_children_since, is_descendant, open_parents
from delegate.store.database import Connection
from delegate.store.events import last_event_of_kind
from delegate.store.runners import all_slots
from delegate.store.tasks import get_task

GENERATIONS_MAX = 3
CHILDREN_PER_HOUR = 30  # of one root task, at all depths together
RATE_PERIOD = timedelta(hours=1)
BYPASS = "bypassPermissions"


def admit_child(connection: Connection, new: Task, parent_id: TaskId, settings: Settings, now: datetime) -> Task:
    """Return the task as a child of its parent, or raise the reason to refuse it."""
    lock_budget(connection)  # limits of several trees meet: agents must not exceed them by submitting at the same time
    parent = _get(connection, parent_id)
    root = parent if parent.root_id is None else _get(connection, parent.root_id)
    generation = parent.generation + 1
    if generation > GENERATIONS_MAX:
        raise ChildrenTooDeep(limit=GENERATIONS_MAX)
    count = count_children_since(connection, root.id, now - RATE_PERIOD)
    if count >= CHILDREN_PER_HOUR:
        raise TooManyChildren(root=root.id, count=count, limit=CHILDREN_PER_HOUR, retry_after=60.0)
    _check_privacy(connection, parent)
    _check_runners(connection, parent, settings)
    for task_id in new.depends_on:
        if not is_descendant(connection, task_id, parent):
            raise ChildRefused(why=f"it depends on {task_id}, which is not a task of this agent")
    child = replace(new, permission_mode=_permission_mode(new, parent))
    _check_rights(child, parent)
    budget = _budget(connection, child, root)
    limits = replace(child.limits, max_budget_usd=budget)
    below = replace(child, limits=limits, submitted_by=parent.id, root_id=root.id, generation=generation)
    return replace(below, created_by=parent.created_by, is_from_linear=parent.is_from_linear)


def _get(connection: Connection, task_id: TaskId) -> Task:
    found = get_task(connection, task_id)
    if found is None:
        raise ChildRefused(why=f"its task {task_id} no longer exists")
    return found


def _check_privacy(connection: Connection, parent: Task) -> None:
    """A prompt that an agent writes is its text, which such a machine does not report."""
    claimed = last_event_of_kind(connection, parent.id, EventKind.CLAIMED)
    if claimed is not None and (level := claimed.data.get("privacy")) is not None:
        raise ChildRefused(why=f"its machine reports at the privacy level {level}, and a prompt would leave it")


def _check_runners(connection: Connection, parent: Task, settings: Settings) -> None:
    """A running task may wait for its child. One runner must stay free of such tasks, or all would wait for ever."""
    limit = settings.max_runners
    if limit is None:
        runners = {slot.runner.id: slot.runner for slot in all_slots(connection)}.values()
        if not runners or not all(runner.is_paired for runner in runners):  # the pool of a keeper grows with its tasks
            return
        limit = sum(runner.slots for runner in runners)
    holding = open_parents(connection) | {parent.id}
    if len(holding) >= limit:
        raise NoRunnerLeft(count=limit)


def _permission_mode(new: Task, parent: Task) -> str | None:
    """A child has its parent's mode; a shell task has none."""
    if AgentName.SHELL in (new.agent, parent.agent):
        return new.permission_mode
    if new.permission_mode not in (None, parent.permission_mode):
        given = parent.permission_mode or "the default"
        raise ChildRefused(why=f"its permission mode must be that of its parent ({given})")
    return parent.permission_mode


def _check_rights(child: Task, parent: Task) -> None:
    if child.agent == AgentName.SHELL and parent.agent != AgentName.SHELL:
        raise ChildRefused(why="only a shell task may submit a shell task")
    if parent.agent != AgentName.CODEX or parent.permission_mode == BYPASS:
        return
    # The parent works in a sandbox, and its child must not get out of it.
    if child.agent != AgentName.CODEX:
        raise ChildRefused(why="Codex in its sandbox may submit tasks for codex only")
    if _place(child) != _place(parent):
        why = "Codex in its sandbox may submit tasks only with its own directory, repository, mode and base branch"
        raise ChildRefused(why=why)


def _place(task: Task) -> tuple[str | None, str | None, Mode, str | None]:
    """Compared for equality: whatever is below a directory, or on another branch, its agent may have made itself."""
    return task.working_directory, task.repository, task.mode, task.base


def _budget(connection: Connection, child: Task, root: Task) -> float | None:
    """Return what the child may spend: at most what the root task's budget leaves, and half of it unless it asks."""
    whole = root.limits.max_budget_usd
    if whole is None or child.agent not in PAID_AGENTS:
        return child.limits.max_budget_usd
    left = whole - root.usage.cost_usd - committed_budget(connection, root.id)
    wanted = left / 2 if child.limits.max_budget_usd is None else child.limits.max_budget_usd
    if left <= 0 or wanted > left:
        advice = "submit with a lower budget, or without one to use half of what is left"
        if left <= 0:
            advice = "do the work in this task, or wait until one of those tasks ends with less than its budget"
        raise ChildrenOverBudget(root=root.id, whole=f"{whole:.2f}", left=f"{max(left, 0.0):.2f}", advice=advice)
    return wanted
