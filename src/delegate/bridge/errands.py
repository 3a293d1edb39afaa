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

    from delegate.bridge.client import Output
    from delegate.client.http_response import Answer

SESSION_HEADER = "mcp-session-id"


class Session:
    """What the handshake settled, and the client's part of it, to be said again to a relay that has forgotten it."""

    __slots__ = ("id", "is_lost", "opened", "opening", "version")

    def __init__(self) -> None:
        self.is_lost = False  # whether the relay has forgotten it
        self.id: str | None = None
        self.version: str | None = None
        self.opening: rpc.Message | None = None
        self.opened: rpc.Message | None = None

    def lose(self, used: str | None) -> None:
        """The relay does not know the one that was used."""
        if used is not None and used == self.id:
            self.is_lost, self.id = True, None

    @property
    def headers(self) -> dict[str, str]:
        given = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": self.version}
        return {name: value for name, value in given.items() if value}


class Desk:
    """What is to be carried, and what the client is still owed."""

    def __init__(self, output: Output, log: Callable[..., None]) -> None:
        self.session = Session()
        self.output, self.log = output, log
        self.waiting: deque[Errand] = deque()
        self.first: deque[Errand] = deque()  # a new session, before everything that needs it
        self.calls: dict[str | int, Call] = {}
        self.has_new_session = False  # since somebody looked

    def put_first(self, errand: Errand) -> None:
        errand.is_first = True
        self.first.append(errand)

    def take(self, errand: Errand) -> None:
        """It leaves; it is the next one."""
        (self.first if errand.is_first else self.waiting).popleft()

    def put_back(self, errand: Errand) -> None:
        """It could not be delivered, and is the next one again."""
        if isinstance(errand, Call) and errand.is_cancelled:
            self.forget(errand)
        else:
            (self.first if errand.is_first else self.waiting).appendleft(errand)

    def forget(self, call: Call) -> None:
        if self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]

    def renew(self) -> None:
        """Have the handshake said again to a relay that has forgotten the session."""
        if not self.first and self.session.opening is not None:
            self.log("session renewed")
            self.put_first(Reopening(self.session.opening))

    def give_up(self, problem: Unreachable) -> None:
        """There is no relay, and no use in waiting: everybody who waits is told."""
        self.log("given up", why=problem.message)
        tired = [*self.waiting]
        self.waiting.clear()
        self.first.clear()
        for errand in tired:
            errand.give_up(self, problem)


class Errand:
    method = "POST"
    body = b""
    is_barrier = False  # whether nothing that came later may go before it has arrived
    is_first = False  # whether it goes before everything that waits
    used: str | None = None  # the session it was sent in
    resent = 0
    since = 0.0  # when it came

    @property
    def needs_session(self) -> bool:
        return True

    def headers(self, session: Session) -> dict[str, str]:
        return {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **session.headers}

    def begin(self, desk: Desk, answer: Answer) -> None:
        """The head of the answer is here."""

    def hear(self, desk: Desk, value: dict[str, Any], text: bytes) -> None:
        """One message of the answer; what a stream brings besides is for the client."""
        del value
        desk.output.say(text)

    def end(self, desk: Desk, answer: Answer, body: bytes) -> None:
        """The answer is complete, and no reason to send it again."""

    def give_up(self, desk: Desk, problem: Unreachable) -> None:
        """It will not be sent again."""


class Note(Errand):
    """A notification, or the client's answer to a question of the relay."""

    is_barrier = True

    def __init__(self, message: rpc.Message) -> None:
        self.message = message
        self.body = message.body

    @property
    def needs_session(self) -> bool:
        return self.message.version is None

    def headers(self, session: Session) -> dict[str, str]:
        return {**super().headers(session if self.needs_session else Session()), **own_headers(self.message)}

    def end(self, desk: Desk, answer: Answer, body: bytes) -> None:
        if answer.status >= 400:
            desk.log("notification refused", method=self.message.method, status=answer.status, body=body[:200])
        elif self.message.method == rpc.INITIALIZED:
            desk.session.opened = self.message
            desk.has_new_session = True


class Cancelling(Note):
    """After it the relay owes no answer any more, and the client wants none."""

    def __init__(self, message: rpc.Message, call: Call) -> None:
        super().__init__(message)
        self.call = call


class Call(Errand):
    """A request of the client. Exactly one answer goes back, unless the client has cancelled it."""

    def __init__(self, message: rpc.Message) -> None:
        self.message = message
        self.body = message.body
        self.is_cancelled = False
        self.is_answered = False
        self._progress = float("-inf")

    @property
    def needs_session(self) -> bool:
        return self.message.version is None

    def headers(self, session: Session) -> dict[str, str]:
        return {**super().headers(session if self.needs_session else Session()), **own_headers(self.message)}

    def hear(self, desk: Desk, value: dict[str, Any], text: bytes) -> None:
        if self.is_cancelled or not self._is_news(value):
            return
        if rpc.is_answer(value):
            self._take_answer(desk, value, text)
        else:
            desk.output.say(text)

    def _is_news(self, value: dict[str, Any]) -> bool:
        """Progress told again because the call was sent again is none: it must grow."""
        params = value.get("params")
        reached = params.get("progress") if value.get("method") == rpc.PROGRESS and isinstance(params, dict) else None
        if not isinstance(reached, int | float):
            return True
        is_news, self._progress = reached > self._progress, max(reached, self._progress)
        return is_news

    def _take_answer(self, desk: Desk, value: dict[str, Any], text: bytes) -> None:
        if value.get("id") is None:  # refused before anybody had read the id
            text = rpc.dumped({**value, "id": self.message.id})
        self.is_answered = True
        desk.forget(self)
        desk.output.say(text)

    def end(self, desk: Desk, answer: Answer, body: bytes) -> None:
        value = None if answer.is_stream else rpc.heard(body)
        if value is not None:
            self.hear(desk, value, body)
        if not self.is_answered and not self.is_cancelled:
            self._refuse(desk, *explained(answer.status, body))

    def give_up(self, desk: Desk, problem: Unreachable) -> None:
        self._refuse(desk, f"{problem.message}: {problem.hint}" if problem.hint else problem.message, problem.code)

    def _refuse(self, desk: Desk, message: str, code: str) -> None:
        self.is_answered = True
        desk.forget(self)
        desk.output.say(rpc.error_line(self.message.id, rpc.UNREACHABLE, message, {"code": code}))


class Opening(Call):
    """The client's handshake."""

    is_barrier = True

    @property
    def needs_session(self) -> bool:
        return False

    def begin(self, desk: Desk, answer: Answer) -> None:
        if answer.status < 300:
            desk.session.id = visible(answer.headers.get(SESSION_HEADER))

    def _take_answer(self, desk: Desk, value: dict[str, Any], text: bytes) -> None:
        result = value.get("result")
        if isinstance(result, dict):
            desk.session.opening, desk.session.opened = self.message, None
            desk.session.is_lost = False
            desk.session.version = visible(result.get("protocolVersion"))
        super()._take_answer(desk, value, text)


class Reopening(Opening):
    """The same handshake with a relay that has forgotten it; the client hears nothing of it."""

    def _take_answer(self, desk: Desk, value: dict[str, Any], text: bytes) -> None:
        opened = desk.session.opened
        self.is_answered = True
        result = value.get("result")
        if not isinstance(result, dict):
            self._refuse(desk, f"the relay refused to renew the session: {text[:200].decode()}", "session_refused")
            return
        desk.session.version = visible(result.get("protocolVersion"))
        desk.session.is_lost = False
        if opened is not None:
            desk.put_first(Note(opened))

    def _refuse(self, desk: Desk, message: str, code: str) -> None:
        self.is_answered = True
        desk.give_up(Unreachable(code, message))


class Listening(Errand):
    """One open request for what the relay has to say by itself."""

    method = "GET"

    def __init__(self, last_id: str) -> None:
        self._last_id = last_id

    def headers(self, session: Session) -> dict[str, str]:
        last = {"Last-Event-ID": self._last_id} if self._last_id else {}
        return {"Accept": "text/event-stream", **session.headers, **last}


class Farewell(Errand):
    method = "DELETE"

    def headers(self, session: Session) -> dict[str, str]:
        return session.headers


def own_headers(message: rpc.Message) -> dict[str, str]:
    """What a message that belongs to no session repeats of itself in its head."""
    if message.version is None:
        return {}
    found = {"MCP-Protocol-Version": message.version, "Mcp-Method": message.method, "Mcp-Name": message.name}
    return {name: encoded(value) for name, value in found.items() if value is not None}


def encoded(value: str) -> str:
    """As it may stand in a head, by the rule of the protocol: anything unusual in base64."""
    is_usual = value.isascii() and value.isprintable() and value == value.strip()
    if is_usual and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    import binascii  # noqa: PLC0415  names are usual

    return f"=?base64?{binascii.b2a_base64(value.encode(errors='replace'), newline=False).decode()}?="


def visible(value: object) -> str | None:
    """A word of the relay that may go back to it in a head."""
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else None


def explained(status: int, body: bytes) -> tuple[str, str]:
    """Message and code for an answer that is no JSON-RPC: a problem as the relay tells it, or a stranger's."""
    try:
        found = rpc.DECODER.decode(body.decode())
        message, code, hint = str(found["detail"]), str(found["type"]), found.get("hint")
    except (ValueError, KeyError, TypeError, RecursionError):
        advice = "it may be older than this program: `delegate down` and `delegate up` renew it"
        return f"the relay answered {status}, not as one that speaks MCP; {advice}", "relay_unreachable"
    return f"{message}: {hint}" if hint else message, code
