"""Reads tasks, timelines, output and the feeds of followers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.errors import ChangeKept, NoChange, NoSuchTask
from delegate.model import Attempt, Change, Checkpoint, Event, EventKind, OutputChunk, RunnerSlot, Task, TaskId
from delegate.queue.limits import QueueRules, start_of_day
from delegate.queue.waiting import QueueSnapshot, read_snapshot
from delegate.states import TaskState
from delegate.store.attempts import attempts_of_task, running_attempts, spent_since
from delegate.store.database import Connection, Database
from delegate.store.events import (
    events_of_task,
    last_event_of_kind,
    last_events_of_task,
    last_output_id,
    output_of_task,
)
from delegate.store.results import last_change, last_checkpoint
from delegate.store.runners import pool_of, slots_of
from delegate.store.tasks import count_by_state, get_task

EVENTS_PER_READ = 1_000
CHUNKS_PER_READ = 16  # of at most 256 KiB each: a follower's memory stays small
TIMELINE_MAX = 10_000
# PostgreSQL assigns event ids before their transactions commit. A follower waits this long for a gap in the ids to be
# filled. No transaction takes longer: the longest settles CASCADE_MAX tasks (queue/cascade.py) in less than half of it.
# A gap that remains comes from a rollback or a dropped task.
ID_GAP_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a follower of one task has read: the last event and the last chunk of output."""

    event: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUpdates:
    events: list[Event]
    chunks: list[OutputChunk]
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOverview:
    """A task without its timeline."""

    task: Task
    attempts: list[Attempt]
    snapshot: QueueSnapshot
    checkpoint: Checkpoint | None  # of its last attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class FullTask(TaskOverview):
    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPrompt:
    text: str
    is_rendered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayState:
    counts: dict[TaskState, int]
    slots: list[RunnerSlot]
    attempts: list[Attempt]
    spent_today_usd: float


async def read_task_overview(database: Database, task_id: TaskId, rules: QueueRules, now: datetime) -> TaskOverview:
    return await database.read(lambda connection: _read_overview(connection, task_id, rules, now))


async def read_full_task(database: Database, task_id: TaskId, rules: QueueRules, now: datetime) -> FullTask:
    def read(connection: Connection) -> FullTask:
        found = _read_overview(connection, task_id, rules, now)
        return FullTask(
            task=found.task,
            attempts=found.attempts,
            snapshot=found.snapshot,
            checkpoint=found.checkpoint,
            events=last_events_of_task(connection, task_id, TIMELINE_MAX),
        )

    return await database.read(read)


def _read_overview(connection: Connection, task_id: TaskId, rules: QueueRules, now: datetime) -> TaskOverview:
    task = _require_task(connection, task_id)
    return TaskOverview(
        task=task,
        attempts=attempts_of_task(connection, task_id),
        snapshot=read_snapshot(connection, [task], rules, now),
        checkpoint=last_checkpoint(connection, [task_id]),
    )


async def change_of(database: Database, task_id: TaskId) -> Change:
    def read(connection: Connection) -> Change:
        change = last_change(connection, _require_task(connection, task_id).id)
        if change is None and (runner := kept_on(connection, task_id)) is not None:
            raise ChangeKept(task_id=task_id, runner=runner)
        if change is None:
            raise NoChange(task_id=task_id)
        return change

    return await database.read(read)


def kept_on(connection: Connection, task_id: TaskId) -> str | None:
    """The name of the last runner, if output, errors and diff of its attempt stay on its machine."""
    claimed = last_event_of_kind(connection, task_id, EventKind.CLAIMED)
    return None if claimed is None or "privacy" not in claimed.data else str(claimed.data["runner"])


async def prompt_of(database: Database, task_id: TaskId) -> GivenPrompt:
    """Return the last prompt given to the agent; before its start, the prompt of the task."""

    def read(connection: Connection) -> GivenPrompt:
        task = _require_task(connection, task_id)
        given = last_event_of_kind(connection, task_id, EventKind.PROMPT)
        if given is None or "text" not in given.data:  # not yet, or kept on the runner's machine
            return GivenPrompt(text=task.prompt, is_rendered=False)
        return GivenPrompt(text=str(given.data.get("text", "")), is_rendered=True)

    return await database.read(read)


async def relay_state(database: Database, machine: str | None, now: datetime) -> RelayState:
    """Read the counts of tasks, and the processes of the pool on this machine."""

    def read(connection: Connection) -> RelayState:
        return RelayState(
            counts=count_by_state(connection),
            slots=_pool_slots(connection, machine),
            attempts=running_attempts(connection),
            spent_today_usd=spent_since(connection, start_of_day(now)),
        )

    return await database.read(read)


def _pool_slots(connection: Connection, machine: str | None) -> list[RunnerSlot]:
    pool = None if machine is None else pool_of(connection, machine)
    return [] if pool is None else slots_of(connection, pool.id)


async def read_task_updates(database: Database, task_id: TaskId, cursor: Cursor) -> TaskUpdates:
    """Read what came after the cursor. The task is read first: if it has ended, nothing comes after these updates."""

    def read(connection: Connection) -> TaskUpdates:
        return TaskUpdates(
            task=_require_task(connection, task_id),
            events=events_of_task(connection, task_id, after=cursor.event, limit=EVENTS_PER_READ),
            chunks=output_of_task(connection, task_id, after=cursor.output, limit=CHUNKS_PER_READ),
        )

    return await database.read(read)


async def read_output_updates(database: Database, task_id: TaskId, after: int) -> TaskUpdates:
    """Read the output that came after this chunk."""

    def read(connection: Connection) -> TaskUpdates:
        task = _require_task(connection, task_id)
        return TaskUpdates(
            task=task, events=[], chunks=output_of_task(connection, task_id, after=after, limit=CHUNKS_PER_READ)
        )

    return await database.read(read)


async def end_of_task_feed(database: Database, task_id: TaskId) -> Cursor:
    def read(connection: Connection) -> Cursor:
        newest = last_events_of_task(connection, task_id, 1)
        return Cursor(event=newest[-1].id if newest else 0, output=last_output_id(connection, task_id))

    return await database.read(read)


@dataclass(slots=True)
class IdGaps:
    """Tracks gaps in the event ids: a follower waits once for all missing ids below the highest it has seen."""

    final_up_to: int = 0  # missing ids up to this one will not come
    seen: int = 0  # the highest id when the wait began
    since: float = 0.0  # in seconds on the follower's clock

    def take_contiguous(self, events: Sequence[Event], after: int, now: float) -> list[Event]:
        """Return the events before the first gap that may still be filled."""
        ready: list[Event] = []
        for event in events:
            if event.id != after + 1 and event.id > self.final_up_to and not self._is_final(event, events[-1], now):
                break
            ready.append(event)
            after = event.id
        return ready

    def _is_final(self, event: Event, newest: Event, now: float) -> bool:
        if event.id > self.seen:
            self.seen, self.since = newest.id, now
        elif now - self.since >= ID_GAP_TIMEOUT.total_seconds():
            self.final_up_to = self.seen
        return event.id <= self.final_up_to


async def attempts_of(database: Database, task_id: TaskId) -> list[Attempt]:
    def read(connection: Connection) -> list[Attempt]:
        return attempts_of_task(connection, _require_task(connection, task_id).id)

    return await database.read(read)


def with_gaps(chunks: Sequence[OutputChunk], expected: int) -> Iterator[tuple[int, OutputChunk]]:
    """Yield each chunk with the number of bytes that are missing before it."""
    for chunk in chunks:
        yield chunk.offset - expected, chunk
        expected = chunk.offset + len(chunk.data)


def _require_task(connection: Connection, task_id: TaskId) -> Task:
    task = get_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    return task
