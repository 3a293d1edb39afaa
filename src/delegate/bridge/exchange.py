"""An errand on its way: one request on one connection, and its answer as it comes back."""

from __future__ import annotations

from delegate.bridge import rpc
from delegate.bridge.errands import Errand
from delegate.client.http_response import Answer, Events, NotHttp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.bridge.connection import Connection
    from delegate.bridge.endpoint import Endpoint
    from delegate.bridge.errands import Desk, Session

NOT_FOUND, FAULT = 404, 500
BUSY = {429, 502, 503, 504}  # statuses that pass
ANSWER_MAX = 64 * 1024 * 1024  # bytes of one message; it is handed to the client as one line


def request_bytes(errand: Errand, endpoint: Endpoint, session: Session, own: dict[str, str]) -> bytes:
    """`own` are the headers by which every request tells where its client is and what it is set to."""
    heads = {"Host": endpoint.authority, "Authorization": f"Bearer {endpoint.token}", **errand.headers(session)}
    heads |= {"delegate-machine": percent(endpoint.machine.encode()), **own}
    if errand.method == "POST":
        heads["Content-Length"] = str(len(errand.body))
    lines = [f"{errand.method} {endpoint.path}/mcp HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + errand.body


def percent(text: bytes) -> str:
    return "".join(chr(c) if (chr(c).isalnum() and c < 128) or c in b"/-_.~" else f"%{c:02X}" for c in text)


class Exchange:
    __slots__ = ("_body", "_events", "_is_begun", "answer", "connection", "errand", "heard_at", "is_second")

    def __init__(self, connection: Connection, errand: Errand, *, is_second: bool, now: float) -> None:
        self.connection = connection
        self.errand: Errand | None = errand
        self.is_second = is_second  # on a connection that was used before: it may be closed without any meaning
        self.heard_at = now
        self.answer = Answer()
        self._body = bytearray()
        self._events = Events(ANSWER_MAX)
        self._is_begun = False

    @property
    def last_event_id(self) -> str:
        return self._events.last_id

    def work(self, desk: Desk, now: float) -> None:
        """Move on as far as it goes; raises OSError or NotHttp when that was the end of it."""
        data = self.connection.work()
        if data is None:
            self.answer.end()
            return
        if not data:
            return
        self.heard_at = now
        piece = self.answer.feed(data)
        if self.answer.status and not self._is_begun:
            self._is_begun = True
            if self.errand is not None:
                self.errand.begin(desk, self.answer)
        self._take(desk, piece)

    def _take(self, desk: Desk, piece: bytes) -> None:
        if not self.answer.is_stream or self.answer.status >= 300:
            self._body += piece
            if len(self._body) > ANSWER_MAX:
                raise NotHttp(f"its answer is larger than {ANSWER_MAX:,} bytes")
            return
        for event in self._events.feed(piece):
            value = rpc.heard(event.data)
            if self.errand is not None and value is not None:
                self.errand.hear(desk, value, event.data)

    @property
    def body(self) -> bytes:
        return bytes(self._body)
