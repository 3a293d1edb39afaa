"""Compares JSON with the types of Linear's published schema."""

from __future__ import annotations

from typing import Any

from graphql import (
    GraphQLEnumType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLUnionType,
)
from tests.fakes.linear_deliveries import SCHEMA_PATH
from tests.fakes.linear_operations import load_schema

SAMPLES = SCHEMA_PATH.parent / "samples"
SCALARS: dict[str, Any] = {
    "String": str,
    "Float": (int, float),
    "Int": int,
    "Boolean": bool,
    "ID": str,
    "DateTime": str,
}
ENVELOPES = {
    "AgentSessionEvent": "AgentSessionEventWebhookPayload",
    "OAuthApp": "OAuthAppWebhookPayload",
    "AppUserNotification": "AppUserNotificationWebhookPayload",
}


def misfits(value: Any, kind: Any, where: str) -> list[str]:
    """Why the JSON value does not fit the GraphQL type; a union fits when one of its members does."""
    if isinstance(kind, GraphQLNonNull):
        return [f"{where} is null"] if value is None else misfits(value, kind.of_type, where)
    if value is None:
        return []
    if isinstance(kind, GraphQLList):
        items = value if isinstance(value, list) else []
        found = [misfit for item in items for misfit in misfits(item, kind.of_type, f"{where}[]")]
        return found if isinstance(value, list) else [f"{where} is not a list"]
    if isinstance(kind, GraphQLUnionType):
        tried = [misfits(value, member, where) for member in kind.types]
        return [] if [] in tried else [f"{where} fits no member of {kind.name}: {tried}"]
    if isinstance(kind, GraphQLObjectType):
        return _object_misfits(value, kind, where)
    is_fit = value in kind.values if isinstance(kind, GraphQLEnumType) else _is_scalar(value, kind)
    return [] if is_fit else [f"{where} is {value!r}"]


def _is_scalar(value: Any, kind: GraphQLScalarType) -> bool:
    return isinstance(value, SCALARS.get(kind.name, object))


def _object_misfits(value: Any, kind: GraphQLObjectType, where: str) -> list[str]:
    found = [f"{where}.{name} is not a field of {kind.name}" for name in value if name not in kind.fields]
    for name, spec in kind.fields.items():
        if name in value:
            found += misfits(value[name], spec.type, f"{where}.{name}")
        elif isinstance(spec.type, GraphQLNonNull):
            found.append(f"{where}.{name} is missing")
    return found


def payload_misfits(body: dict[str, Any]) -> list[str]:
    types = load_schema(SCHEMA_PATH).type_map
    envelope = ENVELOPES.get(body["type"], "EntityWebhookPayload")
    found = misfits(body, types[envelope], body["type"])
    if envelope == "EntityWebhookPayload":
        found += misfits(body["data"], types[f"{body['type']}WebhookPayload"], f"{body['type']}.data")
    return found
