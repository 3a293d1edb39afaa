"""Every refusal as application/problem+json: which field, why, and what to do."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from delegate.errors import DelegateError, InvalidField, MalformedBody, NoSuchRoute, Refused, shown
from delegate.wire import Problem

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class Defect(DelegateError):
    """something went wrong in the relay; its log has the details under {request_id}
    please report it"""

    code, status, exit_code = "internal", 500, 70


def problem(error: DelegateError, request_id: str) -> Response:
    body = Problem(
        type=error.code,
        title=error.code.replace("_", " "),
        detail=error.message,
        status=error.status,
        field=error.field,
        hint=error.hint or None,
        request_id=request_id,
        retry_after=error.retry_after,
    )
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return Response(body.model_dump_json(exclude_none=True), error.status, headers, MEDIA_TYPE)


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
        return problem(first_fault(error), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        return problem(routing_fault(request, error), request.state.request_id)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        log.error("request failed", exc_info=error, extra={"path": request.url.path, "request_id": request_id})
        return problem(Defect(request_id=request_id), request_id)


class MethodRefused(Refused):
    """{method} is not possible here"""

    code, status = "method_not_allowed", 405


def routing_fault(request: Request, error: HTTPException) -> DelegateError:
    if error.status_code == 405:
        return MethodRefused(method=request.method)
    if error.status_code == 404:
        return NoSuchRoute(method=request.method, path=request.url.path)
    return MalformedBody(why=error.detail)


def first_fault(error: RequestValidationError) -> DelegateError:
    fault = error.errors()[0]
    place = [str(part) for part in fault["loc"] if part not in ("body", "query", "path")]
    if fault["type"] == "json_invalid":
        return MalformedBody(why=fault.get("ctx", {}).get("error", "it cannot be parsed"))
    return InvalidField(field=".".join(place) or "body", why=shown(fault["msg"]).removeprefix("Value error, "))
