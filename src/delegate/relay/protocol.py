"""HTTP/1.1 as uvicorn speaks it, but nobody can hold a connection by sending slowly or without end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle, Transport

HEAD_TIMEOUT = 10.0  # seconds until the headers of a request have arrived
BODY_TIMEOUT = 60.0  # and then its body: a runner on a slow line needs them for four MiB
HEAD_MAX = 64 * 1024  # bytes of headers, address included


class BufferedTransport:
    """A transport that holds what is written first until the turn of the loop is over or more comes.

    uvicorn writes the head of an answer and its body apart, and every write is a call to the kernel: with one less, a
    submit takes a tenth less time.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = b""

    def __getattr__(self, name: str) -> Any:  # Any: whatever a transport has
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


class HttpProtocol(HttpToolsProtocol):
    head_timeout = HEAD_TIMEOUT
    body_timeout = BODY_TIMEOUT

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: whatever uvicorn hands over
        super().__init__(*args, **kwargs)
        self._deadline: TimerHandle | None = None
        self._in_head = True
        self._head_size = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        self.transport = BufferedTransport(transport, self.loop)  # type: ignore[assignment]  # it is one, by delegation
        self._set_deadline(self.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_size += len(data)
        super().data_received(data)
        if self._in_head and self._head_size > HEAD_MAX and not self.transport.is_closing():
            self.send_400_response("The headers of the request are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
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
        """The next part of the request must be here within this time; None: nothing is under way."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.close)
