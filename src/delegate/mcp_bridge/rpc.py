"""Parses and checks the client's JSON-RPC messages, and builds error responses."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
UNREACHABLE = -32000  # clients know this code as a closed connection
CALL, NOTIFICATION, RESPONSE = "call", "note", "reply"
INITIALIZE, INITIALIZED, CANCELLED = "initialize", "notifications/initialized", "notifications/cancelled"
PROGRESS = "notifications/progress"
# A message that contains its protocol version does not belong to a session (protocols since 2026).
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
REQUEST_KEY = "delegate/requestKey"
NAME_PARAMETERS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{0,200}")'
ID_AT_THE_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + ID + rb"\s*,")
ID_AT_THE_END = re.compile(rb"[,{]\s*" + ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Refusal(Exception):
    """A line that is not forwarded, and the error response to it."""

    def __init__(self, code: int, message: str, id: str | int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.id = code, message, id

    @property
    def line(self) -> bytes:
        return error_line(self.id, self.code, self.message)


class ClientMessage:
    """A message from the client to the relay."""

    __slots__ = ("body", "cancels", "id", "kind", "method", "name", "version")

    def __init__(self, kind: str, value: dict[str, Any], body: bytes) -> None:  # Any: JSON
        params = value.get("params")
        given = params if isinstance(params, dict) else {}
        meta = given.get("_meta")
        name = given.get(NAME_PARAMETERS.get(value.get("method", ""), ""))
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        self.kind, self.body = kind, body
        self.id: str | int = value.get("id", "")
        self.method: str = value.get("method", "")
        self.name = name if isinstance(name, str) else None
        self.version = version if isinstance(version, str) else None
        cancelled = given.get("requestId") if self.method == CANCELLED else None
        self.cancels: str | int | None = cancelled if is_id(cancelled) else None


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def parse_line(line: bytes, new_key: Callable[[], str]) -> ClientMessage:
    """Parse a line of the client. A tool call gets a key, so that resending it has no second effect."""
    try:
        value = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise Refusal(PARSE_ERROR, f"this line is not JSON ({error}); send one JSON-RPC message per line") from None
    kind = _classify(value)
    keyed = kind == CALL and value["method"] == "tools/call" and _add_key(value, new_key)
    return ClientMessage(kind, value, dump(value) if keyed else line)


def _classify(value: Any) -> str:
    if isinstance(value, list):
        raise Refusal(INVALID_REQUEST, "batches are not supported; send one JSON-RPC message per line")
    if not isinstance(value, dict):
        raise Refusal(INVALID_REQUEST, "a message must be a JSON object")
    known = value.get("id") if is_id(value.get("id")) else None
    if value.get("jsonrpc") != "2.0":
        raise Refusal(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', known)
    if "id" in value and known is None:
        raise Refusal(INVALID_REQUEST, "the id must be a string or an integer")
    if "method" not in value:
        if known is None or not ("result" in value or "error" in value):
            raise Refusal(INVALID_REQUEST, "this is not a request, a notification or a response", known)
        return RESPONSE
    method = value["method"]
    if not isinstance(method, str) or not method:
        raise Refusal(INVALID_REQUEST, "the method must be a non-empty string", known)
    if known is None and not method.startswith("notifications/"):
        raise Refusal(INVALID_REQUEST, f"{method[:80]} is a request and needs an id")
    return NOTIFICATION if known is None else CALL


def is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _add_key(value: dict[str, Any], new_key: Callable[[], str]) -> bool:
    params = value.get("params")
    if not isinstance(params, dict):
        return False
    meta = params.get("_meta", {})
    if not isinstance(meta, dict) or REQUEST_KEY in meta:
        return False
    params["_meta"] = {**meta, REQUEST_KEY: new_key()}
    return True


def dump(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate, which needs an escape
        return json.dumps(value, separators=(",", ":")).encode()


def find_id(start: bytes, end: bytes) -> str | int | None:
    """Find the id of an oversized message in its first or last bytes."""
    found = ID_AT_THE_START.match(start) or ID_AT_THE_END.search(end)
    known: str | int | None = json.loads(found[1].decode("utf-8", "replace")) if found else None
    return known


def parse_message(text: bytes) -> dict[str, Any] | None:
    """Parse a message of the relay; None if it is not JSON-RPC."""
    try:
        value = DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("jsonrpc") == "2.0" else None


def is_response(value: dict[str, Any]) -> bool:
    return "method" not in value and ("result" in value or "error" in value)


def error_line(id: str | int | None, code: int, message: str, data: dict[str, str] | None = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data:
        error["data"] = data
    return dump({"jsonrpc": "2.0", "id": id, "error": error})
