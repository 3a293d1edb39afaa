"""Many tasks at once, which may wait for each other: all of them are born, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from delegate.config.settings import Settings
from delegate.errors import CycleDetected, InvalidField
from delegate.intake.dependencies import joined
from delegate.intake.naming import naming
from delegate.intake.submit import Request, Submitted, accepted, born, log_birth, preferred, submitted_before
from delegate.model import Task, TaskId
from delegate.store.database import Connection, Database
from delegate.store.graph import hold_dependencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One task of a batch; others of the batch may depend on it, or continue it, by its name."""

    request: Request
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task as it was accepted; names of the batch stand where the ids of its dependencies will."""

    entry: Entry
    task: Task
    notes: tuple[str, ...]


async def submit_batch(
    database: Database, entries: Sequence[Entry], settings: Settings, now: datetime
) -> list[Submitted]:
    """Write all of them in one commit; returned as they were given. A request key is good for its own entry."""
    order = birth_order(entries)
    _check_keys(entries)
    drafts = [_draft(place, entry, settings, now) for place, entry in enumerate(entries)]

    def write(connection: Connection) -> list[Submitted]:
        hold_dependencies(connection, _outside(drafts))  # all at once: one by one there would be no order of the locks
        made: dict[int, Submitted] = {}
        ids: dict[str, TaskId] = {}
        for place in order:
            with naming(f"tasks.{place}"):
                made[place] = _submitted(connection, drafts[place], ids)
            if (name := drafts[place].entry.name) is not None:
                ids[name] = made[place].task.id
        return [made[place] for place in range(len(drafts))]

    submitted = await database.write("submit.batch", write)
    for one in submitted:
        log_birth(one)
    return submitted


def birth_order(entries: Sequence[Entry]) -> list[int]:
    """Pure: their places, each after all that it waits for."""
    places: dict[str, int] = {}
    for place, entry in enumerate(entries):
        if entry.name is None:
            continue
        if entry.name in places:
            why = f"is the name of tasks.{places[entry.name]}, too; give each a name of its own"
            raise InvalidField(field=f"tasks.{place}.name", why=why)
        places[entry.name] = place
    graph = {place: [places[name] for name in _names(entry) if name in places] for place, entry in enumerate(entries)}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " → ".join(entries[place].name or str(place) for place in reversed(error.args[1]))
        raise CycleDetected(field="tasks", cycle=cycle) from None


def _check_keys(entries: Sequence[Entry]) -> None:
    places: dict[str, int] = {}
    for place, entry in enumerate(entries):
        key = entry.request.request_key
        if key is None:
            continue
        if key in places:
            why = f"is the key of tasks.{places[key]}, too; give each a key of its own"
            raise InvalidField(field=f"tasks.{place}.requestKey", why=why)
        places[key] = place


def _outside(drafts: Sequence[Draft]) -> list[TaskId]:
    """Pure: whatever is waited for that is not of the batch."""
    inside = {draft.entry.name for draft in drafts}
    wanted = dict.fromkeys(name for draft in drafts for name in draft.task.depends_on)
    return [name for name in wanted if name not in inside]


def _names(entry: Entry) -> list[str]:
    return [*entry.request.depends_on, *([entry.request.continue_from] if entry.request.continue_from else [])]


def _draft(place: int, entry: Entry, settings: Settings, now: datetime) -> Draft:
    with naming(f"tasks.{place}"):
        preferences = preferred(entry.request, settings)
        task = accepted(entry.request, preferences, settings, now)
        return Draft(entry=entry, task=task, notes=preferences.notes)


def _submitted(connection: Connection, draft: Draft, ids: dict[str, TaskId]) -> Submitted:
    key = draft.entry.request.request_key
    earlier = submitted_before(connection, key)
    if earlier is not None:
        return earlier
    origin = draft.task.continue_from
    named = replace(
        draft.task,
        depends_on=tuple(dict.fromkeys(ids.get(name, name) for name in draft.task.depends_on)),
        continue_from=None if origin is None else ids.get(origin, origin),
    )
    return born(connection, joined(connection, named), trigger_key=key, notes=draft.notes)
