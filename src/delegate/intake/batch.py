"""Submits several tasks, which may depend on each other, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from delegate.config.settings import Settings
from delegate.errors import CycleDetected, InvalidField
from delegate.intake.dependencies import resolve_dependencies
from delegate.intake.submit import (
    Request,
    SubmittedTask,
    build_task,
    find_submitted,
    insert_new_task,
    log_submitted,
    prefix_fields,
    resolve_preferences,
)
from delegate.model import Task, TaskId
from delegate.store.database import Connection, Database
from delegate.store.graph import lock_dependencies


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One task of a batch; other tasks of the batch may depend on it or continue it by its name."""

    request: Request
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraft:
    """A checked task whose dependencies may still be names of the batch instead of task ids."""

    entry: BatchItem
    task: Task
    notes: tuple[str, ...]


async def submit_batch(
    database: Database, entries: Sequence[BatchItem], settings: Settings, now: datetime
) -> list[SubmittedTask]:
    """Write all tasks in one commit and return them in the given order. Each request key belongs to one entry."""
    order = insertion_order(entries)
    _check_keys(entries)
    drafts = [_build_draft(index, entry, settings, now) for index, entry in enumerate(entries)]

    def write(connection: Connection) -> list[SubmittedTask]:
        lock_dependencies(connection, _external_dependencies(drafts))  # all at once, to lock them in a fixed order
        made: dict[int, SubmittedTask] = {}
        ids: dict[str, TaskId] = {}
        for index in order:
            with prefix_fields(f"tasks.{index}"):
                made[index] = _submit_draft(connection, drafts[index], ids)
            if (name := drafts[index].entry.name) is not None:
                ids[name] = made[index].task.id
        return [made[index] for index in range(len(drafts))]

    submitted = await database.write("submit.batch", write)
    for one in submitted:
        log_submitted(one)
    return submitted


def insertion_order(entries: Sequence[BatchItem]) -> list[int]:
    """Pure: return the indexes of the entries, each after its dependencies."""
    indexes: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry.name is None:
            continue
        if entry.name in indexes:
            why = f"is also the name of tasks.{indexes[entry.name]}; give each task its own name"
            raise InvalidField(field=f"tasks.{index}.name", why=why)
        indexes[entry.name] = index
    graph = {
        index: [indexes[name] for name in _dependency_names(entry) if name in indexes]
        for index, entry in enumerate(entries)
    }
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " → ".join(entries[index].name or str(index) for index in reversed(error.args[1]))
        raise CycleDetected(field="tasks", cycle=cycle) from None


def _check_keys(entries: Sequence[BatchItem]) -> None:
    indexes: dict[str, int] = {}
    for index, entry in enumerate(entries):
        key = entry.request.request_key
        if key is None:
            continue
        if key in indexes:
            why = f"is also the key of tasks.{indexes[key]}; give each task its own key"
            raise InvalidField(field=f"tasks.{index}.requestKey", why=why)
        indexes[key] = index


def _external_dependencies(drafts: Sequence[TaskDraft]) -> list[TaskId]:
    """Pure: return the dependencies that are not part of the batch."""
    inside = {draft.entry.name for draft in drafts}
    wanted = dict.fromkeys(name for draft in drafts for name in draft.task.depends_on)
    return [name for name in wanted if name not in inside]


def _dependency_names(entry: BatchItem) -> list[str]:
    return [*entry.request.depends_on, *([entry.request.continue_from] if entry.request.continue_from else [])]


def _build_draft(index: int, entry: BatchItem, settings: Settings, now: datetime) -> TaskDraft:
    with prefix_fields(f"tasks.{index}"):
        preferences = resolve_preferences(entry.request, settings)
        task = build_task(entry.request, preferences, settings, now)
        return TaskDraft(entry=entry, task=task, notes=preferences.notes)


def _submit_draft(connection: Connection, draft: TaskDraft, ids: dict[str, TaskId]) -> SubmittedTask:
    key = draft.entry.request.request_key
    earlier = find_submitted(connection, key)
    if earlier is not None:
        return earlier
    origin = draft.task.continue_from
    named = replace(
        draft.task,
        depends_on=tuple(dict.fromkeys(ids.get(name, name) for name in draft.task.depends_on)),
        continue_from=None if origin is None else ids.get(origin, origin),
    )
    by = draft.entry.request.by
    return insert_new_task(
        connection, resolve_dependencies(connection, named), by=by, trigger_key=key, notes=draft.notes
    )
