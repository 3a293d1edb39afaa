"""The tools of the MCP server as docs/mcp.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from delegate.relay.mcp.schemas import schema_of
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER, Tool

Schema = dict[str, Any]


def mcp_tools() -> str:
    return "\n".join(line for tool in [*FOR_OWNER.values(), *FOR_AGENTS.values()] for line in section(tool))


def section(tool: Tool[Any]) -> Iterator[str]:
    schema, answer = schema_of(tool.parameters), schema_of(tool.answer)
    yield f"### {tool.name}\n"
    yield f"{tool.description}\n"
    yield from rows(schema, schema.get("$defs", {}))
    if steps := schema.get("$defs", {}).get("Step"):
        extra = ", ".join(f"`{name}`" for name in steps["properties"] if name not in shared_names())
        yield f"\nA step takes what DelegateTask takes, and {extra}: {steps['properties']['delay']['description']}"
    yield f"\nAnswers {', '.join(f'`{name}`' for name in answer['properties'])}.\n"


def shared_names() -> set[str]:
    return set(schema_of(FOR_OWNER["DelegateTask"].parameters)["properties"])


def rows(schema: Schema, definitions: Schema) -> Iterator[str]:
    yield "| parameter | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, given in schema["properties"].items():
        value = resolved(given, definitions)
        default = "required" if name in schema.get("required", []) else shown(given.get("default"))
        meaning = given["description"].replace("<", "&lt;")
        yield f"| `{name}` | {kind(value, definitions)} | {default} | {meaning} |"


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """Without the null that stands for what was left out, and without references."""
    if "$ref" in schema:
        return dict(definitions[schema["$ref"].rpartition("/")[2]])
    return next((resolved(part, definitions) for part in schema.get("anyOf", []) if part != {"type": "null"}), schema)


def kind(schema: Schema, definitions: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema["type"]:
        case "array":
            is_text = resolved(schema["items"], definitions)["type"] == "string"
            return f"list of {schema.get('minItems', 0)} to {schema['maxItems']}{' texts' if is_text else ''}"
        case "string":
            return text(schema)
        case "integer":
            return f"{schema['minimum']:,} to {schema['maximum']:,}"
        case "number":
            return f"above {schema['exclusiveMinimum']:g}, up to {schema['maximum']:,.0f}"
    return str(schema["type"])


def text(schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return "moment"
    return f"text, up to {schema['maxLength']:,} characters" if "maxLength" in schema else "text"


def shown(value: object) -> str:
    match value:
        case None | "" | []:
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
    return f"`{value}`"
