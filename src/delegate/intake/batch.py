"""Many tasks at once, which may wait for each other: all of them are born, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from delegate.config import Settings
from delegate.errors import CycleDetected, InvalidField, PreferenceConflict, Refused
from delegate.intake.dependencies import joined
from delegate.intake.submit import Request, Submitted, accepted, born, log_birth, preferred
from delegate.model import Task, TaskId
from delegate.store.database import Connection, Database
from delegate.store.tasks import task_of_trigger


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
    drafts = [_draft(place, entry, settings, now) for place, entry in enumerate(entries)]

    def write(connection: Connection) -> list[Submitted]:
        made: dict[int, Submitted] = {}
        ids: dict[str, TaskId] = {}
        for place in order:
            with _told_of(place):
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


def _names(entry: Entry) -> list[str]:
    return [*entry.request.depends_on, *([entry.request.continue_from] if entry.request.continue_from else [])]


def _draft(place: int, entry: Entry, settings: Settings, now: datetime) -> Draft:
    with _told_of(place):
        preferences = preferred(entry.request, settings)
        task = accepted(entry.request, preferences, settings, now)
        return Draft(entry=entry, task=task, notes=preferences.notes)


def _submitted(connection: Connection, draft: Draft, ids: dict[str, TaskId]) -> Submitted:
    key = draft.entry.request.request_key
    earlier = task_of_trigger(connection, key) if key else None
    if earlier is not None:
        return Submitted(task=earlier, is_new=False)
    origin = draft.task.continue_from
    named = replace(
        draft.task,
        depends_on=tuple(dict.fromkeys(ids.get(name, name) for name in draft.task.depends_on)),
        continue_from=None if origin is None else ids.get(origin, origin),
    )
    return born(connection, joined(connection, named), trigger_key=key, notes=draft.notes)


@contextmanager
def _told_of(place: int) -> Iterator[None]:
    """A refusal names the field of the entry that it is about."""
    try:
        yield
    except PreferenceConflict as error:
        raise PreferenceConflict([f"tasks.{place}: {problem}" for problem in error.problems]) from error
    except Refused as error:
        if error.field is None:
            raise
        raise type(error)(**{**error.data, "field": f"tasks.{place}.{error.field}"}) from error
