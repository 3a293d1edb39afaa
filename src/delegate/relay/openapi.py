"""Builds the OpenAPI document: FastAPI's own, plus request bodies, security and error types."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from delegate import __version__
from delegate.relay.problems import MEDIA_TYPE
from delegate.relay.requests import JsonBody
from delegate.wire.basics import Wire

SCHEMA = "#/components/schemas/{model}"
Document = dict[str, Any]  # Any: a JSON document


def describe(app: FastAPI, routes: list[APIRoute]) -> Document:
    document = get_openapi(title=app.title, version=__version__, routes=app.routes)
    names = {(route.path_format, method.lower()): route.name for route in routes for method in route.methods or ()}
    bodies = {(route.path_format, method.lower()): body for route in routes for method, body in _bodies(route)}
    _, definitions = models_json_schema([(model, "validation") for model in bodies.values()], ref_template=SCHEMA)
    document["components"]["schemas"] |= definitions["$defs"]
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = names[path, method]  # without the path, which FastAPI appends
            _complete(operation, bodies.get((path, method)))
    return document


def _bodies(route: APIRoute) -> list[tuple[str, type[Wire]]]:
    models = [part.call.model for part in route.dependant.dependencies if isinstance(part.call, JsonBody)]
    return [(method, model) for method in route.methods or () for model in models]


def _complete(operation: Document, body: type[Wire] | None) -> None:
    if body is not None:
        schema = {"$ref": SCHEMA.format(model=body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            response["content"] = {MEDIA_TYPE: response["content"].pop("application/json")}
