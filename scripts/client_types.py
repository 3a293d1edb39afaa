"""Writes src/delegate/client/responses.py from the models in wire/; `make client-types` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from delegate.wire import fleet, linear, people, runners, schedules, shared_models, tasks
from delegate.wire.basics import Wire

TARGET = Path(__file__).resolve().parent.parent / "src" / "delegate" / "client" / "responses.py"
# The responses that the client reads; the models they contain are found from them.
RESPONSES: list[type[Wire]] = [
    shared_models.ChangeView,
    people.AccessTokensView,
    people.AuditView,
    people.DisabledPersonView,
    people.MeView,
    people.NewPersonView,
    people.PeopleView,
    tasks.BatchResponse,
    tasks.GraphView,
    tasks.OutputView,
    tasks.PromptView,
    tasks.PurgedTaskView,
    tasks.RelayView,
    tasks.TaskDetail,
    tasks.TaskPage,
    fleet.RunnerListView,
    runners.PairingTokenResponse,
    schedules.CancelledSchedule,
    schedules.PipelineView,
    schedules.ScheduleDetail,
    schedules.SchedulePage,
    linear.LinearLabelsView,
    linear.LinearView,
]
NOT_SENT_BY_OLDER_RELAYS = {("RelayView", "settings")}
HEADER = '''# Generated from wire/ by `make client-types`. Do not edit.
"""The relay's responses as plain dictionaries, with the same names as in wire/.

Only for the type checker: importing pydantic would take longer than all of `delegate status`.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict
'''
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
Schema = dict[str, Any]  # Any: a JSON schema


def render() -> str:
    """Return the module's text."""
    _, document = models_json_schema([(model, "serialization") for model in RESPONSES])
    definitions: dict[str, Schema] = document["$defs"]
    classes = [
        render_class(name, schema, definitions) for name, schema in definitions.items() if schema["type"] == "object"
    ]
    return "\n\n".join([HEADER, *classes])


def render_class(model: str, schema: Schema, definitions: dict[str, Schema]) -> str:
    return "".join([f"class {class_name(model)}(TypedDict):\n", *render_fields(model, schema, definitions)])


def render_fields(model: str, schema: Schema, definitions: dict[str, Schema]) -> Iterator[str]:
    """Yield each field's line. The relay sends every field, also one that has its default."""
    for name, value in schema["properties"].items():
        rendered = render_type(value, definitions)
        if (model, name) in NOT_SENT_BY_OLDER_RELAYS:
            rendered = f"NotRequired[{rendered}]"
        yield f"    {name}: {rendered}\n"


def render_type(schema: Schema, definitions: dict[str, Schema]) -> str:
    match schema:
        case {"$ref": reference}:
            model = reference.rpartition("/")[2]
            is_object = definitions[model]["type"] == "object"
            return class_name(model) if is_object else render_type(definitions[model], definitions)
        case {"anyOf": choices}:
            return " | ".join(render_type(choice, definitions) for choice in choices)
        case {"type": "array", "items": items}:
            return f"list[{render_type(items, definitions)}]"
        case {"type": "object", "additionalProperties": True}:
            return "dict[str, Any]"
        case {"type": "object", "additionalProperties": values}:
            return f"dict[str, {render_type(values, definitions)}]"
        case _:
            return SCALARS[schema["type"]]


def class_name(model: str) -> str:
    """TaskView and BatchResponse are TaskData and BatchData here; TaskPage is the same."""
    for suffix in ("View", "Response"):
        if model.endswith(suffix):
            return f"{model.removesuffix(suffix)}Data"
    return model


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
