"""Defines and validates the types of values in HTTP bodies."""

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

from delegate import placement
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
SKIPPED_MAX = 2**43  # bytes in one item; their sum must fit into a database integer
RECORD_BODY_MAX = 4 * 1024 * 1024
BODY_MAX = 3 * 1024 * 1024  # a prompt of 250,000 characters takes up to four bytes each, escaped twelve
PATCH_MAX = 400_000  # characters
DATA_DEPTH_MAX = 20  # levels of an event's data; JSON parsers have limits of their own
INTEGER_MAX = 2**63
ISO_8601 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)",
    re.IGNORECASE,
)


def without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("contains a NUL character, which is not allowed")
    return text


def check_branch(name: str) -> str:
    if problem := branch_names.branch_problem(name):
        raise ValueError(problem)
    return name


def parse_timestamp(timestamp: object) -> datetime:
    """Parse ISO 8601 only: pydantic would read plain digits as seconds since 1970."""
    if isinstance(timestamp, datetime):
        return timestamp
    if isinstance(timestamp, str) and ISO_8601.fullmatch(timestamp):
        with suppress(ValueError):  # such as a 30th of February, or a leap second
            return datetime.fromisoformat(timestamp.upper())
    raise ValueError("is not an ISO 8601 time with a zone; write it like 2030-02-19T08:00:00Z")


def to_utc(timestamp: datetime) -> datetime:
    try:
        return timestamp.astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside the years 1 to 9999 in UTC") from None


def check_storable(data: dict[str, object]) -> dict[str, object]:
    """Reject JSON that cannot be stored or read back; an agent may send any JSON."""
    pending: list[tuple[object, int]] = [(data, 1)]
    while pending:
        value, depth = pending.pop()
        match value:
            case str():
                without_nul(value)
            case float() if not isfinite(value):
                raise ValueError("contains a number that JSON cannot represent")
            case int() if abs(value) > INTEGER_MAX:
                raise ValueError("contains an integer of more than 64 bits")
            case dict() | list() if depth > DATA_DEPTH_MAX:
                raise ValueError(f"is nested more than {DATA_DEPTH_MAX} levels deep")
            case dict():
                pending += [(part, depth + 1) for pair in value.items() for part in pair]
            case list():
                pending += [(part, depth + 1) for part in value]
    return data


# Patterns for the OpenAPI document only: intake checks these and gives a better message than a pattern could.
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
RUNNER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MACHINE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
SLOT_NAME = r"^[A-Za-z0-9][A-Za-z0-9-]{0,31}$"
TAG = rf"^{placement.TAG.pattern}$"
# Messages for users when a text does not match; values of the other patterns come from programs.
PATTERN_MESSAGES = {
    NAME: "contains a control character, such as a tab or a newline",
    MODEL: "is not a valid model name: use up to 100 letters, digits and ._:/@[]-, starting with a letter or digit",
    ID: "is not a valid id: use only letters, digits, dots, - and _",
    RUNNER_NAME: "is not a valid name for a runner: use up to 64 letters, digits, dots, - and _, "
    "starting with a letter or digit",
    MACHINE_NAME: "is not the id of a machine: it has up to 100 letters, digits, dots, - and _, "
    "and starts with a letter or digit",
    TAG: "is not a valid name: use up to 64 letters, digits, dots, - and _, starting with a letter or digit",
    ZONE: "is not a valid time zone; use a name like Europe/Berlin or UTC",
}
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME)]
RunnerName = Annotated[str, StringConstraints(min_length=1, pattern=RUNNER_NAME)]
MachineName = Annotated[str, StringConstraints(min_length=1, pattern=MACHINE_NAME)]
SlotName = Annotated[str, StringConstraints(min_length=1, pattern=SLOT_NAME)]
Tag = Annotated[str, StringConstraints(min_length=1, pattern=TAG)]
BranchName = Annotated[
    str,
    AfterValidator(check_branch),
    Field(
        json_schema_extra={"maxLength": branch_names.BRANCH_LENGTH_MAX, "pattern": f"^{branch_names.BRANCH.pattern}$"}
    ),
]
Directory = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(without_nul), ABSOLUTE]
RepositoryName = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(without_nul), NO_NUL]
CommitId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(without_nul), NO_NUL]
# One line of visible text; intake gives a better message than a pattern could.
Title = Annotated[Line, Field(json_schema_extra={"pattern": ONE_LINE})]
Summary = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(without_nul), NO_NUL]
ModelName = Annotated[str, StringConstraints(min_length=1, pattern=MODEL)]
Text = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(without_nul), NO_NUL]
AgentText = Annotated[
    str, StringConstraints(min_length=1, max_length=PROMPT_MAX), AfterValidator(without_nul), NO_NUL
]  # text from the user for an agent
Timestamp = Annotated[AwareDatetime, BeforeValidator(parse_timestamp), AfterValidator(to_utc)]
EventData = Annotated[dict[str, object], AfterValidator(check_storable)]
Fence = Annotated[StrictInt, Field(ge=1, le=FENCE_MAX)]
Seq = Annotated[StrictInt, Field(ge=0, le=SEQ_MAX)]
Money = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PriorityName = Literal["P0", "P1", "P2"]
TaskStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]  # blocked is shown as queued
PrivacyLevel = Literal["minimal", "summary", "full"]
ProcessState = Literal["idle", "busy", "silent"]
IdText = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=ID)]
TaskCursor = Annotated[str, StringConstraints(pattern=r"^t[1-9][0-9]{0,17}$")]
RunnerCursor = Annotated[str, StringConstraints(pattern=r"^r[A-Za-z0-9-]{1,64}~[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
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
