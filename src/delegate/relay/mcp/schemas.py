"""Builds the JSON schema of a tool from the model that validates its arguments."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from delegate.wire.basics import Wire

Schema = dict[str, Any]  # Any: a JSON document


class UntitledJsonSchema(GenerateJsonSchema):
    """Omits titles: they repeat the names, and cost the agent tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's signature; any kind of schema
        return False


def schema_of(model: type[Wire]) -> Schema:
    schema = model.model_json_schema(schema_generator=UntitledJsonSchema)
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
    schema.pop("description", None)  # the tool has it
    return schema
