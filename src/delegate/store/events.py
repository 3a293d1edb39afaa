"""Queries on events and on chunks of output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from delegate.model import AttemptId, Event, EventKind, OutputChunk, Stream, TaskId
from delegate.store.tables import event_table, output

# Built once: every change writes events, and every report of a runner events or output.
INSERT_EVENTS, INSERT_OUTPUT = insert(event_table), insert(output)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    task_id: TaskId
    kind: EventKind
    at: datetime
    data: dict[str, object]
    attempt_id: AttemptId | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOutput:
    task_id: TaskId
    attempt_id: AttemptId
    seq: int
    stream: Stream
    at: datetime
    offset: int
    data: bytes


def append_events(connection: Connection, events: Sequence[NewEvent]) -> None:
    rows = [
        {
            "task_id": new.task_id,
            "attempt_id": new.attempt_id,
            "seq": new.seq,
            "kind": new.kind,
            "at": new.at,
            "data": new.data,
        }
        for new in events
    ]
    if rows:
        connection.execute(INSERT_EVENTS, rows)


def append_output(connection: Connection, chunks: Sequence[NewOutput]) -> None:
    rows = [
        {
            "task_id": new.task_id,
            "attempt_id": new.attempt_id,
            "seq": new.seq,
            "stream": new.stream,
            "at": new.at,
            "offset": new.offset,
            "size": len(new.data),
            "data": new.data,
        }
        for new in chunks
    ]
    if rows:
        connection.execute(INSERT_OUTPUT, rows)


def cut_output(connection: Connection, attempt_id: AttemptId, *, start: int, end: int) -> int:
    """Delete the bytes from offset `start` to `end`; returns the number of bytes deleted."""
    mine = output.c.attempt_id == attempt_id
    inside = (mine, output.c.offset >= start, output.c.offset + output.c.size <= end)
    gone = connection.execute(select(func.coalesce(func.sum(output.c.size), 0)).where(*inside)).scalar_one()
    if gone:
        connection.execute(delete(output).where(*inside))
    across = (mine, output.c.offset >= start, output.c.offset < end, output.c.offset + output.c.size > end)
    row = connection.execute(select(output.c.id, output.c.offset, output.c.data).where(*across)).one_or_none()
    if row is None:
        return int(gone)
    kept = bytes(row.data)[end - row.offset :]
    connection.execute(update(output).where(output.c.id == row.id).values(offset=end, size=len(kept), data=kept))
    return int(gone) + end - int(row.offset)


def event_at(connection: Connection, attempt_id: AttemptId, seq: int) -> Event | None:
    query = select(event_table).where(event_table.c.attempt_id == attempt_id, event_table.c.seq == seq)
    row = connection.execute(query).one_or_none()
    return None if row is None else to_event(row)


def output_at(connection: Connection, attempt_id: AttemptId, seq: int) -> list[OutputChunk]:
    query = select(output).where(output.c.attempt_id == attempt_id, output.c.seq == seq).order_by(output.c.offset)
    return [to_chunk(row) for row in connection.execute(query)]


def events_of_task(connection: Connection, task_id: TaskId, *, after: int, limit: int) -> list[Event]:
    query = select(event_table).where(event_table.c.task_id == task_id, event_table.c.id > after)
    return [to_event(row) for row in connection.execute(query.order_by(event_table.c.id).limit(limit))]


def last_events_of_task(connection: Connection, task_id: TaskId, limit: int) -> list[Event]:
    query = select(event_table).where(event_table.c.task_id == task_id).order_by(event_table.c.id.desc()).limit(limit)
    return [to_event(row) for row in connection.execute(query)][::-1]


def last_event_of_kind(connection: Connection, task_id: TaskId, kind: EventKind) -> Event | None:
    query = select(event_table).where(event_table.c.task_id == task_id, event_table.c.kind == kind)
    row = connection.execute(query.order_by(event_table.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else to_event(row)


def events_after(connection: Connection, after: int, limit: int) -> list[Event]:
    query = select(event_table).where(event_table.c.id > after).order_by(event_table.c.id).limit(limit)
    return [to_event(row) for row in connection.execute(query)]


def last_event_id(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(event_table.c.id), 0))).scalar_one())


def output_of_task(connection: Connection, task_id: TaskId, *, after: int, limit: int) -> list[OutputChunk]:
    """Return chunks in the order of arrival, for followers."""
    query = select(output).where(output.c.task_id == task_id, output.c.id > after)
    return [to_chunk(row) for row in connection.execute(query.order_by(output.c.id).limit(limit))]


def output_of_attempt(connection: Connection, attempt_id: AttemptId, *, offset: int, limit: int) -> list[OutputChunk]:
    """Return chunks in the order of their bytes, from `offset`."""
    query = select(output).where(output.c.attempt_id == attempt_id, output.c.offset >= offset)
    return [to_chunk(row) for row in connection.execute(query.order_by(output.c.offset).limit(limit))]


def last_output_of_attempt(connection: Connection, attempt_id: AttemptId, limit: int) -> list[OutputChunk]:
    query = select(output).where(output.c.attempt_id == attempt_id).order_by(output.c.offset.desc()).limit(limit)
    return [to_chunk(row) for row in connection.execute(query)][::-1]


def last_output_id(connection: Connection, task_id: TaskId) -> int:
    query = select(func.coalesce(func.max(output.c.id), 0)).where(output.c.task_id == task_id)
    return int(connection.execute(query).scalar_one())


def to_event(row: Row[Any]) -> Event:
    return Event(
        id=row.id,
        task_id=TaskId(row.task_id),
        attempt_id=row.attempt_id,
        kind=EventKind(row.kind),
        at=row.at,
        data=row.data,
    )


def to_chunk(row: Row[Any]) -> OutputChunk:
    return OutputChunk(
        id=row.id,
        attempt_id=AttemptId(row.attempt_id),
        seq=row.seq,
        stream=Stream(row.stream),
        at=row.at,
        offset=row.offset,
        data=bytes(row.data),
    )
