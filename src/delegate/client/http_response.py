"""Parses an HTTP/1.1 response and its server-sent events from bytes in pieces of any size, without I/O.

It imports nothing, because both the bridge and the commands must start quickly.
"""

from __future__ import annotations

HEAD_MAX = 64 * 1024
LINE_MAX = 8 * 1024
UNREADABLE_CHUNK = "its response has an invalid chunk"


class NotHttp(Exception):
    """The response is not valid HTTP/1.1 from a relay."""


def describe_error(error: Exception) -> str:
    """Return why an exchange failed, as text for a message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


class Response:
    """The head and body of one response. `feed` returns the body bytes in the data it gets."""

    __slots__ = (
        "_buffer", "_chunked", "_in_trailer", "_left", "_owes_line_end", "_room", "headers", "is_complete", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._buffer = b""
        self._chunked = self._in_trailer = False
        self._owes_line_end = False  # a chunk is complete, except for its line end
        self._left: int | None = 0  # bytes until the end of the body or chunk; None: until the connection closes
        self._room = HEAD_MAX  # bytes left for heads: any number of 1xx heads may precede the final one
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    @property
    def keeps_connection_open(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_complete and self._left == 0 and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        if not self.status and not self._read_head():
            return b""
        return self._read_chunks() if self._chunked else self._read_plain_body()

    def end(self) -> None:
        """The connection was closed."""
        if self.status and self._left is None:
            self.is_complete = True
        if not self.is_complete:
            raise ConnectionResetError("it closed the connection before its response was complete")

    def _read_head(self) -> bool:
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
            self._buffer = self._buffer[end + 4 :]
            self._room -= end + 4
            status = _status(first)
            if status >= 200:
                self._parse_head(status, rest)
                return True
        if len(self._buffer) > self._room:
            raise NotHttp("its response has no end of headers")
        return False

    def _parse_head(self, status: int, lines: list[str]) -> None:
        self.status = status
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length")
        if self._chunked or status == 204:
            self._left = 0
        elif length is None:
            self._left = None
        else:
            self._left = _number(length, 10, "its response has an invalid length")
        self.is_complete = self._left == 0 and not self._chunked

    def _read_plain_body(self) -> bytes:
        if self._left is None:
            body, self._buffer = self._buffer, b""
            return body
        body, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(body)
        self.is_complete = self._left == 0
        return body

    def _read_chunks(self) -> bytes:
        bodies = []
        while not self.is_complete and self._buffer:
            if self._left:
                bodies.append(self._buffer[: self._left])
                self._buffer = self._buffer[len(bodies[-1]) :]
                self._left -= len(bodies[-1])
            elif not (self._read_trailer() if self._in_trailer else self._read_size()):
                break
        return b"".join(bodies)

    def _read_size(self) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(line) > LINE_MAX:
                raise NotHttp(UNREADABLE_CHUNK)
            return False
        self._buffer = rest
        if self._owes_line_end:
            if line:
                raise NotHttp(UNREADABLE_CHUNK)
            self._owes_line_end = False
            return True
        self._left = _number(line.partition(b";")[0].strip().decode("latin-1"), 16, UNREADABLE_CHUNK)
        self._in_trailer = self._left == 0
        self._owes_line_end = not self._in_trailer
        return True

    def _read_trailer(self) -> bool:
        self.is_complete = self._buffer.startswith(b"\r\n") or b"\r\n\r\n" in self._buffer
        if not self.is_complete and len(self._buffer) > HEAD_MAX:
            raise NotHttp("its response has no end of trailers")
        return self.is_complete


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    if not version.startswith("HTTP/1.") or len(rest) < 3:
        raise NotHttp("it does not speak HTTP")
    return _number(rest[:3], 10, "it does not speak HTTP")


def _number(digits: str, base: int, message: str) -> int:
    """Parse digits only: `int` would accept a sign, and a chunk of negative size never ends."""
    if not digits.isascii() or not digits.isalnum():
        raise NotHttp(message)
    try:
        return int(digits, base)
    except ValueError:
        raise NotHttp(message) from None


class ServerSentEvent:
    __slots__ = ("data", "id", "kind")

    def __init__(self, id: str, kind: str, data: bytes) -> None:
        self.id, self.kind, self.data = id, kind, data


class EventStreamParser:
    """Parses server-sent events that have data, and keeps the last id, from which the relay can continue."""

    __slots__ = ("_data", "_id", "_kind", "_message_max", "_rest", "_size", "last_id")

    def __init__(self, message_max: int) -> None:
        self._message_max = message_max  # bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._kind = self._id = ""
        self.last_id = ""  # of the last complete event: an interrupted one must be sent again

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        *lines, rest = piece.split(b"\n")
        found = []
        for line in lines:
            event = self._feed_line(bytes(self._rest + line).rstrip(b"\r"))
            self._rest.clear()
            if event is not None:
                found.append(event)
        self._rest += rest
        if len(self._rest) + self._size > self._message_max:
            raise NotHttp(f"its stream has a message of more than {self._message_max:,} bytes")
        return found

    def _feed_line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._finish_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("latin-1")  # as it is sent back in a header
        return None

    def _finish_event(self) -> ServerSentEvent | None:
        self.last_id = self._id
        data, kind = b"\n".join(self._data), self._kind or "message"
        self._data, self._size, self._kind = [], 0, ""
        return ServerSentEvent(self._id, kind, data) if data else None
