"""One HTTP/1.1 exchange over a socket. `http.client` alone would cost half the time of `delegate status`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

HEAD_MAX = 64 * 1024
LINE_MAX = 8 * 1024
PIECE = 64 * 1024


class NotHttp(Exception):
    """What answered does not speak HTTP/1.1 as a relay does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    host: str
    port: int
    secure: bool = False

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def request_bytes(target: Target, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Exchange:
    """A request that was sent, and its answer. A `read` that times out may be tried again: nothing is lost."""

    def __init__(self, target: Target, request: bytes, timeout: float) -> None:
        self._socket = _connected(target, timeout)
        self._buffer = bytearray()
        try:
            self._socket.sendall(request)
            self.status, self.headers = self._read_head()
            self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
            self._left = self._declared_length()
            self._finished = self._left == 0 and not self._chunked
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def read(self) -> bytes:
        """The next piece of the body; empty at its end."""
        if self._finished:
            return b""
        if self._chunked and self._left == 0:
            self._next_chunk()
            if self._finished:
                return b""
        piece = self._take(self._left)
        if self._left is None:
            self._finished = not piece
            return piece
        if not piece:
            raise ConnectionResetError("the answer ended before its end")
        self._left -= len(piece)
        if self._left == 0 and not self._chunked:
            self._finished = True
        return piece

    def read_all(self, limit: int) -> bytes:
        pieces, size = [], 0
        while piece := self.read():
            size += len(piece)
            if size > limit:
                raise NotHttp(f"its answer is larger than {limit:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def _read_head(self) -> tuple[int, dict[str, str]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEAD_MAX:
                raise NotHttp("its answer has no end of headers")
            self._receive()
        first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise NotHttp("it does not speak HTTP")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return int(status[:3]), headers

    def _declared_length(self) -> int | None:
        """Bytes until the end of the body or of the chunk; None: until the connection closes."""
        if self._chunked or self.status == 204:
            return 0
        length = self.headers.get("content-length")
        if length is None:
            return None
        if not length.isdigit():
            raise NotHttp("its answer has no readable length")
        return int(length)

    def _next_chunk(self) -> None:
        line = self._line()
        if not line:  # the line end after the chunk before
            line = self._line()
        try:
            self._left = int(line.split(b";")[0], 16)
        except ValueError:
            raise NotHttp("its answer has an unreadable chunk") from None
        self._finished = self._left == 0

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > LINE_MAX:
                raise NotHttp("its answer has an unreadable chunk")
            self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, most: int | None) -> bytes:
        if not self._buffer:
            return self._socket.recv(PIECE if most is None else min(most, PIECE))
        piece = bytes(self._buffer[:most])
        del self._buffer[:most]
        return piece

    def _receive(self) -> None:
        data = self._socket.recv(PIECE)
        if not data:
            raise ConnectionResetError("the connection was closed before an answer")
        self._buffer += data


def _connected(target: Target, timeout: float) -> socket.socket:
    plain = _plain(target, timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not target.secure:
        return plain
    import ssl  # noqa: PLC0415  only a relay elsewhere needs it, and it takes longer to load than all of this

    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)
    except BaseException:
        plain.close()
        raise


def _plain(target: Target, timeout: float) -> socket.socket:
    if target.host != "127.0.0.1":
        return socket.create_connection((target.host, target.port), timeout)
    local = socket.socket()  # looking a name up loads the tables of international names first
    local.settimeout(timeout)
    try:
        local.connect((target.host, target.port))
    except BaseException:
        local.close()
        raise
    return local
