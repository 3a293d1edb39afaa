"""Every refusal as application/problem+json: which field, why, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from delegate.errors import (
    DelegateError,
    InvalidField,
    MalformedBody,
    NoSuchRoute,
    Refused,
    Unauthenticated,
    shown,
)
from delegate.wire.basics import Problem

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
Found = Mapping[str, Any]  # Any: a fault as pydantic tells it, with its numbers under `ctx`
# What pydantic calls by these names; its own words are for who wrote the model.
SAID = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_short": "is empty; give it a value, or leave it out",
    "string_too_long": "has more than {max_length:,} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "too_short": "needs at least {min_length} entries, not {actual_length}",
    "too_long": "has more than {max_length} entries",
}
NO_CURSOR = "is no cursor; send `next` of the page before, as it came"


class Defect(DelegateError):
    """something went wrong in the relay; its log has the details under {request_id}
    please report it"""

    code, status, exit_code = "internal", 500, 70


class MethodRefused(Refused):
    """{method} is not possible here"""

    code, status = "method_not_allowed", 405


def problem(error: DelegateError, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    body = Problem(
        type=error.code,
        title=error.code.replace("_", " "),
        detail=error.message,
        status=error.status,
        field=None if error.field is None else shown(error.field),
        hint=error.hint or None,
        request_id=request_id,
        retry_after=error.retry_after,
    )
    sent = dict(headers or {})
    if error.retry_after is not None:
        sent["retry-after"] = str(max(1, round(error.retry_after)))
    if isinstance(error, Unauthenticated):
        sent["www-authenticate"] = "Bearer"
    return Response(body.model_dump_json(exclude_none=True), error.status, sent, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    @app.exception_handler(DelegateError)
    async def known(request: Request, error: DelegateError) -> Response:
        if error.status >= 500:
            log.warning(
                "request not served", extra={"path": request.url.path, "code": error.code, "why": error.message}
            )
        return problem(error, request.state.request_id)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return problem(fault(error.errors()[0]), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        headers = {"allow": ", ".join(sorted(methods_here(request)))} if error.status_code == 405 else None
        return problem(routing_fault(request, error), request.state.request_id, headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        log.error("request failed", exc_info=error, extra={"path": request.url.path, "request_id": request_id})
        return problem(Defect(request_id=request_id), request_id)


def methods_here(request: Request) -> set[str]:
    """Of all routes with this address; the one that was asked knows only its own."""
    here = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.path_regex.match(request.scope["path"])
    ]
    return {method for route in here for method in route.methods or ()}


def routing_fault(request: Request, error: HTTPException) -> DelegateError:
    if error.status_code == 405:
        return MethodRefused(method=request.method)
    if error.status_code == 404:
        return NoSuchRoute(method=request.method, path=request.url.path)
    return MalformedBody(why=error.detail)


def fault(found: Found) -> DelegateError:
    """What pydantic found wrong, in our words."""
    if found["type"] == "json_invalid":
        return MalformedBody(why=found["msg"].removeprefix("Invalid JSON: "))
    field = ".".join(str(part) for part in found["loc"] if part not in ("body", "query", "path"))
    return InvalidField(field=field or "body", why=said(found))


def said(found: Found) -> str:
    if found["type"] == "string_pattern_mismatch" and "cursor" in found["loc"]:
        return NO_CURSOR
    if words := SAID.get(found["type"]):
        return words.format_map(found.get("ctx", {}))
    return str(found["msg"]).removeprefix("Value error, ")
