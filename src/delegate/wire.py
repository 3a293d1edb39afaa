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

from delegate import branch as branch_names
from delegate.config import OUTPUT_RANGE, TIMEOUT_RANGE_MS
from delegate.model import (
    ACP_AGENT,
    PROMPT_MAX,
    AgentName,
    EffectKind,
    EffectState,
    EventKind,
    Mode,
    Source,
    Stream,
)
from delegate.model import (
    Field as PreferenceField,
)
from delegate.states import Reason

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


def without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds a NUL character, which no database and no program takes")
    return text


def branch(name: str) -> str:
    if problem := branch_names.branch_problem(name):
        raise ValueError(problem)
    return name


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
UNSEEN = r"\u200b-\u200d\u2060\ufeff"
VISIBLE = Field(json_schema_extra={"pattern": rf"^[^\x00]*[^\s\x00{UNSEEN}][^\x00]*$"})
CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
ONE_LINE = rf"^[^{CONTROL}]*[^\s{CONTROL}{UNSEEN}][^{CONTROL}]*$"
ABSOLUTE = Field(json_schema_extra={"pattern": r"^/[^\x00]*$"})
BASE64 = Field(json_schema_extra={"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"})
KNOWN_AGENT = Field(json_schema_extra={"pattern": rf"^({'|'.join(AgentName)}|{ACP_AGENT.pattern})$"})
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
BranchName = Annotated[
    str,
    AfterValidator(branch),
    Field(json_schema_extra={"maxLength": branch_names.LENGTH_MAX, "pattern": f"^{branch_names.BRANCH.pattern}$"}),
]
RepositoryName = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(without_nul), NO_NUL]
CommitId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(without_nul), NO_NUL]
# One line of visible text; intake says so in better words than a pattern does.
Title = Annotated[Line, Field(json_schema_extra={"pattern": ONE_LINE})]
Summary = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(without_nul), NO_NUL]
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
    agent: Annotated[str, StringConstraints(min_length=1, max_length=200), KNOWN_AGENT] | None = None
    model: ModelName | None = None
    effort: Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] | None = None
    working_directory: (
        Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(without_nul), ABSOLUTE] | None
    ) = None
    machine: Name | None = None  # with a working directory: the machine whose directory it is
    repository: RepositoryName | None = None  # owner/name, or an address that git can fetch from
    base: BranchName | None = None  # the branch to start from; its default branch if not set
    worktree: StrictBool = False  # work in a fresh worktree; the work ends on a pushed branch
    pr: StrictBool = False  # the same, and a pull request
    title: Title | None = None
    issue: IssueView | None = None
    labels: Annotated[list[Line], Field(max_length=50)] = []
    timeout: Annotated[StrictInt, Field(ge=TIMEOUT_RANGE_MS[0], le=TIMEOUT_RANGE_MS[1])] | None = None
    max_output_buffer: Annotated[StrictInt, Field(ge=OUTPUT_RANGE[0], le=OUTPUT_RANGE[1])] | None = None
    max_budget_usd: Money | None = None
    max_turns: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = None
    rerun: StrictBool = False
    request_key: Name | None = None  # the same key twice is the same task


class IssueView(Wire):
    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]{0,19}-[0-9]{1,9}$")]
    title: Title
    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"^https?://[^\s\x00-\x1f<>\"]+$")] | None = None


class CancelRequest(Wire):
    reason: Text = ""


class RetryRequest(Wire):
    request_key: Name | None = None


class ResumeRequest(Wire):
    context: Words | None = None  # what the agent is to know or do differently
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


class ChoiceView(Wire):
    """One decision of the preferences, and who made it."""

    field: PreferenceField
    value: Line
    source: Source


class ResultView(Wire):
    summary: Summary = ""
    base: BranchName | None = None
    base_commit: CommitId | None = None
    branch: BranchName | None = None
    commit: CommitId | None = None
    pull_request: Line | None = None
    files: Count = 0
    additions: Count = 0
    deletions: Count = 0
    checks_passed: Count = 0
    checks_total: Count = 0
    is_kept: StrictBool = False


class ChangeView(Wire):
    """The change of a task against its base; `patch` is cut when it is long."""

    base_commit: CommitId
    commit: CommitId
    patch: Annotated[str, StringConstraints(max_length=PATCH_MAX), AfterValidator(without_nul), NO_NUL]
    is_cut: StrictBool = False


class CheckpointView(Wire):
    session_id: Name | None = None
    branch: BranchName | None = None
    base_commit: CommitId | None = None
    commit: CommitId | None = None
    dirty_files: Annotated[list[Line], Field(max_length=200)] = []
    output_tail: Annotated[list[Line], Field(max_length=50)] = []
    error: Text | None = None
    summary: Summary = ""
    is_work_done: StrictBool = False
    usage: UsageView = Field(default_factory=UsageView)


class PromptView(Wire):
    """What the agent was given; before its start, what it was asked for."""

    text: str
    is_rendered: bool


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
    mode: Mode
    repository: str | None = None
    base: str | None = None
    title: str | None = None
    issue: IssueView | None = None
    context: str | None = None
    choices: list[ChoiceView]
    lineage: str
    result: ResultView | None = None
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
    problem: Line | None = None  # why it takes no work just now; it asks only to say so


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
    mode: Mode = Mode.IN_PLACE
    repository: str | None = None
    base: str | None = None
    title: str | None = None
    issue: IssueView | None = None
    context: str | None = None
    choices: list[ChoiceView] = []
    lineage: str
    checkpoint: CheckpointView | None = None  # of the attempt or the task that this one continues
    effects: list[EffectView] = []  # of all tasks of the lineage
    resume_session: str | None = None  # the agent's session of the attempt before, if it had one
    next_seq: int = 0


class EffectView(Wire):
    task_id: str
    kind: EffectKind
    fence: int
    state: EffectState
    target: BranchName
    expected: CommitId | None = None
    external_id: Line | None = None


class EffectRequest(Wire):
    """Announce an effect (`intent`), or tell what came of it; refused when the attempt is somebody else's."""

    fence: Fence
    kind: EffectKind
    state: EffectState
    target: BranchName
    expected: CommitId | None = None
    external_id: Line | None = None


class EffectsAnswer(Wire):
    """How a task stands outside, for a runner that must know what became of an effect it had begun."""

    status: TaskStatus
    effects: list[EffectView]


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
    EventKind.PREFERENCES,
    EventKind.WORKSPACE,
    EventKind.SETUP,
    EventKind.PROMPT,
    EventKind.CHECK,
    EventKind.COMMIT,
    EventKind.PUSH,
    EventKind.PULL_REQUEST,
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
    result: ResultView | None = None
    checkpoint: CheckpointView | None = None
    change: ChangeView | None = None


class ReleaseRequest(Wire):
    """The runner cannot go on: `handed_back` is not counted as an attempt, `lost_runner` is."""

    fence: Fence
    reason: Literal[Reason.HANDED_BACK, Reason.LOST_RUNNER]
    message: Text = ""
    session_id: Name | None = None
    wants_agent: Name | None = None  # the repository's file gives the task to an agent that this runner lacks
    checkpoint: CheckpointView | None = None


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
