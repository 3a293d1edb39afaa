"""Turns errors into application/problem+json responses: which field, why, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException
from starlette.routing import Route

from delegate.errors import (
    DelegateError,
    InvalidField,
    MalformedBody,
    MemoryFull,
    NoSuchRoute,
    Refused,
    Unauthenticated,
    excerpt,
)
from delegate.wire.basics import PATTERN_MESSAGES, Problem, Wire

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
# The error responses of every endpoint, for the OpenAPI document.
PROBLEMS: dict[int | str, dict[str, Any]] = {  # Any: FastAPI's type
    code: {"model": Problem} for code in (400, 401, 403, 404, 405, 409, 413, 415, 422, 503, 507)
}
ErrorDetails = Mapping[str, Any]  # Any: an error of pydantic, with its limits under `ctx`
Location = tuple[str | int, ...]  # field names and list indexes
# Texts by pydantic's error type; pydantic's own are written for the author of the model.
ERROR_TEXTS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string_too_short": "is empty; give it a value, or leave it out",
    "string_too_long": "has more than {max_length:,} characters",
    "string_pattern_mismatch": "does not match {pattern}",
    "too_short": "needs at least {min_length} entries, not {actual_length}",
    "too_long": "has more than {max_length} entries",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "int_parsing": "must be a whole number",
}
INVALID_CURSOR = "is not a valid cursor; send `next` of the previous page unchanged"


class Defect(DelegateError):
    """internal error in the relay; its log has the details under {request_id}
    please report this as a bug"""

    code, status, exit_code = "internal", 500, 70


class MethodRefused(Refused):
    """{method} is not allowed for this path"""

    code, status = "method_not_allowed", 405


def problem_response(error: DelegateError, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    body = Problem(
        type=error.code,
        title=error.code.replace("_", " "),
        detail=error.message,
        status=error.status,
        field=None if error.field is None else excerpt(error.field),
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
    async def handle_known(request: Request, error: DelegateError) -> Response:
        if error.status >= 500:
            log.warning(
                "request not served", extra={"path": request.url.path, "code": error.code, "why": error.message}
            )
        return problem_response(error, request.state.request_id)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid(request: Request, error: RequestValidationError) -> Response:
        return problem_response(fault(error.errors()[0]), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def handle_routing(request: Request, error: HTTPException) -> Response:
        headers = {"allow": ", ".join(sorted(allowed_methods(request)))} if error.status_code == 405 else None
        return problem_response(routing_fault(request, error), request.state.request_id, headers)

    @app.exception_handler(MemoryError)
    async def handle_full_memory(request: Request, _error: MemoryError) -> Response:
        return await handle_known(request, MemoryFull(retry_after=1.0))

    @app.exception_handler(Exception)
    async def handle_unexpected(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        log.error("request failed", exc_info=error, extra={"path": request.url.path, "request_id": request_id})
        return problem_response(Defect(request_id=request_id), request_id)


def allowed_methods(request: Request) -> set[str]:
    """Return the methods of all routes with this path; the matched route knows only its own."""
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


def fault(found: ErrorDetails, model: type[Wire] | None = None) -> DelegateError:
    """Convert an error of pydantic. `model` is the model it validated."""
    if found["type"] == "json_invalid":
        return MalformedBody(why=found["msg"].removeprefix("Invalid JSON: "))
    field = ".".join(str(part) for part in found["loc"] if part not in ("body", "query", "path"))
    if found["type"] == "string_too_short" and model is not None and is_required(model, found["loc"]):
        return InvalidField(field=field, why="is empty; give it a value")
    return InvalidField(field=field or "body", why=describe_error(found))


def is_required(model: type[Wire], location: Location) -> bool:
    holder = model_at(model, location[:-1])
    field = None if holder is None else _fields(holder).get(location[-1])
    return field is not None and field.is_required()


def model_at(model: type[Wire], location: Location) -> type[Wire] | None:
    """Return the model at this location; None if there is none or more than one."""
    for part in location:
        if isinstance(part, int):  # a list index: all entries have the same model
            continue
        field = _fields(model).get(part)
        found = [] if field is None else list(_models_in(field.annotation))
        if len(found) != 1:
            return None
        model = found[0]
    return model


def _fields(model: type[Wire]) -> dict[str | int, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[Wire]]:  # Any: any type annotation
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def describe_error(found: ErrorDetails) -> str:
    if found["type"] == "string_pattern_mismatch" and "cursor" in found["loc"]:
        return INVALID_CURSOR
    if found["type"] == "string_pattern_mismatch" and (text := PATTERN_MESSAGES.get(found["ctx"]["pattern"])):
        return text
    if text := ERROR_TEXTS.get(found["type"]):
        return text.format_map(found.get("ctx", {}))
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
