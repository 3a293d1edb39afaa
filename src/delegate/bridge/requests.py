"""What the bridge takes to the relay: a call, a notification, a new session, an ear for the relay, a farewell.

An errand says what is sent, and what its answer means. When and over which connection is the bridge's business.
"""

from __future__ import annotations

from collections import deque

from delegate.bridge import rpc
from delegate.bridge.endpoint import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from delegate.bridge.stdio import Output
    from delegate.client.http_response import Response

SESSION_HEADER = "mcp-session-id"


class Session:
    """What the handshake settled, and the client's part of it, to be said again to a relay that has forgotten it."""

    __slots__ = ("id", "initialize_message", "initialized_message", "is_lost", "version")

    def __init__(self) -> None:
        self.is_lost = False  # whether the relay has forgotten it
        self.id: str | None = None
        self.version: str | None = None
        self.initialize_message: rpc.ClientMessage | None = None
        self.initialized_message: rpc.ClientMessage | None = None

    def lose(self, used: str | None) -> None:
        """The relay does not know the one that was used."""
        if used is not None and used == self.id:
            self.is_lost, self.id = True, None

    @property
    def headers(self) -> dict[str, str]:
        given = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": self.version}
        return {name: value for name, value in given.items() if value}


class RequestQueue:
    """What is to be carried, and what the client is still owed."""

    def __init__(self, output: Output, log: Callable[..., None]) -> None:
        self.session = Session()
        self.output, self.log = output, log
        self.waiting: deque[PendingRequest] = deque()
        self.priority: deque[PendingRequest] = deque()  # a new session, before everything that needs it
        self.calls: dict[str | int, ClientCall] = {}
        self.has_new_session = False  # since somebody looked

    def enqueue_first(self, request: PendingRequest) -> None:
        request.is_first = True
        self.priority.append(request)

    def pop(self, request: PendingRequest) -> None:
        """It leaves; it is the next one."""
        (self.priority if request.is_first else self.waiting).popleft()

    def requeue(self, request: PendingRequest) -> None:
        """It could not be delivered, and is the next one again."""
        if isinstance(request, ClientCall) and request.is_cancelled:
            self.forget(request)
        else:
            (self.priority if request.is_first else self.waiting).appendleft(request)

    def forget(self, call: ClientCall) -> None:
        if self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]

    def renew_session(self) -> None:
        """Have the handshake said again to a relay that has forgotten the session."""
        if not self.priority and self.session.initialize_message is not None:
            self.log("session renewed")
            self.enqueue_first(Reinitialize(self.session.initialize_message))

    def fail_all(self, problem: Unreachable) -> None:
        """There is no relay, and no use in waiting: everybody who waits is told."""
        self.log("given up", why=problem.message)
        failed = [*self.waiting]
        self.waiting.clear()
        self.priority.clear()
        for request in failed:
            request.fail(self, problem)


class PendingRequest:
    method = "POST"
    body = b""
    is_barrier = False  # whether nothing that came later may go before it has arrived
    is_first = False  # whether it goes before everything that waits
    sent_session_id: str | None = None  # the session it was sent in
    resent = 0
    enqueued_at = 0.0  # when it came

    @property
    def needs_session(self) -> bool:
        return True

    def headers(self, session: Session) -> dict[str, str]:
        return {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **session.headers}

    def on_head(self, queue: RequestQueue, response: Response) -> None:
        """The head of the answer is here."""

    def on_message(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        """One message of the answer; what a stream brings besides is for the client."""
        del value
        queue.output.enqueue(text)

    def on_complete(self, queue: RequestQueue, response: Response, body: bytes) -> None:
        """The answer is complete, and no reason to send it again."""

    def fail(self, queue: RequestQueue, problem: Unreachable) -> None:
        """It will not be sent again."""


class Notification(PendingRequest):
    """A notification, or the client's answer to a question of the relay."""

    is_barrier = True

    def __init__(self, message: rpc.ClientMessage) -> None:
        self.message = message
        self.body = message.body

    @property
    def needs_session(self) -> bool:
        return self.message.version is None

    def headers(self, session: Session) -> dict[str, str]:
        return {**super().headers(session if self.needs_session else Session()), **message_headers(self.message)}

    def on_complete(self, queue: RequestQueue, response: Response, body: bytes) -> None:
        if response.status >= 400:
            queue.log("notification refused", method=self.message.method, status=response.status, body=body[:200])
        elif self.message.method == rpc.INITIALIZED:
            queue.session.initialized_message = self.message
            queue.has_new_session = True


class CancelNotification(Notification):
    """After it the relay owes no answer any more, and the client wants none."""

    def __init__(self, message: rpc.ClientMessage, call: ClientCall) -> None:
        super().__init__(message)
        self.call = call


class ClientCall(PendingRequest):
    """A request of the client. Exactly one answer goes back, unless the client has cancelled it."""

    def __init__(self, message: rpc.ClientMessage) -> None:
        self.message = message
        self.body = message.body
        self.is_cancelled = False
        self.is_answered = False
        self._progress = float("-inf")

    @property
    def needs_session(self) -> bool:
        return self.message.version is None

    def headers(self, session: Session) -> dict[str, str]:
        return {**super().headers(session if self.needs_session else Session()), **message_headers(self.message)}

    def on_message(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        if self.is_cancelled or not self._is_new_progress(value):
            return
        if rpc.is_response(value):
            self._deliver_response(queue, value, text)
        else:
            queue.output.enqueue(text)

    def _is_new_progress(self, value: dict[str, Any]) -> bool:
        """Progress told again because the call was sent again is none: it must grow."""
        params = value.get("params")
        reached = params.get("progress") if value.get("method") == rpc.PROGRESS and isinstance(params, dict) else None
        if not isinstance(reached, int | float):
            return True
        is_new, self._progress = reached > self._progress, max(reached, self._progress)
        return is_new

    def _deliver_response(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        if value.get("id") is None:  # refused before anybody had read the id
            text = rpc.dump({**value, "id": self.message.id})
        self.is_answered = True
        queue.forget(self)
        queue.output.enqueue(text)

    def on_complete(self, queue: RequestQueue, response: Response, body: bytes) -> None:
        value = None if response.is_stream else rpc.parse_message(body)
        if value is not None:
            self.on_message(queue, value, body)
        if not self.is_answered and not self.is_cancelled:
            self._deliver_error(queue, *explain_failure(response.status, body))

    def fail(self, queue: RequestQueue, problem: Unreachable) -> None:
        self._deliver_error(
            queue, f"{problem.message}: {problem.hint}" if problem.hint else problem.message, problem.code
        )

    def _deliver_error(self, queue: RequestQueue, message: str, code: str) -> None:
        self.is_answered = True
        queue.forget(self)
        queue.output.enqueue(rpc.error_line(self.message.id, rpc.UNREACHABLE, message, {"code": code}))


class Initialize(ClientCall):
    """The client's handshake."""

    is_barrier = True

    @property
    def needs_session(self) -> bool:
        return False

    def on_head(self, queue: RequestQueue, response: Response) -> None:
        if response.status < 300:
            queue.session.id = header_value(response.headers.get(SESSION_HEADER))

    def _deliver_response(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        result = value.get("result")
        if isinstance(result, dict):
            queue.session.initialize_message, queue.session.initialized_message = self.message, None
            queue.session.is_lost = False
            queue.session.version = header_value(result.get("protocolVersion"))
        super()._deliver_response(queue, value, text)


class Reinitialize(Initialize):
    """The same handshake with a relay that has forgotten it; the client hears nothing of it."""

    def _deliver_response(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        opened = queue.session.initialized_message
        self.is_answered = True
        result = value.get("result")
        if not isinstance(result, dict):
            self._deliver_error(
                queue, f"the relay refused to renew the session: {text[:200].decode()}", "session_refused"
            )
            return
        queue.session.version = header_value(result.get("protocolVersion"))
        queue.session.is_lost = False
        if opened is not None:
            queue.enqueue_first(Notification(opened))

    def _deliver_error(self, queue: RequestQueue, message: str, code: str) -> None:
        self.is_answered = True
        queue.fail_all(Unreachable(code, message))


class EventStreamRequest(PendingRequest):
    """One open request for what the relay has to say by itself."""

    method = "GET"

    def __init__(self, last_id: str) -> None:
        self._last_id = last_id

    def headers(self, session: Session) -> dict[str, str]:
        last = {"Last-Event-ID": self._last_id} if self._last_id else {}
        return {"Accept": "text/event-stream", **session.headers, **last}


class SessionDelete(PendingRequest):
    method = "DELETE"

    def headers(self, session: Session) -> dict[str, str]:
        return session.headers


def message_headers(message: rpc.ClientMessage) -> dict[str, str]:
    """What a message that belongs to no session repeats of itself in its head."""
    if message.version is None:
        return {}
    found = {"MCP-Protocol-Version": message.version, "Mcp-Method": message.method, "Mcp-Name": message.name}
    return {name: encode_header(value) for name, value in found.items() if value is not None}


def encode_header(value: str) -> str:
    """As it may stand in a head, by the rule of the protocol: anything unusual in base64."""
    is_usual = value.isascii() and value.isprintable() and value == value.strip()
    if is_usual and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    import binascii  # noqa: PLC0415  names are usual

    return f"=?base64?{binascii.b2a_base64(value.encode(errors='replace'), newline=False).decode()}?="


def header_value(value: object) -> str | None:
    """A word of the relay that may go back to it in a head."""
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else None


def explain_failure(status: int, body: bytes) -> tuple[str, str]:
    """Message and code for an answer that is no JSON-RPC: a problem as the relay tells it, or a stranger's."""
    try:
        found = rpc.DECODER.decode(body.decode())
        message, code, hint = str(found["detail"]), str(found["type"]), found.get("hint")
    except (ValueError, KeyError, TypeError, RecursionError):
        advice = "it may be older than this program: `delegate down` and `delegate up` renew it"
        return f"the relay answered {status}, not as one that speaks MCP; {advice}", "relay_unreachable"
    return f"{message}: {hint}" if hint else message, code
