"""A small /mcp that does what a test tells it to, and a home in which the bridge finds it."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "2025-06-18"
PATIENCE = 20.0
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Json:
        return dict(json.loads(self.body))

    @property
    def session(self) -> str | None:
        return self.headers.get("mcp-session-id")


@dataclass(kw_only=True)
class ScriptedMcp:
    """Speaks both kinds of answers. `tool` says what a call of a tool gets; None breaks its connection off."""

    streams: bool = False  # answers as server-sent events
    tool: Callable[[Json], Json | None] = field(default=lambda params: {"content": [], "called": params["name"]})
    asked: list[Asked] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    progress: int = 0  # notifications of progress before the result of a tool
    break_after_progress: int = 0  # so many calls break off after them
    refusal: tuple[int, bytes] | None = None  # every POST gets this
    listeners: list[queue.Queue[Json | None]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0

    @contextmanager
    def serving(self, context: ssl.SSLContext | None = None) -> Iterator[ScriptedMcp]:
        server = _Server(("127.0.0.1", self.port), type("Bound", (_Answers,), {"script": self}))
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            for listener in self.listeners:
                listener.put(None)
            server.cut()
            server.server_close()
            thread.join()

    def note(self, asked: Asked) -> None:
        with self.changed:
            self.asked.append(asked)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Until what was asked is as wanted."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), [(one.method, one.body[:80]) for one in self.asked]
            return condition()

    def of(self, method: str) -> list[Asked]:
        """The messages with this method that came, in their order."""
        return [one for one in self.asked if one.body and one.message.get("method") == method]

    def forget_sessions(self) -> None:
        self.sessions.clear()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        self.open: set[socket.socket] = set()
        super().__init__(*given)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.open.add(connection)
        return connection, address

    def cut(self) -> None:
        for connection in self.open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        """A bridge that hangs up is what some tests are about."""


class _Answers(BaseHTTPRequestHandler):
    script: ScriptedMcp
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def _asked(self) -> Asked:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = Asked(self.command, {name.lower(): value for name, value in self.headers.items()}, body)
        self.script.note(asked)
        return asked

    def do_POST(self) -> None:
        asked = self._asked()
        message = asked.message
        if self.script.refusal is not None:
            self._reply(*self.script.refusal)
        elif asked.session is not None and asked.session not in self.script.sessions:
            self._reply(404, _error("Session not found"))
        elif "id" not in message or "method" not in message:
            self._reply(202, b"")
        else:
            self._answer(message)

    def do_GET(self) -> None:
        asked = self._asked()
        if asked.session not in self.script.sessions:
            self._reply(404, _error("Session not found"))
            return
        listener: queue.Queue[Json | None] = queue.Queue()
        self._begin_stream()
        with self.script.changed:
            self.script.listeners.append(listener)
            self.script.changed.notify_all()
        while (message := listener.get()) is not None:
            self._event(message)
        self.close_connection = True

    def do_DELETE(self) -> None:
        asked = self._asked()
        self.script.sessions.discard(asked.session or "")
        self._reply(200, b"null")

    def _answer(self, message: Json) -> None:
        heads = {}
        if message["method"] == "initialize":
            session = os.urandom(8).hex()
            self.script.sessions.add(session)
            heads = {"Mcp-Session-Id": session}
            result: Json | None = {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": {"name": "scripted"}}
        elif message["method"] == "tools/call":
            result = self._call(message["params"])
        else:
            result = {"method": message["method"]}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if result is None:
            self.close_connection = True
        elif self.script.streams:
            self._begin_stream(heads)
            self._tell_progress(message)
            self._event(answer)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._reply(200, json.dumps(answer, indent=1).encode(), heads)

    def _call(self, params: Json) -> Json | None:
        return self.script.tool(params)

    def _tell_progress(self, message: Json) -> None:
        if message["method"] != "tools/call":
            return
        for step in range(self.script.progress):
            params = {"progressToken": message["id"], "progress": step}
            self._event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        if self.script.break_after_progress:
            self.script.break_after_progress -= 1
            raise ConnectionAbortedError

    def _begin_stream(self, heads: dict[str, str] | None = None) -> None:
        self.send_response(200)
        own = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        for name, value in {**own, **(heads or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self._piece(b": ping\r\n\r\n")

    def _event(self, message: Json) -> None:
        self._piece(b"event: message\r\nid: 7\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n")

    def _piece(self, piece: bytes) -> None:
        half = len(piece) // 2  # an event need not come at once
        for part in (piece[:half], piece[half:]):
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()

    def _reply(self, status: int, body: bytes, heads: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(heads or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _error(message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}).encode()


@contextmanager
def kept_home(place: Path, port: int) -> Iterator[Path]:
    """A home as a keeper keeps it, with a relay at this port."""
    place.mkdir(exist_ok=True)
    address = {"url": f"http://127.0.0.1:{port}", "port": port, "pid": 1, "keeperPid": 1}
    address |= {"version": "0", "startedAt": "-"}
    (place / "relay.json").write_text(json.dumps(address))
    (place / "machine").write_text("lathe-1234\n")
    (place / "token").write_text("secret-token\n")
    (place / "token").chmod(0o600)
    with (place / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
