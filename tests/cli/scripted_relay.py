"""A relay that answers what a test tells it to, byte by byte, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True)
class Asked:
    line: str
    headers: dict[str, str]
    body: bytes


Run = Callable[..., tuple[int, list[Asked]]]


def body_of(asked: list[Asked]) -> dict[str, Any]:
    """What was sent, without the key that makes it safe to send it twice."""
    sent: dict[str, Any] = json.loads(asked[0].body)
    sent.pop("requestKey")
    return sent


def answer(value: object, status: str = "200 OK") -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def problem(status: str, code: str, detail: str, hint: str | None = None) -> bytes:
    return answer({"type": code, "title": code, "detail": detail, "hint": hint, "status": int(status[:3])}, status)


def chunked(*pieces: bytes) -> bytes:
    framed = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed


LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class ScriptedRelay:
    """Each connection takes the next answer; an empty one is a connection that is closed without a word."""

    answers: Sequence[bytes]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> ScriptedRelay:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        for reply in self.answers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as reader:
                self.asked.append(_read_request(reader))
                with suppress(OSError):
                    connection.sendall(reply)


def _read_request(reader: BinaryIO) -> Asked:
    line = reader.readline().decode().strip()
    headers = {}
    while header := reader.readline().decode().strip():
        name, _, value = header.partition(": ")
        headers[name.lower()] = value
    return Asked(line, headers, reader.read(int(headers.get("content-length", 0))))
