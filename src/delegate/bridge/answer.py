"""An HTTP answer read in pieces as they come, and the events in it."""

from __future__ import annotations

NOT_FOUND, FAULT = 404, 500
BUSY = {429, 502, 503, 504}  # statuses that pass
HEAD_MAX = 64 * 1024
LINE_MAX = 8 * 1024
ANSWER_MAX = 64 * 1024 * 1024  # bytes of one message; it is handed to the client as one line


class NotHttp(Exception):
    """What answered does not speak HTTP/1.1 as a relay does."""


class Answer:
    """The head and body of one answer. `feed` gives the bytes of the body in what came."""

    __slots__ = ("_buffer", "_chunked", "_in_trailer", "_left", "headers", "is_complete", "status")

    def __init__(self) -> None:
        self._buffer = b""
        self._chunked = self._in_trailer = False
        self._left: int | None = 0  # bytes until the end of the body or chunk; None: until the connection closes
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    @property
    def leaves_open(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_complete and self._left == 0 and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        if not self.status and not self._read_head():
            return b""
        return self._chunks() if self._chunked else self._plain()

    def end(self) -> None:
        """The connection was closed."""
        if self.status and self._left is None:
            self.is_complete = True
        if not self.is_complete:
            raise ConnectionResetError("it closed the connection before its answer was complete")

    def _read_head(self) -> bool:
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
            self._buffer = self._buffer[end + 4 :]
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdigit():
                raise NotHttp("it does not speak HTTP")
            if int(status[:3]) >= 200:
                self._understand(int(status[:3]), rest)
                return True
        if len(self._buffer) > HEAD_MAX:
            raise NotHttp("its answer has no end of headers")
        return False

    def _understand(self, status: int, lines: list[str]) -> None:
        self.status = status
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length")
        if self._chunked or status == 204:
            self._left = 0
        elif length is None:
            self._left = None
        elif length.isdigit():
            self._left = int(length)
        else:
            raise NotHttp("its answer has no readable length")
        self.is_complete = self._left == 0 and not self._chunked

    def _plain(self) -> bytes:
        if self._left is None:
            body, self._buffer = self._buffer, b""
            return body
        body, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(body)
        self.is_complete = self._left == 0
        return body

    def _chunks(self) -> bytes:
        bodies = []
        while not self.is_complete and self._buffer:
            if self._left:
                bodies.append(self._buffer[: self._left])
                self._buffer = self._buffer[len(bodies[-1]) :]
                self._left -= len(bodies[-1])
            elif not self._read_size():
                break
        return b"".join(bodies)

    def _read_size(self) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(line) > LINE_MAX:
                raise NotHttp("its answer has an unreadable chunk")
            return False
        self._buffer = rest
        if self._in_trailer:
            self.is_complete = not line
        elif line:  # an empty one ends the chunk before
            try:
                self._left = int(line.split(b";")[0], 16)
            except ValueError:
                raise NotHttp("its answer has an unreadable chunk") from None
            self._in_trailer = self._left == 0
        return True


class Events:
    """Server-sent events: the data of each, and the last id, from which the relay may go on."""

    __slots__ = ("_data", "_rest", "_size", "last_id")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self.last_id = ""

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, rest = piece.split(b"\n")
        found = []
        for line in lines:
            event = self._line(bytes(self._rest + line).rstrip(b"\r"))
            self._rest.clear()
            if event:
                found.append(event)
        self._rest += rest
        if len(self._rest) + self._size > ANSWER_MAX:
            raise NotHttp(f"its stream has a message of more than {ANSWER_MAX:,} bytes")
        return found

    def _line(self, line: bytes) -> bytes:
        if not line:
            event = b"\n".join(self._data)
            self._data, self._size = [], 0
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"id":
            self.last_id = value.decode("latin-1")
        return b""
