"""What the SDK has against a message that is none: a page of pydantic's, where a line says it."""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

VALIDATION_MARKER = "validation error"
INVALID_MESSAGE = (
    'this is no message of JSON-RPC 2.0: it needs "jsonrpc": "2.0", a "method" and, to be answered, '
    'an "id" that is a text or a whole number'
)


def shorten_errors(send: Send) -> Send:
    """Holds the head of a refusal until its body has come, because the length stands in the head."""
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
