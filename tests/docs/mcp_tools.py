"""The tools of the MCP server as docs/mcp.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from delegate.relay.mcp.schemas import schema_of
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER, Tool

Schema = dict[str, Any]


def mcp_tools() -> str:
    lines: list[str] = []
    described: set[str] = set()  # the rows of the tables so far
    for tool in [*FOR_OWNER.values(), *FOR_AGENTS.values()]:
        parameters = rows_of(tool)
        lines += section(tool, parameters, described)
        described |= set(parameters.values())
    return "\n".join(lines)


def section(tool: Tool[Any], parameters: dict[str, str], described: set[str]) -> Iterator[str]:
    yield f"### {tool.name}\n"
    yield f"{tool.description}\n"
    new = [row for row in parameters.values() if row not in described]
    if known := [name for name, row in parameters.items() if row in described]:
        yield f"Takes {listed(known)}{', and:' if new else '.'}{chr(10) if new else ''}"
    if new:
        yield from ("| parameter | value | default | meaning |", "| --- | --- | --- | --- |", *new)
    if steps := schema_of(tool.parameters).get("$defs", {}).get("Step"):
        extra = ", ".join(f"`{name}`" for name in steps["properties"] if name not in delegate_task())
        delay = steps["properties"]["delay"]["description"]
        yield f"\nA step takes the parameters of DelegateTask, and {extra}: {delay}"
    yield f"\nReturns {', '.join(f'`{name}`' for name in schema_of(tool.answer)['properties'])}.\n"


def listed(names: list[str]) -> str:
    """Parameters that an earlier tool has with the same row."""
    if set(names) == set(delegate_task()):
        return "the parameters of [DelegateTask](#delegatetask)"
    return f"{' and '.join(f'`{name}`' for name in names)}, as above"


def delegate_task() -> dict[str, str]:
    return rows_of(FOR_OWNER["DelegateTask"])


def rows_of(tool: Tool[Any]) -> dict[str, str]:
    """Each parameter's row in the table."""
    schema = schema_of(tool.parameters)
    definitions, required = schema.get("$defs", {}), schema.get("required", [])
    return {name: row(name, given, definitions, name in required) for name, given in schema["properties"].items()}


def row(name: str, given: Schema, definitions: Schema, is_required: bool) -> str:
    value = resolved(given, definitions)
    default = "required" if is_required else shown(given.get("default"))
    meaning = given["description"].replace("<", "&lt;")
    return f"| `{name}` | {kind(value, definitions)} | {default} | {meaning} |"


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
        return "time"
    return f"text, up to {schema['maxLength']:,} characters" if "maxLength" in schema else "text"


def shown(value: object) -> str:
    match value:
        case None | "" | []:
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
    return f"`{value}`"
