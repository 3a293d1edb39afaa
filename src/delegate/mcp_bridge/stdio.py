"""Reads lines from the client on standard input, and writes lines to standard output without blocking."""

from __future__ import annotations

import os
import select
from collections import deque

from delegate.mcp_bridge import rpc

LINE_MAX = 4 * 1024 * 1024  # bytes; more than the relay accepts
LONG_LINE_KEPT = 512  # bytes kept of each end of an oversized line, to find its id
READ_SIZE = 64 * 1024
OUTPUT_BUFFER_MAX = 1024 * 1024  # bytes that may wait for a client that does not read


class OversizedLine:
    """A line that was too long; only its two ends were kept, to find its id."""

    __slots__ = ("id",)

    def __init__(self, start: bytes, end: bytes) -> None:
        self.id = rpc.find_id(start, end)


class Input:
    """Splits standard input into lines; never holds more than LINE_MAX of one."""

    __slots__ = ("_end", "_held", "_start")

    def __init__(self) -> None:
        self._held = bytearray()
        self._start = b""  # of an oversized line; empty if there is none
        self._end = b""

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """Return the lines that are complete now."""
        *whole, rest = data.split(b"\n")
        found: list[bytes | OversizedLine] = []
        for piece in whole:
            self._add(piece)
            found.append(self._take_line())
        self._add(rest)
        return [line for line in found if not isinstance(line, bytes) or line.strip()]

    def flush(self) -> list[bytes | OversizedLine]:
        """Return the rest after the last line end, at the end of input."""
        return self.feed(b"\n")

    def _add(self, piece: bytes) -> None:
        if self._start:
            self._end = (self._end + piece)[-LONG_LINE_KEPT:]
            return
        self._held += piece
        if len(self._held) > LINE_MAX:
            self._start, self._end = bytes(self._held[:LONG_LINE_KEPT]), bytes(self._held[-LONG_LINE_KEPT:])
            self._held = bytearray()

    def _take_line(self) -> bytes | OversizedLine:
        if self._start:
            long = OversizedLine(self._start, self._end)
            self._start = self._end = b""
            return long
        line = bytes(self._held)
        self._held = bytearray()
        return line


class Output:
    """Lines to be written to the client. Only `poll` waits for a full pipe, so that signals are still handled."""

    __slots__ = ("_lines", "descriptor", "waiting")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting = 0  # bytes
        self._lines: deque[bytes] = deque()

    def enqueue(self, line: bytes) -> None:
        """Add one message as one line. A line end in it can only be JSON whitespace, so it becomes a space."""
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        self._lines.append(line + b"\n")
        self.waiting += len(line) + 1

    @property
    def mask(self) -> int:
        """The events to wait for; with none, `poll` still reports that the reader has gone."""
        return select.POLLOUT if self._lines else 0

    @property
    def is_full(self) -> bool:
        return self.waiting > OUTPUT_BUFFER_MAX

    def write(self) -> None:
        """Write as much as the pipe accepts without blocking after `poll` has reported it writable."""
        piece = self._lines.popleft()
        while len(piece) < select.PIPE_BUF and self._lines:
            piece += self._lines.popleft()
        try:
            written = os.write(self.descriptor, piece[: select.PIPE_BUF])
        except BlockingIOError:  # the client has made the pipe non-blocking, and it is full
            written = 0
        self.waiting -= written
        if written < len(piece):
            self._lines.appendleft(piece[written:])
