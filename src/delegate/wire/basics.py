"""The kinds of values that travel over HTTP, and what each may be."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
)
from pydantic.alias_generators import to_camel

from delegate.model import (
    ACP_AGENT,
    PROMPT_MAX,
    AgentName,
)
from delegate.preferences import names as branch_names

FENCE_MAX = 2**62
SEQ_MAX = 2**53
ITEMS_MAX = 1_000
CHUNK_MAX = 256 * 1024  # bytes of output in one item
SKIPPED_MAX = 2**43  # bytes in one item; their sum must stay a number that a database takes
RECORD_BODY_MAX = 4 * 1024 * 1024
BODY_MAX = 3 * 1024 * 1024  # a prompt of 250,000 characters takes up to four bytes each, escaped twelve
PATCH_MAX = 400_000  # characters
DATA_DEPTH_MAX = 20  # levels of an event's data; readers of JSON give up at depths of their own
INTEGER_MAX = 2**63
ISO_8601 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)",
    re.IGNORECASE,
)


def without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds a NUL character, which no database and no program takes")
    return text


def check_branch(name: str) -> str:
    if problem := branch_names.branch_problem(name):
        raise ValueError(problem)
    return name


def parse_timestamp(timestamp: object) -> datetime:
    """Digits alone pydantic would count from 1970; they are more likely meant as a date, or as milliseconds."""
    if isinstance(timestamp, datetime):
        return timestamp
    if isinstance(timestamp, str) and ISO_8601.fullmatch(timestamp):
        with suppress(ValueError):  # no calendar has a 30th of February, and ours no leap seconds
            return datetime.fromisoformat(timestamp.upper())
    raise ValueError("is no moment of ISO 8601 with its zone; write it like 2030-02-19T08:00:00Z")


def to_utc(timestamp: datetime) -> datetime:
    try:
        return timestamp.astimezone(UTC)
    except OverflowError:
        raise ValueError("is no moment of the years 1 to 9999 in UTC") from None


def check_storable(data: dict[str, object]) -> dict[str, object]:
    """What an agent said may be any JSON; what cannot be stored or read back is refused here, not found out later."""
    pending: list[tuple[object, int]] = [(data, 1)]
    while pending:
        value, depth = pending.pop()
        match value:
            case str():
                without_nul(value)
            case float() if not isfinite(value):
                raise ValueError("holds a number that JSON cannot carry")
            case int() if abs(value) > INTEGER_MAX:
                raise ValueError("holds an integer of more than 64 bits")
            case dict() | list() if depth > DATA_DEPTH_MAX:
                raise ValueError(f"is nested deeper than {DATA_DEPTH_MAX} levels")
            case dict():
                pending += [(part, depth + 1) for pair in value.items() for part in pair]
            case list():
                pending += [(part, depth + 1) for part in value]
    return data


# What the API's document says where intake knows better words for a refusal than a pattern has.
NO_NUL = Field(json_schema_extra={"pattern": r"^[^\x00]*$"})
INVISIBLE = r"\u200b-\u200d\u2060\ufeff"
VISIBLE = Field(json_schema_extra={"pattern": rf"^[^\x00]*[^\s\x00{INVISIBLE}][^\x00]*$"})
CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
ONE_LINE = rf"^[^{CONTROL}]*[^\s{CONTROL}{INVISIBLE}][^{CONTROL}]*$"
ABSOLUTE = Field(json_schema_extra={"pattern": r"^/[^\x00]*$"})
BASE64 = Field(json_schema_extra={"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"})
KNOWN_AGENT = Field(json_schema_extra={"pattern": rf"^({'|'.join(AgentName)}|{ACP_AGENT.pattern})$"})
NAME = r"^[^\x00-\x1f\x7f]+$"
MODEL = r"^[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,99}$"
ID = r"^[A-Za-z0-9_.-]+$"
ZONE = r"^[A-Za-z0-9_+/-]+$"
# What is wrong with a text that is not of this form, for people; the other patterns are for programs.
PATTERN_MESSAGES = {
    NAME: "has a control character in it, as a tab or a new line",
    MODEL: "is no name of a model: those have letters, digits and ._:/@[]-, begin with one of the first two, up to 100",
    ID: "is no id: those have letters, digits, dots, - and _ only",
    ZONE: "is no time zone; write one like Europe/Berlin or UTC",
}
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME)]
BranchName = Annotated[
    str,
    AfterValidator(check_branch),
    Field(json_schema_extra={"maxLength": branch_names.LENGTH_MAX, "pattern": f"^{branch_names.BRANCH.pattern}$"}),
]
RepositoryName = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(without_nul), NO_NUL]
CommitId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(without_nul), NO_NUL]
# One line of visible text; intake says so in better words than a pattern does.
Title = Annotated[Line, Field(json_schema_extra={"pattern": ONE_LINE})]
Summary = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(without_nul), NO_NUL]
ModelName = Annotated[str, StringConstraints(min_length=1, pattern=MODEL)]
Text = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(without_nul), NO_NUL]
AgentText = Annotated[
    str, StringConstraints(min_length=1, max_length=PROMPT_MAX), AfterValidator(without_nul), NO_NUL
]  # what a person wants an agent to read
Timestamp = Annotated[AwareDatetime, BeforeValidator(parse_timestamp), AfterValidator(to_utc)]
EventData = Annotated[dict[str, object], AfterValidator(check_storable)]
Fence = Annotated[StrictInt, Field(ge=1, le=FENCE_MAX)]
Seq = Annotated[StrictInt, Field(ge=0, le=SEQ_MAX)]
Money = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PriorityName = Literal["P0", "P1", "P2"]
TaskStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]  # blocked is shown as queued
RunnerState = Literal["idle", "busy", "silent"]
IdText = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=ID)]
TaskCursor = Annotated[str, StringConstraints(pattern=r"^t[1-9][0-9]{0,17}$")]
ScheduleCursor = Annotated[str, StringConstraints(pattern=r"^s[1-9][0-9]{0,17}$")]
Count = Annotated[StrictInt, Field(ge=0, le=SEQ_MAX)]


class Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, ser_json_inf_nan="null"
    )


class Problem(BaseModel):
    """application/problem+json"""

    type: str
    title: str
    detail: str
    status: int
    field: str | None = None
    hint: str | None = None
    request_id: str
    retry_after: float | None = None
