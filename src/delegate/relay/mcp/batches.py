"""Checks the messages of a POST to /mcp before the SDK gets them, and splits batches, which the SDK does not accept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from delegate.errors import MalformedBody, excerpt
from delegate.relay.requests import find_repeated_key

INVALID_REQUEST = -32600
BATCH_VERSION = "2025-03-26"  # the only version with batches; its clients send no version header
BATCH_MAX = 100  # messages
BAD_ID = 'the "id" of a request must be a string or an integer'
NO_BATCH = f"a batch of messages is accepted only in a session of the version {BATCH_VERSION}"
Forward = Callable[[Receive, Send], Awaitable[None]]  # lets the SDK handle one message
JsonValue = Any  # Any: a JSON value


def error_of(why: str) -> dict[str, JsonValue]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}}


async def handle_messages(scope: Scope, receive: Receive, send: Send, forward: Forward) -> None:
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect as error:
        raise MalformedBody(why="it ended too early") from error
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):  # the SDK reports it
        await forward(_replay(body, receive), send)
        return
    problem = find_problem(message) or _find_key_problem(body)
    if isinstance(message, list) and problem is None:
        problem = _find_batch_problem(scope, message)
    if problem is not None:
        await JSONResponse(error_of(problem), 400)(scope, receive, send)
    elif isinstance(message, list):
        await (await _answer_batch(message, receive, forward))(scope, receive, send)
    else:
        await forward(_replay(body, receive), send)


def find_problem(message: JsonValue) -> str | None:
    """Pure: an invalid id, which makes the SDK take a request for a notification and never answer it."""
    if not isinstance(message, dict) or "method" not in message or "id" not in message:
        return None
    is_valid = isinstance(message["id"], str | int) and not isinstance(message["id"], bool)
    return None if is_valid else BAD_ID


def _find_key_problem(body: bytes) -> str | None:
    key = find_repeated_key(body)
    return None if key is None else f"an object has the key {excerpt(key)} more than once"


def _find_batch_problem(scope: Scope, batch: list[JsonValue]) -> str | None:
    headers = Request(scope).headers
    if "mcp-session-id" not in headers or headers.get("mcp-protocol-version", BATCH_VERSION) != BATCH_VERSION:
        return NO_BATCH
    return None if 1 <= len(batch) <= BATCH_MAX else f"a batch has 1 to {BATCH_MAX} messages"


async def _answer_batch(batch: list[JsonValue], receive: Receive, forward: Forward) -> Response:
    answers: list[JsonValue] = []
    for message in batch:
        if problem := find_problem(message):
            answers.append(error_of(problem))
            continue
        sent: list[Message] = []

        async def keep(part: Message, sent: list[Message] = sent) -> None:
            sent.append(part)

        await forward(_replay(json.dumps(message).encode(), receive), keep)
        answers += _answers_in(b"".join(part.get("body", b"") for part in sent))
    return JSONResponse(answers) if answers else Response(status_code=202)


def _answers_in(body: bytes) -> list[JsonValue]:
    """Pure: the responses in a JSON body or an event stream; its other messages report progress."""
    lines = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith((b"data:", b"{"))]
    messages = [json.loads(line) for line in lines if line.strip()]
    return [message for message in messages if "method" not in message]


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the SDK the body that was read; then it waits for the client to disconnect."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again
