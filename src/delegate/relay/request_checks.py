"""Checks every request before routing: host, origin and body size. Gives it a request id."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delegate.errors import (
    DelegateError,
    HostRefused,
    MalformedBody,
    OriginRefused,
    PayloadTooLarge,
)
from delegate.relay.problems import problem_response
from delegate.wire.basics import BODY_MAX, RECORD_BODY_MAX

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
Headers = dict[str, list[str]]


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(6)
        scope.setdefault("state", {})["request_id"] = request_id
        limit = RECORD_BODY_MAX if scope["path"].endswith("/record") else BODY_MAX
        try:
            headers = collect_headers(scope["headers"])
            check_origin(headers)
            check_length(headers, limit)
        except DelegateError as error:
            await problem_response(error, request_id)(scope, receive, send)
            return
        await self.app(scope, limit_body(receive, limit), send)


def limit_body(receive: Receive, limit: int) -> Receive:
    """Count the body as it arrives: a chunked one has no length to check first."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise PayloadTooLarge(limit=limit)
        return message

    return receive_limited


def collect_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Collect all values of each header: some headers must not be repeated."""
    headers: Headers = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers


def check_origin(headers: Headers) -> None:
    """Refuse web pages: those that reach the relay by another host name, and those of another origin."""
    hosts = headers.get("host", [])
    if len(hosts) != 1 or _host_name(hosts[0]) not in LOOPBACK_NAMES:
        raise HostRefused(host=",".join(hosts) or "(none)")
    for origin in headers.get("origin", []):
        if origin != f"http://{hosts[0]}":
            raise OriginRefused(origin=origin)


def _host_name(host: str) -> str:
    """Remove the port, which a tunnel may have changed; an IPv6 address keeps its brackets."""
    head, colon, port = host.rpartition(":")
    return head if colon and port.isdecimal() else host


def check_length(headers: Headers, limit: int) -> None:
    for length in headers.get("content-length", []):
        if not (length.isascii() and length.isdecimal()):
            raise MalformedBody(why="its Content-Length is not a number")
        if len(length) > len(str(limit)) or int(length) > limit:
            raise PayloadTooLarge(limit=limit)
