"""Every refusal as application/problem+json: which field, why, and what to do."""

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
    NoSuchRoute,
    Refused,
    Unauthenticated,
    excerpt,
)
from delegate.wire.basics import PATTERN_MESSAGES, Problem, Wire

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
# What every door may answer besides its own, for the API's document.
PROBLEMS: dict[int | str, dict[str, Any]] = {  # Any: as FastAPI takes them
    code: {"model": Problem} for code in (400, 401, 403, 404, 405, 409, 413, 415, 422, 503, 507)
}
ErrorDetails = Mapping[str, Any]  # Any: a fault as pydantic tells it, with its numbers under `ctx`
Location = tuple[str | int, ...]  # names of fields, and numbers of entries
# What pydantic calls by these names; its own words are for who wrote the model.
ERROR_TEXTS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_short": "is empty; give it a value, or leave it out",
    "string_too_long": "has more than {max_length:,} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "too_short": "needs at least {min_length} entries, not {actual_length}",
    "too_long": "has more than {max_length} entries",
}
INVALID_CURSOR = "is no cursor; send `next` of the page before, as it came"


class Defect(DelegateError):
    """something went wrong in the relay; its log has the details under {request_id}
    please report it"""

    code, status, exit_code = "internal", 500, 70


class MethodRefused(Refused):
    """{method} is not possible here"""

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

    @app.exception_handler(Exception)
    async def handle_unexpected(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        log.error("request failed", exc_info=error, extra={"path": request.url.path, "request_id": request_id})
        return problem_response(Defect(request_id=request_id), request_id)


def allowed_methods(request: Request) -> set[str]:
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


def fault(found: ErrorDetails, model: type[Wire] | None = None) -> DelegateError:
    """What pydantic found wrong, in our words. `model` is what it looked for."""
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
    """The model of what stands at this place, if there is one and no other."""
    for part in location:
        if isinstance(part, int):  # an entry of a list: the model is that of all its entries
            continue
        field = _fields(model).get(part)
        found = [] if field is None else list(_models_in(field.annotation))
        if len(found) != 1:
            return None
        model = found[0]
    return model


def _fields(model: type[Wire]) -> dict[str | int, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[Wire]]:  # Any: whatever may be written as a type
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
    return str(found["msg"]).removeprefix("Value error, ")
