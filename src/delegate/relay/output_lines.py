"""Splits chunks of output into lines, with a cursor to continue from.

Chunks end anywhere, and those of the two streams are interleaved. The cursor is, for each stream, the first byte that
has not been returned yet: a chunk and a byte in it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from anyio.lowlevel import checkpoint

from delegate.errors import InvalidField
from delegate.model import AttemptId, OutputChunk, Stream, TaskId
from delegate.report import follow
from delegate.report.follow import TaskUpdates
from delegate.store.database import Database
from delegate.wire.tasks import OutputLine

LINE_MAX = 64 * 1024  # bytes; a longer line is split
CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})-([0-9]{1,18})\.([0-9]{1,9})")


class Line(NamedTuple):
    """One line, as bytes: millions may pass before one is shown."""

    at: datetime
    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        return self.data.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")


@dataclass(slots=True)
class StreamPosition:
    """The position in one stream: its first byte that was not returned, and the start of an unfinished line."""

    chunk: int = 1
    byte: int = 0
    rest: bytes = b""
    at: datetime | None = None  # when the rest was written

    def move_to(self, chunk: int, byte: int = 0) -> None:
        self.chunk, self.byte, self.rest = chunk, byte, b""


class LineReader:
    """Reads lines from chunks. With `last`, at most that many lines of each chunk, for callers that want the tail."""

    def __init__(
        self, stdout: StreamPosition | None = None, stderr: StreamPosition | None = None, *, last: int | None = None
    ) -> None:
        self._last = last
        self._positions = {Stream.STDOUT: stdout or StreamPosition(), Stream.STDERR: stderr or StreamPosition()}
        self._attempt: AttemptId | None = None
        self._offset: int | None = None if stdout else 0  # in the attempt's output, where the next chunk should begin
        self._seen = 0

    @classmethod
    def from_cursor(cls, cursor: str) -> Self:
        found = CURSOR.fullmatch(cursor)
        if found is None:
            raise InvalidField(field="since", why="is not a `next` of TaskLogs; leave it out to get the last lines")
        chunk_out, byte_out, chunk_err, byte_err = map(int, found.groups())
        return cls(StreamPosition(chunk_out, byte_out), StreamPosition(chunk_err, byte_err))

    def __str__(self) -> str:
        return "-".join(f"{position.chunk}.{position.byte}" for position in self._positions.values())

    @property
    def after(self) -> int:
        """The last chunk that does not need to be read again."""
        unread = min(position.chunk for position in self._positions.values())
        return max(self._seen, unread - 1)

    def lines(self, chunks: Sequence[OutputChunk], *, is_over: bool) -> Iterator[Line]:
        """Yield lines; a caller may stop early and continue from the cursor. `is_over`: no more output will follow."""
        for chunk in chunks:
            yield from self._lines_before(chunk)
            yield from self._lines_of(chunk)
            self._seen = chunk.id
            for position in self._positions.values():
                if not position.rest and position.chunk <= chunk.id:
                    position.move_to(chunk.id + 1)
        if is_over:
            yield from self._flush_unfinished()

    def _lines_before(self, chunk: OutputChunk) -> Iterator[Line]:
        """Yield the unfinished line of the previous attempt, and a marker for bytes that were not kept."""
        if self._attempt not in (None, chunk.attempt_id):
            yield from self._flush_unfinished()
            self._offset = 0
        missing = 0 if self._offset is None else chunk.offset - self._offset
        self._attempt = chunk.attempt_id
        self._offset = chunk.offset + len(chunk.data)
        if missing > 0:
            yield Line(chunk.at, chunk.stream, gap_marker(missing).strip())

    def _lines_of(self, chunk: OutputChunk) -> Iterator[Line]:
        position = self._positions[chunk.stream]
        if chunk.id < position.chunk:
            return
        consumed = position.byte if chunk.id == position.chunk else 0
        text = position.rest + chunk.data[consumed:]
        first = consumed - len(position.rest)  # where the text starts in this chunk; negative if in an earlier one
        if not position.rest:
            position.move_to(chunk.id, consumed)
        start = 0 if self._last is None else _start_of_last(text, self._last)
        for end in _ends(text, start):
            position.move_to(chunk.id, first + end)
            yield Line(chunk.at, chunk.stream, text[start:end])
            start = end
        position.rest, position.at = text[start:], chunk.at

    def _flush_unfinished(self) -> Iterator[Line]:
        for stream, position in self._positions.items():
            if position.rest and position.at is not None:
                rest = position.rest
                position.move_to(self._seen + 1)
                yield Line(position.at, stream, rest)


class OutputTail:
    """The last lines, up to the limits of one response."""

    def __init__(self, max_lines: int, size_max: int) -> None:
        self._max_lines = max_lines
        self._size_max = size_max
        self._size = 0
        self.lines: deque[Line] = deque()

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.lines.append(line)
            self._size += len(line.data)
            while len(self.lines) > self._max_lines or self._size > self._size_max:
                self._size -= len(self.lines.popleft().data)


async def read_to_end(database: Database, task_id: TaskId, reader: LineReader, tail: OutputTail) -> TaskUpdates:
    """Read all output so far; an unfinished line is left to the caller."""
    while True:
        updates = await follow.read_output_updates(database, task_id, reader.after)
        for chunk in updates.chunks:
            tail.add(reader.lines([chunk], is_over=False))
            await checkpoint()  # splitting is quick, but there may be a hundred thousand lines
        if not has_more(updates):
            return updates


def has_more(updates: TaskUpdates) -> bool:
    return len(updates.chunks) == follow.CHUNKS_PER_READ


def gap_marker(missing: int) -> bytes:
    return f"\n[… {missing} bytes left out …]\n".encode()


def line_views(lines: Iterable[Line]) -> list[OutputLine]:
    return [OutputLine(at=line.at, stream=line.stream, text=line.text) for line in lines]


def _start_of_last(text: bytes, count: int) -> int:
    """Return where the last `count` lines begin; an unfinished line does not count."""
    before, *last = text.rsplit(b"\n", count + 1)
    return len(before) + 1 if len(last) > count else 0


def _ends(text: bytes, start: int) -> Iterator[int]:
    """Yield where lines end: after a newline, or at the maximum length."""
    while start < len(text):
        newline = text.find(b"\n", start, start + LINE_MAX)
        if newline < 0 and len(text) - start <= LINE_MAX:
            return
        start = newline + 1 if newline >= 0 else start + LINE_MAX
        yield start
