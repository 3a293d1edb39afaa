"""uvicorn's HTTP/1.1 protocol with limits on the time and size of a request."""

from __future__ import annotations

import logging
import resource
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle, Transport

HEAD_TIMEOUT = 10.0  # seconds until the headers of a request have arrived
BODY_TIMEOUT = 60.0  # seconds for the body: enough for 4 MiB over a slow connection
HEAD_MAX = 64 * 1024  # bytes of the request line and headers
UNKNOWN_MAX = 512  # connections without a valid token, and at most a quarter of the descriptors
UNKNOWN_KEEP_ALIVE = 5  # seconds that an idle connection stays open before it has shown a token
WARNING_INTERVAL = 60.0  # seconds between two warnings about the same flood

log = logging.getLogger(__name__)


class BufferedTransport:
    """A transport that delays the first write until the next one or the next iteration of the event loop.

    uvicorn writes the head and the body of a response separately, and each write is a system call: with one call less,
    a submit takes a tenth less time.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = b""

    def __getattr__(self, name: str) -> Any:  # Any: any attribute of the transport
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._buffer:
            self._flush(data)
        else:
            self._buffer = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self, more: bytes = b"") -> None:
        held, self._buffer = self._buffer, b""
        if held or more:
            self._transport.write(held + more)


class UnknownConnections:
    """Connections that have not shown a valid token yet, oldest first. Above the limit the oldest is closed: whoever
    opens many cannot use up the descriptors, and a new client still gets its chance to show a token."""

    def __init__(self) -> None:
        self._open: dict[HttpProtocol, None] = {}
        self._warned_at = float("-inf")

    def add(self, connection: HttpProtocol) -> None:
        self._open[connection] = None
        limit = min(UNKNOWN_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        if len(self._open) <= limit:
            return
        oldest = next(iter(self._open))
        self.remove(oldest)
        oldest.transport.close()
        if time.monotonic() - self._warned_at > WARNING_INTERVAL:
            self._warned_at = time.monotonic()
            log.warning("too many connections without a token: closing the oldest", extra={"limit": limit})

    def remove(self, connection: HttpProtocol) -> None:
        self._open.pop(connection, None)


class HttpProtocol(HttpToolsProtocol):
    head_timeout = HEAD_TIMEOUT
    body_timeout = BODY_TIMEOUT

    def __init__(self, *args: Any, unknown: UnknownConnections | None = None, **kwargs: Any) -> None:  # Any: uvicorn's
        super().__init__(*args, **kwargs)
        self._unknown = unknown or UnknownConnections()
        self._known_keep_alive, self.timeout_keep_alive = self.timeout_keep_alive, UNKNOWN_KEEP_ALIVE
        self._deadline: TimerHandle | None = None
        self._in_head = True
        self._head_size = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        self.transport = BufferedTransport(transport, self.loop)  # type: ignore[assignment]  # it is one, by delegation
        self._set_deadline(self.head_timeout)
        self._unknown.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        self._unknown.remove(self)
        super().connection_lost(exc)

    def mark_known(self) -> None:
        """The peer has shown a valid token."""
        self._unknown.remove(self)
        self.timeout_keep_alive = self._known_keep_alive

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_size += len(data)
        super().data_received(data)
        if self._in_head and self._head_size > HEAD_MAX and not self.transport.is_closing():
            self.send_400_response("The request headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._set_deadline(self.head_timeout)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._head_size = False, 0
        self._set_deadline(self.body_timeout)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._set_deadline(None)

    def _set_deadline(self, seconds: float | None) -> None:
        """Close the connection unless the next part of the request arrives in time; None: no request is open."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.close)
