"""Live feeds over server-sent events, and output as lines or bytes."""

from __future__ import annotations

import base64
import logging
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge

import anyio
from anyio import lowlevel
from fastapi import Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from delegate.errors import InvalidField, NotAllowed, Refused
from delegate.model import Attempt, Event, OutputChunk, TaskId
from delegate.relay.access import Holder
from delegate.relay.auth import caller_of, require_access
from delegate.relay.http.protocol import HttpProtocol
from delegate.relay.notify import ALL_TASKS, Hub
from delegate.relay.output_lines import LineReader, OutputTail, gap_marker, line_views, read_to_end
from delegate.relay.requests import Relay, relay_of
from delegate.relay.views import event_view, task_view
from delegate.report import follow
from delegate.report.follow import Cursor, TaskUpdates
from delegate.states import FINAL_TASK_STATES
from delegate.store.database import Database
from delegate.store.events import events_after, output_of_attempt
from delegate.wire.tasks import OutputChunkView, OutputView

log = logging.getLogger(__name__)
PING_SECONDS = 15
READ_TIMEOUT = 15.0  # seconds after which a client that does not read is dropped; it can resume from its last event
FEEDS_MAX = 256  # open feeds
FEEDS_PER_CALLER = 64  # of a person or an agent, so that none of them takes all
SEND_BUFFER = 64 * 1024  # bytes that the system may hold for the client of a feed
EVENTS_PER_TURN = 50  # events that a feed of all tasks reads and sends at once
EVENTS_PER_SLICE = 5  # events encoded before other requests get their turn
CROWD_PAUSE = 0.002  # seconds after a full turn, if others wait: many feeds of old events leave time to other requests
POLL_SECONDS = 2.0  # another relay on the same database does not notify our subscriptions
LINES_MAX = 32 * 1024 * 1024  # bytes of lines in one response; `output/raw` has everything
RECHECK_SECONDS = 2.0  # a revoked token, or that of a disabled person, must not keep a stream open
StreamCheck = Callable[[], Awaitable[bool]]
CURSOR = re.compile(r"e(\d{1,18})-o(\d{1,18})")


def parse_cursor(text: str | None) -> Cursor | None:
    if not text:
        return None
    match = CURSOR.fullmatch(text)
    if match is None:
        raise InvalidField(field="Last-Event-ID", why="is not an event id of this relay; leave it out to start over")
    return Cursor(event=int(match[1]), output=int(match[2]))


def parse_event_id(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidField(field="Last-Event-ID", why="is not an event id of this relay; leave it out to start over")
    return int(text)


class FeedResponse(EventSourceResponse):
    """A feed that drops a client that does not read."""

    def __init__(self, hub: Hub, reader: str, feed: AsyncIterator[ServerSentEvent | bytes]) -> None:
        super().__init__(feed, ping=PING_SECONDS, send_timeout=READ_TIMEOUT)
        self._hub, self._reader = hub, reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub.open_feeds[self._reader] += 1
        try:
            limit_send_buffer(scope)
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("feed closed: its client does not read", extra={"path": scope["path"]})
            scope["state"]["connection"].transport.abort()
            with anyio.move_on_after(1):  # until the server knows that the connection is gone
                while (await receive())["type"] != "http.disconnect":
                    pass
        finally:
            self._hub.open_feeds[self._reader] -= 1
            self._hub.open_feeds += Counter()  # forgets who has none left


def limit_send_buffer(scope: Scope) -> None:
    """By default the system holds megabytes for a client that does not read, all of which we would have to encode."""
    connection = scope["state"].get("connection")
    if isinstance(connection, HttpProtocol):
        with suppress(OSError):  # it is closed already
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


async def _always() -> bool:
    return True


def stream_check(request: Request) -> StreamCheck:
    """Return a function that tells whether the caller's token still opens the stream."""
    checked_at = anyio.current_time()

    async def may_continue() -> bool:
        nonlocal checked_at
        if caller_of(request).person is None or anyio.current_time() - checked_at < RECHECK_SECONDS:
            return True
        checked_at = anyio.current_time()
        try:
            await require_access(request)
        except NotAllowed:
            return False
        return True

    return may_continue


def respond_with_feed(request: Request, feed: AsyncIterator[ServerSentEvent | bytes]) -> Response:
    hub, caller = relay_of(request).hub, caller_of(request)
    limit = FEEDS_MAX if caller.holder is Holder.OWNER else FEEDS_PER_CALLER
    if hub.open_feeds.total() >= FEEDS_MAX or hub.open_feeds[caller.actor.name] >= limit:
        raise Refused(why=f"{limit} event streams are open already; close one first")
    return FeedResponse(hub, caller.actor.name, feed)


async def task_feed(
    relay: Relay, task_id: TaskId, cursor: Cursor, may_continue: StreamCheck = _always
) -> AsyncIterator[ServerSentEvent]:
    """Yield the events and output of one task after the cursor; close when the task has ended."""
    with relay.hub.subscribe(task_id) as subscription:
        while not relay.hub.closing.is_set() and await may_continue():
            async with relay.hub.feed_turns:
                updates = await follow.read_task_updates(relay.database, task_id, cursor)
            for event in merge_by_time(updates):
                await lowlevel.checkpoint()  # sending does not wait while the client reads
                cursor = advance_cursor(cursor, event)
                yield to_server_sent_event(event, cursor)
            if updates.events or updates.chunks:
                continue
            if updates.task.state in FINAL_TASK_STATES:
                data = task_view(updates.task).model_dump_json(by_alias=True)
                yield ServerSentEvent(data, event="end", id=_format_cursor(cursor))
                return
            await subscription.wait(POLL_SECONDS)


async def all_tasks_feed(relay: Relay, after: int, may_continue: StreamCheck = _always) -> AsyncIterator[bytes]:
    # SQLite has one writer: its ids become visible in order, and a gap only means deleted rows.
    id_gaps = None if relay.database.is_sqlite else follow.IdGaps()
    with relay.hub.subscribe(ALL_TASKS) as subscription:
        while not relay.hub.closing.is_set() and await may_continue():
            async with relay.hub.feed_turns:
                events = await relay.database.read(partial(events_after, after=after, limit=EVENTS_PER_TURN))
                if id_gaps is not None:
                    events = id_gaps.take_contiguous(events, after, anyio.current_time())
                encoded = await _encode_events(events)
                if len(events) == EVENTS_PER_TURN and relay.hub.feed_turns.statistics().tasks_waiting:
                    await anyio.sleep(CROWD_PAUSE)
            if events:
                after = events[-1].id
                yield encoded
            else:
                await subscription.wait(POLL_SECONDS)


async def _encode_events(events: Sequence[Event]) -> bytes:
    pieces = []
    for number, event in enumerate(events):
        if number % EVENTS_PER_SLICE == 0:
            await lowlevel.checkpoint()
        data = event_view(event).model_dump_json(by_alias=True)
        pieces.append(ServerSentEvent(data, event="event", id=str(event.id)).encode())
    return b"".join(pieces)


def merge_by_time(updates: TaskUpdates) -> Iterator[Event | OutputChunk]:
    """Merge by time, each kind in the order of its ids: a cursor must never be ahead of what was sent.

    Stop after the last entry of a kind that was not read completely, so that the other kind does not get ahead.
    """
    entries: Iterator[Event | OutputChunk] = merge(updates.events, updates.chunks, key=lambda entry: entry.at)
    for entry in entries:
        yield entry
        if len(updates.events) == follow.EVENTS_PER_READ and entry is updates.events[-1]:
            return
        if len(updates.chunks) == follow.CHUNKS_PER_READ and entry is updates.chunks[-1]:
            return


def advance_cursor(cursor: Cursor, entry: Event | OutputChunk) -> Cursor:
    if isinstance(entry, Event):
        return Cursor(event=max(cursor.event, entry.id), output=cursor.output)
    return Cursor(event=cursor.event, output=max(cursor.output, entry.id))


def to_server_sent_event(entry: Event | OutputChunk, cursor: Cursor) -> ServerSentEvent:
    if isinstance(entry, Event):
        return ServerSentEvent(
            event_view(entry).model_dump_json(by_alias=True), event="event", id=_format_cursor(cursor)
        )
    view = OutputChunkView(
        attempt_id=entry.attempt_id,
        seq=entry.seq,
        stream=entry.stream,
        at=entry.at,
        offset=entry.offset,
        output=base64.b64encode(entry.data).decode(),
    )
    return ServerSentEvent(view.model_dump_json(by_alias=True), event="output", id=_format_cursor(cursor))


def _format_cursor(cursor: Cursor) -> str:
    return f"e{cursor.event}-o{cursor.output}"


async def raw_output(database: Database, task_id: TaskId, stream: str) -> AsyncIterator[bytes]:
    attempts = await follow.attempts_of(database, task_id)
    return _bytes_of(database, attempts[-1:], stream)


async def _bytes_of(database: Database, attempts: list[Attempt], stream: str) -> AsyncIterator[bytes]:
    for attempt in attempts:
        async for missing, chunk in _chunks(database, attempt):
            if missing:
                yield gap_marker(missing)
            if stream in ("all", chunk.stream):
                yield chunk.data


async def _chunks(database: Database, attempt: Attempt) -> AsyncIterator[tuple[int, OutputChunk]]:
    end = 0
    read = partial(output_of_attempt, attempt_id=attempt.id, limit=follow.CHUNKS_PER_READ)
    while chunks := await database.read(partial(read, offset=end)):
        for missing, chunk in follow.with_gaps(chunks, end):
            yield missing, chunk
        end = chunks[-1].offset + len(chunks[-1].data)


async def last_lines(database: Database, task_id: TaskId, limit: int) -> OutputView:
    """Return the last lines of the output of all attempts, including an unfinished line."""
    attempts = await follow.attempts_of(database, task_id)
    reader, tail = LineReader(last=limit), OutputTail(limit, LINES_MAX)
    await read_to_end(database, task_id, reader, tail)
    tail.add(reader.lines([], is_over=True))
    return OutputView(
        lines=line_views(tail.lines), truncated_bytes=sum(attempt.truncated_bytes for attempt in attempts)
    )
