"""Records a runner's events and output, in sequence and exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from delegate.errors import EventConflict, SequenceGap, StaleFence
from delegate.model import HEAD_SHARE, AgentMessage, Attempt, EventKind, OutputChunk, Stream, Task, Usage
from delegate.queue.lease_guard import LeaseRef, lock_running_attempt, lock_task_of_attempt, read_held_attempt
from delegate.queue.questions import has_asked
from delegate.store.attempts import advance_attempt, keep_session, keep_usage, renew_attempt
from delegate.store.children import has_open_child
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, NewOutput, append_events, append_output, cut_output, event_at, output_at
from delegate.store.messages import messages_after

COST_MAX = 1e9  # the same limit as in FinishRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportItem:
    """One numbered entry of a runner's report; `through` is its last number if it covers several."""

    seq: int
    through: int
    at: datetime
    kind: EventKind
    data: dict[str, object] = field(default_factory=dict)
    stream: Stream = Stream.STDOUT
    output: bytes = b""
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSignals:
    """What a runner must know about an attempt it holds."""

    next_seq: int
    cancel: str | None
    messages: tuple[AgentMessage, ...]
    asked: bool = False  # the agent asked a question and should end its turn now
    has_children: bool = False  # tasks that the agent submitted have not ended; known after a renewal only

    @property
    def is_urgent(self) -> bool:
        """Whether the runner should get the response at once."""
        return self.cancel is not None or bool(self.messages) or self.asked


async def record(
    database: Database, lease: LeaseRef, items: Sequence[ReportItem], now: datetime
) -> tuple[Task, AttemptSignals]:
    return await database.write("record", lambda connection: _record(connection, lease, items, now))


async def renew(database: Database, lease: LeaseRef, messages_seen: int, now: datetime) -> tuple[Task, AttemptSignals]:
    return await database.write("renew", lambda connection: renew_lease(connection, lease, messages_seen, now))


async def signals(database: Database, lease: LeaseRef, messages_seen: int) -> AttemptSignals:
    """Read without locks: a long poll repeats this and must not wait for writers."""

    def read(connection: Connection) -> AttemptSignals:
        task, attempt = read_held_attempt(connection, lease)
        seen = max(attempt.messages_seen, messages_seen)
        found = _read_signals(connection, task, attempt, messages_seen=seen)
        return replace(found, has_children=has_open_child(connection, task.id))

    return await database.read(read)


def renew_lease(
    connection: Connection, lease: LeaseRef, messages_seen: int, now: datetime
) -> tuple[Task, AttemptSignals]:
    attempt = lock_running_attempt(connection, lease)
    task = lock_task_of_attempt(connection, attempt)
    if not renew_attempt(connection, attempt, messages_seen=messages_seen, now=now):
        raise StaleFence(attempt_id=attempt.id, fence=lease.fence)
    seen = max(attempt.messages_seen, messages_seen)
    found = _read_signals(connection, task, attempt, messages_seen=seen)
    return task, replace(found, has_children=has_open_child(connection, task.id))


def _record(
    connection: Connection, lease: LeaseRef, items: Sequence[ReportItem], now: datetime
) -> tuple[Task, AttemptSignals]:
    attempt = lock_running_attempt(connection, lease)
    task = lock_task_of_attempt(connection, attempt)
    fresh = _fresh(connection, attempt, items)
    events, chunks, end = build_rows(task, attempt, fresh)
    append_events(connection, events)
    append_output(connection, chunks)
    for item in fresh:
        if item.kind is EventKind.SESSION and isinstance(session_id := item.data.get("sessionId"), str):
            keep_session(connection, attempt, session_id)
        if item.kind is EventKind.USAGE:
            keep_usage(connection, attempt, parse_usage(item.data))
    lost = sum(item.skipped_bytes for item in fresh) + _trim(connection, task, attempt, end)
    next_seq = fresh[-1].through + 1 if fresh else attempt.next_seq
    if not advance_attempt(
        connection,
        attempt,
        next_seq=next_seq,
        output_bytes=end,
        truncated_bytes=attempt.truncated_bytes + lost,
        now=now,
    ):
        raise StaleFence(attempt_id=attempt.id, fence=lease.fence)
    return task, _read_signals(
        connection, task, replace(attempt, next_seq=next_seq), messages_seen=attempt.messages_seen
    )


def _fresh(connection: Connection, attempt: Attempt, items: Sequence[ReportItem]) -> list[ReportItem]:
    """Return the items not stored yet. A stored item must be the same; a gap is refused."""
    expected = attempt.next_seq
    fresh: list[ReportItem] = []
    for item in items:
        if item.seq < expected and not fresh:
            _check_same(connection, attempt, item)
        elif item.seq != expected:
            raise SequenceGap(attempt_id=attempt.id, expected=expected, given=item.seq)
        else:
            fresh.append(item)
            expected = item.through + 1
    return fresh


def _check_same(connection: Connection, attempt: Attempt, item: ReportItem) -> None:
    event = event_at(connection, attempt.id, item.seq)
    chunks = output_at(connection, attempt.id, item.seq)
    if item.kind is EventKind.OUTPUT:
        same = event is None and all(_is_remainder_of(item, chunk) for chunk in chunks)
    else:
        same = not chunks and (event is None or (event.kind, event.data) == (item.kind, _event_data(item)))
    if not same:
        raise EventConflict(attempt_id=attempt.id, seq=item.seq)


def _is_remainder_of(item: ReportItem, chunk: OutputChunk) -> bool:
    """Before the cut a chunk is stored whole; after it, the limit may remove the beginning of a chunk."""
    return chunk.stream is item.stream and (item.output.startswith(chunk.data) or item.output.endswith(chunk.data))


def build_rows(
    task: Task, attempt: Attempt, items: Sequence[ReportItem]
) -> tuple[list[NewEvent], list[NewOutput], int]:
    """Pure: return the rows of these items, and the end offset of the output after them."""
    head = head_limit(task)
    events: list[NewEvent] = []
    chunks: list[NewOutput] = []
    end = attempt.output_bytes
    for item in items:
        if item.kind is not EventKind.OUTPUT:
            events.append(
                NewEvent(
                    task_id=task.id,
                    attempt_id=attempt.id,
                    seq=item.seq,
                    kind=item.kind,
                    at=item.at,
                    data=_event_data(item),
                )
            )
            end += item.skipped_bytes
            continue
        for piece in split_at(item.output, head - end):
            chunks.append(
                NewOutput(
                    task_id=task.id,
                    attempt_id=attempt.id,
                    seq=item.seq,
                    stream=item.stream,
                    at=item.at,
                    offset=end,
                    data=piece,
                )
            )
            end += len(piece)
    return events, chunks, end


def _event_data(item: ReportItem) -> dict[str, object]:
    return item.data | {"bytes": item.skipped_bytes} if item.kind is EventKind.SKIPPED else item.data


def split_at(data: bytes, position: int) -> list[bytes]:
    """Split the data where the kept beginning ends, so that a later cut falls between rows."""
    if 0 < position < len(data):
        return [data[:position], data[position:]]
    return [data] if data else []


def parse_usage(data: dict[str, object]) -> Usage:
    """Pure: read a usage event; values that are not valid numbers count as 0."""
    numbers = {name: value for name, value in data.items() if isinstance(value, int | float) and value >= 0}
    cost = float(numbers.get("costUsd", 0))
    return Usage(
        input_tokens=int(numbers.get("inputTokens", 0)),
        output_tokens=int(numbers.get("outputTokens", 0)),
        cache_read_tokens=int(numbers.get("cacheReadTokens", 0)),
        cache_write_tokens=int(numbers.get("cacheWriteTokens", 0)),
        cost_usd=cost if cost < COST_MAX else 0.0,
        turns=int(numbers.get("turns", 0)),
    )


def head_limit(task: Task) -> int:
    return max(1, task.limits.max_output // HEAD_SHARE)


def _trim(connection: Connection, task: Task, attempt: Attempt, end: int) -> int:
    """Delete the output between the kept beginning and the kept end; returns the number of bytes deleted."""
    head = head_limit(task)
    tail_start = end - (task.limits.max_output - head)
    return cut_output(connection, attempt.id, start=head, end=tail_start) if tail_start > head else 0


def _read_signals(connection: Connection, task: Task, attempt: Attempt, *, messages_seen: int) -> AttemptSignals:
    cancel = (task.cancel_reason or "cancelled") if task.cancel_requested_at is not None else None
    return AttemptSignals(
        next_seq=attempt.next_seq,
        cancel=cancel,
        messages=tuple(messages_after(connection, task.id, messages_seen)),
        asked=has_asked(task, attempt),
    )
