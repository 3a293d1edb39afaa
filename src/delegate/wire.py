"""What travels over HTTP: parsed and checked once at the relay's edge, and what the runner reads back."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel

from delegate.config import OUTPUT_RANGE, TIMEOUT_RANGE_MS
from delegate.model import PROMPT_MAX, AgentName, EventKind, Stream
from delegate.states import Reason

FENCE_MAX = 2**62
SEQ_MAX = 2**53
ITEMS_MAX = 1_000
CHUNK_MAX = 256 * 1024  # bytes of output in one item
SKIPPED_MAX = 2**43  # bytes in one item; their sum must stay a number that a database takes
RECORD_BODY_MAX = 4 * 1024 * 1024
BODY_MAX = 3 * 1024 * 1024  # a prompt of 250,000 characters takes up to four bytes each, escaped twelve
DATA_DEPTH_MAX = 20  # levels of an event's data; readers of JSON give up at depths of their own
INTEGER_MAX = 2**63


def without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds a NUL character, which no database and no program takes")
    return text


def in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is no moment of the years 1 to 9999 in UTC") from None


def storable(data: dict[str, object]) -> dict[str, object]:
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
VISIBLE = Field(json_schema_extra={"pattern": r"^[^\x00]*[^\s\x00\u200b-\u200d\u2060\ufeff][^\x00]*$"})
ABSOLUTE = Field(json_schema_extra={"pattern": r"^/[^\x00]*$"})
BASE64 = Field(json_schema_extra={"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"})
KNOWN_AGENT = Field(json_schema_extra={"enum": list(AgentName)})
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,99}$")]
Text = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(without_nul), NO_NUL]
Words = Annotated[
    str, StringConstraints(min_length=1, max_length=PROMPT_MAX), AfterValidator(without_nul), NO_NUL
]  # what a person wants an agent to read
Moment = Annotated[AwareDatetime, AfterValidator(in_utc)]
EventData = Annotated[dict[str, object], AfterValidator(storable)]
Fence = Annotated[StrictInt, Field(ge=1, le=FENCE_MAX)]
Seq = Annotated[StrictInt, Field(ge=0, le=SEQ_MAX)]
Money = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PriorityName = Literal["P0", "P1", "P2"]
TaskStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]  # blocked is shown as queued
RunnerState = Literal["idle", "busy", "silent"]
Count = Annotated[StrictInt, Field(ge=0, le=SEQ_MAX)]


class Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, ser_json_inf_nan="null"
    )


class SubmitRequest(Wire):
    prompt: Annotated[Words, VISIBLE]
    priority: PriorityName = "P2"
    agent: Annotated[str, StringConstraints(min_length=1, max_length=100), KNOWN_AGENT] = "claude"
    model: ModelName | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] | None = None
    working_directory: Annotated[
        str, StringConstraints(min_length=1, max_length=4096), AfterValidator(without_nul), ABSOLUTE
    ]
    machine: Name
    timeout: Annotated[StrictInt, Field(ge=TIMEOUT_RANGE_MS[0], le=TIMEOUT_RANGE_MS[1])] | None = None
    max_output_buffer: Annotated[StrictInt, Field(ge=OUTPUT_RANGE[0], le=OUTPUT_RANGE[1])] | None = None
    max_budget_usd: Money | None = None
    max_turns: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = None
    rerun: StrictBool = False
    request_key: Name | None = None  # the same key twice is the same task


class CancelRequest(Wire):
    reason: Text = ""


class RetryRequest(Wire):
    request_key: Name | None = None


class MessageRequest(Wire):
    text: Words
    request_key: Name | None = None


class UsageView(Wire):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_usd: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    turns: Count = 0


class AttemptView(Wire):
    attempt_id: str
    number: int
    runner_id: str
    state: str
    reason: Reason | None = None
    message: str | None = None
    started_at: datetime
    finished_at: datetime | None = None
    exit_code: int | None = None
    session_id: str | None = None
    output_bytes: int = 0
    truncated_bytes: int = 0
    usage: UsageView


class TaskView(Wire):
    task_id: str
    status: TaskStatus
    priority: PriorityName
    agent: str
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    prompt: str
    working_directory: str | None = None
    machine: str
    timeout: int
    max_output_buffer: int
    max_budget_usd: float | None = None
    max_turns: int | None = None
    rerun: bool
    exit_code: int | None = None
    reason: Reason | None = None
    message: str | None = None
    advice: str | None = None
    why: str | None = None  # why a task that could run does not run yet
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    not_before: datetime | None = None
    retry_of: str | None = None
    parent_task_id: str | None = None
    retry_count: int = 0
    attempt: int
    session_id: str | None = None
    usage: UsageView


class EventView(Wire):
    id: int
    task_id: str
    attempt_id: str | None = None
    kind: EventKind
    at: datetime
    data: dict[str, object]


class TaskDetail(Wire):
    task: TaskView
    attempts: list[AttemptView]
    events: list[EventView]


class TaskPage(Wire):
    tasks: list[TaskView]
    next: str | None = None


class OutputView(Wire):
    """Output as lines of text; bytes that are not UTF-8 are replaced here and exact in `output/raw`."""

    lines: list[OutputLine]
    truncated_bytes: int


class OutputLine(Wire):
    at: datetime
    stream: Stream
    text: str


class OutputChunkView(Wire):
    """A chunk as followers get it; `output` is base64 of the exact bytes, from byte `offset` of the attempt."""

    attempt_id: str
    seq: int
    stream: Stream
    at: datetime
    offset: int
    output: str


class RunnerView(Wire):
    id: str
    name: str
    machine: str
    pid: int
    version: str
    agents: list[str]
    state: RunnerState
    task_id: str | None = None
    seen_at: datetime


class RelayView(Wire):
    version: str
    pid: int
    database: str
    started_at: datetime
    daily_budget_usd: float | None = None
    spent_today_usd: float
    tasks: dict[str, int]
    runners: list[RunnerView]


# The runner protocol.


class RegisterRequest(Wire):
    runner_id: Name | None = None  # the identity kept on the runner's disk, if it has one
    name: Name
    machine: Name
    pid: Annotated[StrictInt, Field(ge=1, le=2**31)]
    version: Name
    agents: Annotated[list[Name], Field(max_length=20)]


class Timings(Wire):
    """Seconds, decided by the relay so that both sides count the same lease."""

    heartbeat: float
    lease: float
    reclaim_after: float


class RegisterAnswer(Wire):
    runner_id: str
    token: str
    timings: Timings


class LeaveRequest(Wire):
    """The runner stops and holds nothing; it is not listed any more until it registers again."""


class LeaveAnswer(Wire):
    runner_id: str


class ClaimRequest(Wire):
    claim_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{8,64}$")]
    agents: Annotated[list[Name], Field(max_length=20)]
    parked: dict[Name, Moment] = Field(default_factory=dict, max_length=20)
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 25.0


class Assignment(Wire):
    """A task in the hands of a runner."""

    attempt_id: str
    task_id: str
    fence: int
    number: int
    agent: str
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    prompt: str
    working_directory: str | None = None
    timeout_ms: int
    max_output: int
    budget_usd: float | None = None
    max_turns: int | None = None
    resume_session: str | None = None  # the agent's session of the attempt before, if it had one
    next_seq: int = 0


class ClaimAnswer(Wire):
    assignment: Assignment | None = None


class Message(Wire):
    id: int
    text: str


class Control(Wire):
    """What every answer about an attempt carries back to its runner."""

    next_seq: int
    cancel: str | None = None  # the reason, when somebody asked for the end
    messages: list[Message] = []


class AttemptsAnswer(Wire):
    assignments: list[Assignment]


class RenewRequest(Wire):
    fence: Fence
    messages_seen: Count = 0  # the id of the last message handed to the agent
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.0  # hold the answer until there is news


# The other kinds are for the relay to write.
RecordedKind = Literal[
    EventKind.STARTED,
    EventKind.SESSION,
    EventKind.MESSAGE,
    EventKind.TOOL,
    EventKind.TODO,
    EventKind.USAGE,
    EventKind.WARNING,
    EventKind.OUTPUT,
    EventKind.SKIPPED,
]


class RecordItem(Wire):
    """One event, one chunk of output, or a stretch that the runner had to skip.

    `kind` output has `stream` and base64 `output`; skipped has `through` (its last sequence number) and `bytes`;
    every other kind has `data`.
    """

    seq: Seq
    at: Moment
    kind: RecordedKind
    data: EventData = Field(default_factory=dict)
    stream: Stream | None = None
    output: Annotated[str, StringConstraints(max_length=CHUNK_MAX * 4 // 3 + 4), BASE64] | None = None
    through: Seq | None = None
    bytes: Annotated[StrictInt, Field(ge=0, le=SKIPPED_MAX)] | None = None

    @model_validator(mode="after")
    def has_only_what_its_kind_has(self) -> Self:
        if self.kind is not EventKind.OUTPUT and (self.stream is not None or self.output is not None):
            raise ValueError("has output, but another kind")
        if self.kind is not EventKind.SKIPPED and (self.through is not None or self.bytes is not None):
            raise ValueError("says that something was skipped, but has another kind")
        return self


class RecordRequest(Wire):
    fence: Fence
    items: Annotated[list[RecordItem], Field(min_length=1, max_length=ITEMS_MAX)]


class FinishRequest(Wire):
    fence: Fence
    next_seq: Seq  # how many items the runner has numbered; the relay must have them all
    output_incomplete: StrictBool = False
    outcome: Literal["completed", "failed", "cancelled", "parked"]
    reason: Reason
    message: Text = ""
    exit_code: Annotated[StrictInt, Field(ge=-255, le=255)] | None = None
    session_id: Name | None = None
    not_before: Moment | None = None
    usage: UsageView = Field(default_factory=UsageView)


class ReleaseRequest(Wire):
    """The runner cannot go on: `handed_back` is not counted as an attempt, `lost_runner` is."""

    fence: Fence
    reason: Literal[Reason.HANDED_BACK, Reason.LOST_RUNNER]
    message: Text = ""
    session_id: Name | None = None


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
