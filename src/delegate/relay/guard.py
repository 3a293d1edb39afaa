"""Before any route: foreign hosts and pages, bodies that are too large or of the wrong kind, and a name per request."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delegate.errors import DelegateError, HostRefused, MalformedBody, OriginRefused, PayloadTooLarge, UnsupportedMedia
from delegate.relay.problems import problem
from delegate.wire import BODY_MAX, RECORD_BODY_MAX

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(6)
        scope.setdefault("state", {})["request_id"] = request_id
        headers = Headers(scope=scope)
        try:
            check_origin(headers)
            limit = RECORD_BODY_MAX if scope["path"].endswith("/record") else BODY_MAX
            check_body(headers, scope["method"], limit)
        except DelegateError as error:
            await problem(error, request_id)(scope, receive, send)
            return
        await self._limited(scope, receive, send, limit)

    async def _limited(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Chunked bodies have no length to check beforehand: count them as they come."""
        received = 0
        started = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise PayloadTooLarge(limit=limit)
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except PayloadTooLarge as error:
            if started:
                raise
            await problem(error, scope["state"]["request_id"])(scope, receive, send)


def check_origin(headers: Headers) -> None:
    """A web page must not reach the relay: not by a name that resolves here, not from another origin."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or _name(hosts[0]) not in LOOPBACK_NAMES:
        raise HostRefused(host=",".join(hosts) or "(none)")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != hosts[0]:
        raise OriginRefused(origin=origin)


def _name(host: str) -> str:
    """Without the port; an IPv6 address keeps its brackets."""
    head, colon, port = host.rpartition(":")
    return head if colon and port.isdigit() else host


def check_body(headers: Headers, method: str, limit: int) -> None:
    length = headers.get("content-length")
    if length is not None and (not length.isdigit() or int(length) > limit):
        raise PayloadTooLarge(limit=limit) if length.isdigit() else MalformedBody(why="its length is no number")
    if method in {"POST", "PUT", "PATCH"}:
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":
            raise UnsupportedMedia(given=given or "nothing")


def request_id_of(scope: Any) -> str:
    return str(scope["state"]["request_id"])
