"""One tool call: its caller, the caller's location, and its arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from delegate.errors import DelegateError, InvalidField
from delegate.relay.auth import Caller
from delegate.relay.problems import ErrorDetails, describe_error, fault, model_at
from delegate.relay.requests import Relay
from delegate.wire.basics import Directory, Name, Wire
from delegate.wire.tasks import Agent

# Headers: the client's directory and machine, and the default agent from its settings.
DIRECTORY, MACHINE, DEFAULT_AGENT = "delegate-directory", "delegate-machine", "delegate-default-agent"
REQUEST_KEY = "delegate/requestKey"  # in _meta: a call that is sent again carries the same key
CONNECT_ADVICE = "connect through `delegate mcp start`, or send the headers delegate-directory and delegate-machine"
P = TypeVar("P", bound=Wire)
TaskLocation = dict[str, str]
directories = TypeAdapter[str](Directory)
agents = TypeAdapter[str](Agent)
names = TypeAdapter[str](Name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    relay: Relay
    caller: Caller
    headers: Mapping[str, str]
    request_key: str | None = None
    progress: Callable[[int, str], Awaitable[None]] | None = None  # set if the client asked for progress

    @property
    def machine(self) -> str | None:
        return header(self.headers, MACHINE, names)

    @property
    def default_agent(self) -> str | None:
        return header(self.headers, DEFAULT_AGENT, agents)

    def locate(self, directory: str | None, repository: str | None) -> TaskLocation:
        """Resolve where a task runs: in a directory on the client's machine, or in a repository that git can fetch."""
        if repository is not None:
            return self._locate_repository(directory, repository)
        machine = self.machine
        if directory is None:
            directory = header(self.headers, DIRECTORY, directories)
            if directory is None or machine is None:
                unknown = f"has not sent its location: {CONNECT_ADVICE}"
                gone = "has no current directory, or it no longer exists: give an absolute path"
                why = f"is missing, and the client {unknown if machine is None else gone}, or give a repository"
                raise InvalidField(field="workingDirectory", why=why)
        elif machine is None:
            raise InvalidField(
                field="workingDirectory", why=f"needs a machine, and the client has not sent one: {CONNECT_ADVICE}"
            )
        return {"working_directory": directory, "machine": machine}

    def _locate_repository(self, directory: str | None, repository: str) -> TaskLocation:
        where = {"repository": repository}
        if directory is not None:
            where["working_directory"] = directory  # intake rejects the combination
        if (machine := self.machine) is not None and repository.startswith("/"):
            where["machine"] = machine
        return where


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A tool's result: structured for programs, and as short text."""

    answer: Wire
    text: str


def header(headers: Mapping[str, str], name: str, kind: TypeAdapter[str]) -> str | None:
    """Decode and validate a percent-encoded header."""
    given = headers.get(name)
    if given is None:
        return None
    try:
        return kind.validate_python(unquote_to_bytes(given.encode("latin-1")).decode())
    except ValidationError as error:
        raise InvalidField(field=name, why=describe_error(error.errors()[0])) from None
    except UnicodeDecodeError:
        raise InvalidField(field=name, why="is not UTF-8; send it percent-encoded") from None


def request_key(meta: Mapping[str, Any] | None) -> str | None:
    given = (meta or {}).get(REQUEST_KEY)
    if given is None:
        return None
    try:
        return names.validate_python(given, strict=True)
    except ValidationError as error:
        raise InvalidField(field=f"_meta.{REQUEST_KEY}", why=describe_error(error.errors()[0])) from None


def parse_arguments(model: type[P], arguments: Mapping[str, Any]) -> P:
    """Validate as strictly as an HTTP body: JSON types are not coerced, and unknown names are rejected."""
    try:
        return model.model_validate_json(to_json(arguments), strict=True, by_alias=True, by_name=False)
    except (PydanticSerializationError, UnicodeEncodeError):
        raise InvalidField(field="arguments", why="contain a lone surrogate, which is not valid Unicode") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # A misspelled name explains the missing one, so report it first.
        raise argument_fault(model, min(found, key=lambda one: one["type"] != "extra_forbidden")) from None


def argument_fault(model: type[Wire], found: ErrorDetails) -> DelegateError:
    where = found["loc"]
    if found["type"] != "extra_forbidden":
        return fault(found, model)
    holder = model_at(model, where[:-1]) or model
    whose = model.__name__ if holder is model else f"a {holder.__name__.lower()}"
    known = [field.alias or name for name, field in holder.model_fields.items()]
    near = get_close_matches(str(where[-1]), known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"valid names: {', '.join(known)}"
    field = ".".join(str(part) for part in where)
    return InvalidField(field=field, why=f"is not a parameter of {whose}; {advice}")
