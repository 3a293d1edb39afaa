"""Just enough GraphQL for the GitHub stand-in: reads executable documents and picks fields out of nested objects.

An object is a dictionary from field names to values, or to functions that get the field's arguments. A field that is
not there is null and noted as unknown, so that a newer `gh` which asks for more still works.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

Json = dict[str, Any]

TOKEN = re.compile(r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\])*"|\.\.\.|[A-Za-z_]\w*|-?\d+(?:\.\d+)?|[{}()\[\]:$!=@|&]|#[^\n]*')
# A fragment on one of these is meant for every object that stands there.
ABSTRACT = frozenset({None, "Node", "Actor", "RepositoryOwner", "IssueOrPullRequest", "RequestedReviewer"})
LITERALS = {"true": True, "false": False, "null": None}


class GraphQLProblem(Exception):
    """Answered as an error of one field, in an answer with status 200."""

    def __init__(self, message: str, kind: str = "UNPROCESSABLE") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    kind: str
    name: str
    fields: list[Json]
    defaults: Json


class Reader:
    """Operations, fragments, aliases, arguments and variables; directives are skipped."""

    def __init__(self, text: str) -> None:
        self._tokens = [token for token in TOKEN.findall(text) if not token.startswith("#")]
        self._at = 0

    def document(self) -> tuple[list[Operation], dict[str, Json]]:
        operations: list[Operation] = []
        fragments: dict[str, Json] = {}
        while self._peek():
            if self._peek() == "fragment":
                self._take()
                name = self._take()
                self._take("on")
                on = self._take()
                self._directives()
                fragments[name] = {"on": on, "fields": self._selection()}
            else:
                operations.append(self._operation())
        return operations, fragments

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, want: str | None = None) -> str:
        token = self._peek()
        if want is not None and token != want:
            raise ValueError(f"GraphQL: {want!r} was expected, not {token!r}")
        self._at += 1
        return token

    def _operation(self) -> Operation:
        if self._peek() == "{":
            return Operation(kind="query", name="", fields=self._selection(), defaults={})
        kind = self._take()
        name = self._take() if self._peek() not in ("{", "(", "@") else ""
        defaults = self._variable_definitions() if self._peek() == "(" else {}
        self._directives()
        return Operation(kind=kind, name=name, fields=self._selection(), defaults=defaults)

    def _variable_definitions(self) -> Json:
        defaults: Json = {}
        self._take("(")
        while self._peek() != ")":
            self._take("$")
            name = self._take()
            self._take(":")
            while self._peek() in ("[", "]", "!") or re.match(r"[A-Za-z_]", self._peek()):
                self._take()
            if self._peek() == "=":
                self._take()
                defaults[name] = self._value()
        self._take(")")
        return defaults

    def _directives(self) -> None:
        while self._peek() == "@":
            self._take()
            self._take()
            if self._peek() == "(":
                self._arguments()

    def _arguments(self) -> Json:
        arguments = {}
        self._take("(")
        while self._peek() != ")":
            name = self._take()
            self._take(":")
            arguments[name] = self._value()
        self._take(")")
        return arguments

    def _value(self) -> Any:
        token = self._take()
        if token == "$":
            return Variable(name=self._take())
        if token == "[":
            items = []
            while self._peek() != "]":
                items.append(self._value())
            self._take("]")
            return items
        if token == "{":
            self._at -= 1
            return self._object()
        if token.startswith('"'):
            return token[3:-3] if token.startswith('"""') else json.loads(token)
        return int(token) if re.fullmatch(r"-?\d+", token) else LITERALS.get(token, token)

    def _object(self) -> Json:
        made = {}
        self._take("{")
        while self._peek() != "}":
            name = self._take()
            self._take(":")
            made[name] = self._value()
        self._take("}")
        return made

    def _selection(self) -> list[Json]:
        fields: list[Json] = []
        self._take("{")
        while self._peek() != "}":
            fields.append(self._spread() if self._peek() == "..." else self._field())
        self._take("}")
        return fields

    def _spread(self) -> Json:
        self._take("...")
        if self._peek() == "on":
            self._take()
            on = self._take()
            self._directives()
            return {"on": on, "fields": self._selection()}
        if self._peek() in ("{", "@"):
            self._directives()
            return {"on": None, "fields": self._selection()}
        name = self._take()
        self._directives()
        return {"spread": name}

    def _field(self) -> Json:
        alias = name = self._take()
        if self._peek() == ":":
            self._take()
            name = self._take()
        arguments = self._arguments() if self._peek() == "(" else {}
        self._directives()
        inner = self._selection() if self._peek() == "{" else None
        return {"name": name, "alias": alias, "arguments": arguments, "fields": inner}


@dataclass(slots=True, kw_only=True)
class Execution:
    """One document answered from the roots given."""

    fragments: dict[str, Json]
    variables: Json
    unknown: set[str]
    errors: list[Json] = field(default_factory=list)

    def select(self, thing: Json, fields: list[Json], path: list[Any]) -> Json:
        out: Json = {}
        for one in fields:
            if "name" in one:
                here = [*path, one["alias"]]
                out[one["alias"]] = self._shape(self._resolve(thing, one, here), one["fields"], here)
                continue
            part = self.fragments[one["spread"]] if "spread" in one else one
            kind = thing.get("__typename")
            if part["on"] in ABSTRACT or kind is None or part["on"] == kind:
                out |= self.select(thing, part["fields"], path)
        return out

    def _resolve(self, thing: Json, one: Json, path: list[Any]) -> Any:
        name = one["name"]
        if name not in thing:
            self.unknown.add(f"{thing.get('__typename', 'Query')}.{name}")
            return None
        value = thing[name]
        try:
            return value(self._bound(one["arguments"])) if callable(value) else value
        except GraphQLProblem as problem:
            self.errors.append({"type": problem.kind, "path": path, "message": str(problem)})
            return None

    def _shape(self, value: Any, fields: list[Json] | None, path: list[Any]) -> Any:
        if isinstance(value, list):
            return [self._shape(one, fields, [*path, index]) for index, one in enumerate(value)]
        if isinstance(value, dict) and fields is not None:
            return self.select(cast("Json", value), fields, path)
        return value

    def _bound(self, node: Any) -> Any:
        if isinstance(node, Variable):
            return self.variables.get(node.name)
        if isinstance(node, dict):
            return {key: self._bound(value) for key, value in cast("Json", node).items()}
        if isinstance(node, list):
            return [self._bound(value) for value in node]
        return node


def execute(request: Json, roots: dict[str, Json], unknown: set[str]) -> Json:
    """Answer `{"query", "variables", "operationName"}`; `roots` has the objects for query and mutation."""
    operations, fragments = Reader(request["query"]).document()
    wanted = request.get("operationName")
    operation = next((one for one in operations if one.name == wanted), operations[0])
    variables = {**operation.defaults, **(request.get("variables") or {})}
    execution = Execution(fragments=fragments, variables=variables, unknown=unknown)
    answer: Json = {"data": execution.select(roots[operation.kind], operation.fields, [])}
    if execution.errors:
        answer["errors"] = execution.errors
    return answer


def connection(items: list[Any], arguments: Json | None = None) -> Json:
    """A page of a list, as GitHub gives it."""
    asked = arguments or {}
    if asked.get("last"):
        start = max(0, len(items) - asked["last"])
        end = len(items)
    else:
        start = int(asked["after"]) if asked.get("after") else 0
        end = min(len(items), start + (asked.get("first") or len(items)))
    return {
        "totalCount": len(items),
        "nodes": items[start:end],
        "edges": [{"node": node, "cursor": str(start + n + 1)} for n, node in enumerate(items[start:end])],
        "pageInfo": {
            "hasNextPage": end < len(items),
            "endCursor": str(end),
            "hasPreviousPage": start > 0,
            "startCursor": str(start),
        },
    }
