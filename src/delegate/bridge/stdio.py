"""The client's side: lines from standard input, and lines to standard output that never wait for its reader."""

from __future__ import annotations

import os
import select
from collections import deque

from delegate.bridge import rpc

LINE_MAX = 4 * 1024 * 1024  # bytes; more than the relay takes
LONG_LINE_KEPT = 512  # bytes of each end of a line that is too long: its id stands there
READ_SIZE = 64 * 1024
OUTPUT_BUFFER_MAX = 1024 * 1024  # bytes that may wait for a client that does not read


class OversizedLine:
    """A line of which only the two ends were kept."""

    __slots__ = ("id",)

    def __init__(self, start: bytes, end: bytes) -> None:
        self.id = rpc.find_id(start, end)


class Input:
    """Cuts standard input into lines; of a line without end no more than LINE_MAX is ever held."""

    __slots__ = ("_end", "_held", "_start")

    def __init__(self) -> None:
        self._held = bytearray()
        self._start = b""  # of the line that has become too long; empty while none has
        self._end = b""

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """The lines that are whole now."""
        *whole, rest = data.split(b"\n")
        found: list[bytes | OversizedLine] = []
        for piece in whole:
            self._add(piece)
            found.append(self._take_line())
        self._add(rest)
        return [line for line in found if not isinstance(line, bytes) or line.strip()]

    def flush(self) -> list[bytes | OversizedLine]:
        """What stands after the last line end, when no more will come."""
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
    """Lines on their way to the client. A full pipe is waited for in `poll` only, so that signals are still heard."""

    __slots__ = ("_lines", "descriptor", "waiting")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting = 0  # bytes
        self._lines: deque[bytes] = deque()

    def enqueue(self, line: bytes) -> None:
        """One message; a line end inside it would be two lines, and JSON has them only between its words."""
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        self._lines.append(line + b"\n")
        self.waiting += len(line) + 1

    @property
    def mask(self) -> int:
        """Without anything to write, `poll` still tells when the reader has gone."""
        return select.POLLOUT if self._lines else 0

    @property
    def is_full(self) -> bool:
        return self.waiting > OUTPUT_BUFFER_MAX

    def write(self) -> None:
        """As much as the pipe surely takes without waiting, once `poll` said that it takes something."""
        piece = self._lines.popleft()
        while len(piece) < select.PIPE_BUF and self._lines:
            piece += self._lines.popleft()
        try:
            written = os.write(self.descriptor, piece[: select.PIPE_BUF])
        except BlockingIOError:  # the client has made it non-blocking, and full
            written = 0
        self.waiting -= written
        if written < len(piece):
            self._lines.appendleft(piece[written:])
