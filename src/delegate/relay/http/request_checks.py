"""Checks every request before routing: host, origin, failed authentications of its address, and body size."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delegate.errors import DelegateError, MalformedBody, PayloadTooLarge, Unauthenticated
from delegate.relay.http.exposure import Exposure
from delegate.relay.http.rate_limit import RateLimits, check_limit, record_failure
from delegate.relay.problems import problem_response
from delegate.wire.basics import BODY_MAX, RECORD_BODY_MAX

Headers = dict[str, list[str]]


class Guard:
    def __init__(self, app: ASGIApp, exposure: Exposure, limits: RateLimits) -> None:
        self.app = app
        self._exposure, self._limits = exposure, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(6)
        scope.setdefault("state", {})["request_id"] = request_id
        limit = RECORD_BODY_MAX if scope["path"].endswith("/record") else BODY_MAX
        counter = self._limits.counter_of(scope["path"])
        try:
            headers = collect_headers(scope["headers"])
            self._exposure.check(scope, headers)
            if counter:  # most paths that need no token have none
                check_limit(counter, self._exposure.caller(scope, headers), time.monotonic())
            check_length(headers, limit)
        except DelegateError as error:
            await problem_response(error, request_id)(scope, receive, send)
            return

        async def send_counted(message: Message) -> None:
            """Count every refused token, whichever endpoint refused it."""
            if counter is not None and message.get("status") == Unauthenticated.status:
                record_failure(counter, self._exposure.caller(scope, headers), time.monotonic())
            await send(message)

        await self.app(scope, limit_body(receive, limit), send_counted)


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


def check_length(headers: Headers, limit: int) -> None:
    for length in headers.get("content-length", []):
        if not (length.isascii() and length.isdecimal()):
            raise MalformedBody(why="its Content-Length is not a number")
        if len(length) > len(str(limit)) or int(length) > limit:
            raise PayloadTooLarge(limit=limit)
