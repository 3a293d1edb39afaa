"""Shortens the SDK's validation error for a malformed JSON-RPC message."""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

VALIDATION_MARKER = "validation error"
INVALID_MESSAGE = (
    'this is not a JSON-RPC 2.0 message: it needs "jsonrpc": "2.0", a "method" and, for a request, '
    'an "id" that is a string or an integer'
)


def shorten_errors(send: Send) -> Send:
    """Delay the head of an error response until its body is known, because the head contains the length."""
    held: Message | None = None

    async def send_shortened(message: Message) -> None:
        nonlocal held
        if message["type"] == "http.response.start" and message["status"] == 400:
            held = message
            return
        if held is not None:
            body = shorten_error(message.get("body", b""))
            MutableHeaders(scope=held)["content-length"] = str(len(body))
            await send(held)
            held, message = None, {**message, "body": body}
        await send(message)

    return send_shortened


def shorten_error(body: bytes) -> bytes:
    try:
        answer = json.loads(body)
        error_message = answer["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body
    if VALIDATION_MARKER not in error_message:
        return body
    return json.dumps({**answer, "error": {**answer["error"], "message": INVALID_MESSAGE}}).encode()
