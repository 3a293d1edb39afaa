"""One request on one connection, and its response as it arrives."""

from __future__ import annotations

from delegate.client.http_response import EventStreamParser, NotHttp, Response
from delegate.mcp_bridge import rpc
from delegate.mcp_bridge.connection import Connection
from delegate.mcp_bridge.requests import PendingRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.mcp_bridge.endpoint import Endpoint
    from delegate.mcp_bridge.requests import RequestQueue, Session

NOT_FOUND, SERVER_ERROR = 404, 500
RETRYABLE_STATUSES = {429, 502, 503, 504}  # temporary failures
RESPONSE_MAX = 64 * 1024 * 1024  # bytes of one message; the client gets it as one line


def request_bytes(
    request: PendingRequest, endpoint: Endpoint, session: Session, client_headers: dict[str, str]
) -> bytes:
    """Encode a request. `client_headers` carry the client's directory and default agent."""
    headers = {"Host": endpoint.authority, "Authorization": f"Bearer {endpoint.token}", **request.headers(session)}
    headers |= {"delegate-machine": percent_encode(endpoint.machine.encode()), **client_headers}
    if request.method == "POST":
        headers["Content-Length"] = str(len(request.body))
    lines = [f"{request.method} {endpoint.path}/mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


def percent_encode(text: bytes) -> str:
    return "".join(chr(c) if (chr(c).isalnum() and c < 128) or c in b"/-_.~" else f"%{c:02X}" for c in text)


class RelayExchange:
    __slots__ = ("_body", "_events", "_is_begun", "connection", "is_reused", "received_at", "request", "response")

    def __init__(self, connection: Connection, request: PendingRequest, *, is_reused: bool, now: float) -> None:
        self.connection = connection
        self.request: PendingRequest | None = request
        self.is_reused = is_reused  # a reused connection may have been closed for being idle
        self.received_at = now
        self.response = Response()
        self._body = bytearray()
        self._events = EventStreamParser(RESPONSE_MAX)
        self._is_begun = False

    @property
    def last_event_id(self) -> str:
        return self._events.last_id

    def advance(self, queue: RequestQueue, now: float) -> None:
        """Send and receive as much as possible; raises OSError or NotHttp if the exchange has failed."""
        data = self.connection.advance()
        if data is None:
            self.response.end()
            return
        if not data:
            return
        self.received_at = now
        piece = self.response.feed(data)
        if self.response.status and not self._is_begun:
            self._is_begun = True
            if self.request is not None:
                self.request.on_head(queue, self.response)
        self._receive_body(queue, piece)

    def _receive_body(self, queue: RequestQueue, piece: bytes) -> None:
        if not self.response.is_stream or self.response.status >= 300:
            self._body += piece
            if len(self._body) > RESPONSE_MAX:
                raise NotHttp(f"its response is larger than {RESPONSE_MAX:,} bytes")
            return
        for event in self._events.feed(piece):
            value = rpc.parse_message(event.data)
            if self.request is not None and value is not None:
                self.request.on_message(queue, value, event.data)

    @property
    def body(self) -> bytes:
        return bytes(self._body)


def connect(endpoint: Endpoint) -> Connection:
    """Open a plain or a TLS connection, as the endpoint requires."""
    if not endpoint.is_secure:
        return Connection(endpoint)
    from delegate.mcp_bridge.secure import SecureConnection  # noqa: PLC0415  ssl takes more memory than all the rest

    return SecureConnection(endpoint)
