"""The requests that the bridge sends: calls, notifications, handshakes, the event stream, the end of a session.

A request defines what is sent and how its response is handled. The dispatcher decides when, and on which connection.
"""

from __future__ import annotations

from collections import deque

from delegate.mcp_bridge import rpc
from delegate.mcp_bridge.endpoint import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from delegate.client.http_response import Response
    from delegate.mcp_bridge.stdio import Output

SESSION_HEADER = "mcp-session-id"


class Session:
    """The MCP session, and the client's handshake messages, to repeat them to a relay that has lost the session."""

    __slots__ = ("id", "initialize_message", "initialized_message", "is_lost", "version")

    def __init__(self) -> None:
        self.is_lost = False  # whether the relay has lost it
        self.id: str | None = None
        self.version: str | None = None
        self.initialize_message: rpc.ClientMessage | None = None
        self.initialized_message: rpc.ClientMessage | None = None

    def lose(self, used: str | None) -> None:
        """Mark the session as lost if it is the one that the relay did not know."""
        if used is not None and used == self.id:
            self.is_lost, self.id = True, None

    @property
    def headers(self) -> dict[str, str]:
        given = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": self.version}
        return {name: value for name, value in given.items() if value}


class RequestQueue:
    """Requests to be sent, and calls that have no response yet."""

    def __init__(self, output: Output, log: Callable[..., None]) -> None:
        self.session = Session()
        self.output, self.log = output, log
        self.waiting: deque[PendingRequest] = deque()
        self.priority: deque[PendingRequest] = deque()  # a new handshake, before everything that needs its session
        self.calls: dict[str | int, ClientCall] = {}
        self.has_new_session = False  # since the dispatcher last checked
        self.has_failed_calls = False  # calls that no relay has answered

    def enqueue_first(self, request: PendingRequest) -> None:
        request.is_first = True
        self.priority.append(request)

    def pop(self, request: PendingRequest) -> None:
        """Remove the request, which is the next one."""
        (self.priority if request.is_first else self.waiting).popleft()

    def requeue(self, request: PendingRequest) -> None:
        """Put back a request that could not be delivered, as the next one."""
        if isinstance(request, ClientCall) and request.is_cancelled:
            self.forget(request)
        else:
            (self.priority if request.is_first else self.waiting).appendleft(request)

    def forget(self, call: ClientCall) -> None:
        if self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]

    def renew_session(self) -> None:
        """Repeat the handshake with a relay that has lost the session."""
        if not self.priority and self.session.initialize_message is not None:
            self.log("renewing session")
            self.enqueue_first(Reinitialize(self.session.initialize_message))

    def fail_all(self, problem: Unreachable) -> None:
        """Fail all queued requests: there is no relay, and waiting will not help."""
        self.log("giving up", why=problem.message)
        failed = [*self.waiting]
        self.waiting.clear()
        self.priority.clear()
        for request in failed:
            request.fail(self, problem)


class PendingRequest:
    method = "POST"
    body = b""
    is_barrier = False  # whether later requests wait until the relay has received it
    is_first = False  # whether it is sent before everything in `waiting`
    sent_session_id: str | None = None  # the session it was sent in
    resent = 0
    enqueued_at = 0.0  # when the client sent it

    @property
    def needs_session(self) -> bool:
        return True

    def headers(self, session: Session) -> dict[str, str]:
        return {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **session.headers}

    def on_head(self, queue: RequestQueue, response: Response) -> None:
        """Handle the head of the response."""

    def on_message(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        """Handle one message of the response; by default, pass it to the client."""
        del value
        queue.output.enqueue(text)

    def on_complete(self, queue: RequestQueue, response: Response, body: bytes) -> None:
        """Handle a complete response; the request is not sent again."""

    def fail(self, queue: RequestQueue, problem: Unreachable) -> None:
        """Handle the final failure of the request."""


class Notification(PendingRequest):
    """A notification, or the client's response to a request of the relay."""

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
    """Cancels a call; no response to the call is expected after it."""

    def __init__(self, message: rpc.ClientMessage, call: ClientCall) -> None:
        super().__init__(message)
        self.call = call


class ClientCall(PendingRequest):
    """A request of the client. It gets exactly one response, unless the client cancels it."""

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
        """Whether this progress is new; a call that was resent repeats earlier progress."""
        params = value.get("params")
        reached = params.get("progress") if value.get("method") == rpc.PROGRESS and isinstance(params, dict) else None
        if not isinstance(reached, int | float):
            return True
        is_new, self._progress = reached > self._progress, max(reached, self._progress)
        return is_new

    def _deliver_response(self, queue: RequestQueue, value: dict[str, Any], text: bytes) -> None:
        if value.get("id") is None:  # refused before the id was read
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
        queue.has_failed_calls = True
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
    """Repeats the handshake with a relay that has lost the session, unseen by the client."""

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
    """The event stream for messages that the relay sends on its own."""

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
    """Return the headers that a message without a session repeats from its body."""
    if message.version is None:
        return {}
    found = {"MCP-Protocol-Version": message.version, "Mcp-Method": message.method, "Mcp-Name": message.name}
    return {name: encode_header(value) for name, value in found.items() if value is not None}


def encode_header(value: str) -> str:
    """Encode a header value as the MCP protocol requires: anything unusual in base64."""
    is_usual = value.isascii() and value.isprintable() and value == value.strip()
    if is_usual and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    import binascii  # noqa: PLC0415  rarely needed

    return f"=?base64?{binascii.b2a_base64(value.encode(errors='replace'), newline=False).decode()}?="


def header_value(value: object) -> str | None:
    """Return the relay's value if it is safe to send back in a header."""
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else None


def explain_failure(status: int, body: bytes) -> tuple[str, str]:
    """Return message and code for a response that is not JSON-RPC: a problem of the relay, or something else."""
    try:
        found = rpc.DECODER.decode(body.decode())
        message, code, hint = str(found["detail"]), str(found["type"]), found.get("hint")
    except (ValueError, KeyError, TypeError, RecursionError):
        advice = "it may be an older version: run `delegate down`, then `delegate up`"
        return f"the relay responded with status {status}, but not with an MCP message; {advice}", "relay_unreachable"
    return f"{message}: {hint}" if hint else message, code
