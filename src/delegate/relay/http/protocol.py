"""uvicorn's HTTP/1.1 protocol with limits on the time and size of a request."""

from __future__ import annotations

import logging
import resource
import secrets
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from delegate.errors import DelegateError, MalformedRequest, RequestTimedOut
from delegate.relay.problems import problem_response

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle, Transport

    from delegate.relay.http.caller_process import CallingProcess

HEAD_TIMEOUT = 10.0  # seconds until the headers of a request have arrived
BODY_TIMEOUT = 60.0  # seconds for the body: enough for 4 MiB over a slow connection
HEAD_MAX = 64 * 1024  # bytes of the request line and headers
UNKNOWN_MAX = 512  # connections without a valid token, and at most a quarter of the descriptors
UNKNOWN_KEEP_ALIVE = 5  # seconds that an idle connection stays open before it has shown a token
WARNING_INTERVAL = 60.0  # seconds between two warnings about the same flood

log = logging.getLogger(__name__)
HEAD_TOO_LARGE = f"its request line and headers have more than {HEAD_MAX:,} bytes"


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
        self._head_size = 0  # bytes received of an incomplete head
        self._why_refused = "it cannot be parsed"
        self.caller: CallingProcess | None = None  # the process of its peer, once it is looked up

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
            self._refuse(MalformedRequest(why=HEAD_TOO_LARGE))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's own, without a reason
        self._refuse(MalformedRequest(why=self._why_refused))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._set_deadline(self.head_timeout)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # the trailer of a chunked body sets no header: it arrives after the checks
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """An error raised here ends in `send_400_response`."""
        lines = sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        if len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n\r\n") + lines > HEAD_MAX:
            self._why_refused = HEAD_TOO_LARGE
            raise ValueError(HEAD_TOO_LARGE)
        self._use_host_of_target()
        super().on_headers_complete()
        self._in_head, self._head_size = False, 0
        self._set_deadline(self.body_timeout)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._set_deadline(None)

    def _use_host_of_target(self) -> None:
        """The host in an absolute target, `GET http://host/path`, replaces the header (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host is None:
            return
        port = b"" if target.port is None else b":%d" % target.port
        host = b"[%s]" % target.host if b":" in target.host else target.host
        self.headers[:] = [(name, value) for name, value in self.headers if name != b"host"] + [(b"host", host + port)]

    def _set_deadline(self, seconds: float | None) -> None:
        """Refuse the request unless its next part arrives in time; None: no request is open."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        if self._in_head and not self._head_size:  # nothing was sent
            self.transport.close()
        else:
            self._refuse(RequestTimedOut(seconds=f"{seconds:g}"))

    def _refuse(self, error: DelegateError) -> None:
        """Respond without the application, if no other response is being sent, and close the connection."""
        cycle = self.cycle
        is_idle = cycle is None or (cycle.response_complete if self._in_head else not cycle.response_started)
        if is_idle and not self.pipeline and not self.transport.is_closing():
            response = problem_response(error, secrets.token_hex(6), {"connection": "close"})
            head = [b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())]
            head += [b"%s: %s" % pair for pair in response.raw_headers]
            self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))
        self.transport.close()
