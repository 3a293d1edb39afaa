"""The requests and responses of the runner protocol."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from delegate.config.values import RUNNERS_MAX
from delegate.model import (
    EffectKind,
    EffectState,
    EventKind,
    Mode,
    Privacy,
    Stream,
)
from delegate.placement import AcceptFrom, Origin
from delegate.states import Reason
from delegate.wire.basics import (
    BASE64,
    CHUNK_MAX,
    ITEMS_MAX,
    SKIPPED_MAX,
    BranchName,
    CommitId,
    Count,
    Directory,
    EventData,
    Fence,
    Line,
    MachineName,
    Name,
    PrivacyLevel,
    RepositoryName,
    RunnerName,
    Seq,
    SlotName,
    Tag,
    TaskStatus,
    Text,
    Timestamp,
    Wire,
)
from delegate.wire.shared_models import (
    ChangeView,
    CheckpointView,
    ChoiceView,
    ContinuedTaskView,
    EffectView,
    IssueView,
    QuestionView,
    ResultView,
    UsageView,
)


class PolicyView(Wire):
    """What the owner of a machine lets its runner do."""

    repositories: Annotated[list[RepositoryName], Field(max_length=1000)] | Literal["*"] = []
    directories: Annotated[list[Directory], Field(max_length=1000)] = []
    agents: Annotated[list[Name], Field(max_length=20)] = []
    accept_from: Annotated[list[AcceptFrom], Field(max_length=4)] = []
    in_place: StrictBool = False
    shell: StrictBool = False


class RunnerAgentView(Wire):
    name: Name
    version: Name | None = None
    is_logged_in: StrictBool | None = None  # null: not known


class PairRequest(Wire):
    """What a machine reports about itself when it becomes a runner, and later with each heartbeat."""

    machine: MachineName
    os: Name | None = None
    architecture: Name | None = None
    version: Name
    agents: Annotated[list[RunnerAgentView], Field(max_length=20)] = []
    policy: PolicyView = Field(default_factory=PolicyView)
    privacy: PrivacyLevel = "summary"
    tags: Annotated[list[Tag], Field(max_length=20)] = []
    slots: Annotated[StrictInt, Field(ge=0, le=RUNNERS_MAX)] = 1


class PairExchangeRequest(PairRequest):
    request_key: Name | None = None  # the same key twice is the same runner and token


class PairResponse(Wire):
    runner_id: str
    name: str
    token: str
    paired_by: str
    relay_version: str


class PairingTokenRequest(Wire):
    name: RunnerName
    request_key: Name | None = None


class PairingTokenResponse(Wire):
    pairing_token: str
    name: str
    expires_at: datetime
    command: str  # to paste on the machine
    install_command: str  # the same where Delegate is not installed: with the relay's own version


class RegisterRequest(Wire):
    """A process of a runner begins to work in one of its slots."""

    slot: SlotName
    name: RunnerName  # of the runner, if the relay does not know it yet
    machine: MachineName
    instance: Name | None = None  # the same for all processes of one boot of the machine
    pid: Annotated[StrictInt, Field(ge=1, le=2**31)]
    version: Name
    agents: Annotated[list[Name], Field(max_length=20)]


class Timings(Wire):
    """Intervals in seconds, set by the relay so that both sides use the same lease."""

    heartbeat: float
    lease: float
    reclaim_after: float


class RegisterResponse(Wire):
    slot_id: str
    runner_id: str
    token: str
    timings: Timings


class LeaveRequest(Wire):
    """The runner stops and holds no attempt; it is not listed until it registers again."""


class LeaveResponse(Wire):
    slot_id: str


class ClaimRequest(Wire):
    claim_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{8,64}$")]
    agents: Annotated[list[Name], Field(max_length=20)]
    parked: dict[Name, Timestamp] = Field(default_factory=dict, max_length=20)
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 25.0
    ask_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None  # of the agent's own token
    problem: Line | None = None  # why it currently takes no work; then the claim only reports this
    privacy: Privacy = Privacy.FULL  # what it will report about the task


class AssignmentView(Wire):
    """A task assigned to a runner, with everything it needs to run it."""

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
    rerun: bool = False  # whether a command that had begun may run again
    issue: IssueView | None = None
    context: str | None = None
    choices: list[ChoiceView] = []
    lineage: str
    submitted_by: str | None = None  # the task whose agent submitted it: its words are not the user's
    is_owners: bool = True  # whether the person who paired the runner submitted it
    checkpoint: CheckpointView | None = None  # of the attempt or the task that this one continues
    continued_task: ContinuedTaskView | None = None  # the task that this one continues, with that task's checkpoint
    questions: list[QuestionView] = []  # of the previous attempt, answered
    effects: list[EffectView] = []  # of all tasks in the lineage
    summaries: list[str] = []  # of the finished work of earlier tasks of the lineage, oldest first
    usage_before: UsageView = Field(default_factory=UsageView)  # of all earlier attempts of the lineage
    resume_session: str | None = None  # the agent session of the previous attempt, if any
    next_seq: int = 0
    origin: Origin = Origin.PERSON
    created_at: datetime | None = None  # when the task was submitted, or its trigger arrived


class EffectRequest(Wire):
    """Announce an effect (`intent`) or report its result; refused unless the runner holds the attempt."""

    fence: Fence
    kind: EffectKind
    state: EffectState
    target: BranchName
    expected: CommitId | None = None
    external_id: Line | None = None


class EffectsResponse(Wire):
    """A task's status and effects, for a runner that must find out whether an effect it started happened."""

    status: TaskStatus
    effects: list[EffectView]


class ClaimResponse(Wire):
    assignment: AssignmentView | None = None


class MessageView(Wire):
    id: int
    text: str


class Control(Wire):
    """What every response about an attempt tells its runner."""

    next_seq: int
    cancel: str | None = None  # the reason, when cancellation was requested
    messages: list[MessageView] = []
    asked: bool = False  # its agent has asked a question: the attempt ends with the agent's turn
    has_children: bool = False  # in a renewal: tasks that its agent submitted have not ended, and it may wait for them
    is_posted: bool | None = None  # at the end of a task from Linear: whether Linear has it, or gets it later


class AttemptsResponse(Wire):
    assignments: list[AssignmentView]


class RenewRequest(Wire):
    fence: Fence
    messages_seen: Count = 0  # the id of the last message delivered to the agent
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.0  # hold the response until there is news


# Only the relay writes the other kinds.
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
    """One event, one chunk of output, or a range that the runner had to skip.

    `kind` output has `stream` and base64 `output`; skipped has `through` (its last sequence number) and `bytes`;
    every other kind has `data`.
    """

    seq: Seq
    at: Timestamp
    kind: RecordedKind
    data: EventData = Field(default_factory=dict)
    stream: Stream | None = None
    output: Annotated[str, StringConstraints(max_length=CHUNK_MAX * 4 // 3 + 4), BASE64] | None = None
    through: Seq | None = None
    bytes: Annotated[StrictInt, Field(ge=0, le=SKIPPED_MAX)] | None = None

    @model_validator(mode="after")
    def check_fields_of_kind(self) -> Self:
        if self.output is not None and len(self.output) * 3 // 4 - self.output.count("=", -2) > CHUNK_MAX:
            raise ValueError(f"has more than {CHUNK_MAX:,} bytes of output")
        if self.kind is not EventKind.OUTPUT and (self.stream is not None or self.output is not None):
            raise ValueError("has output, but its kind is not output")
        if self.kind is not EventKind.SKIPPED and (self.through is not None or self.bytes is not None):
            raise ValueError("has skipped bytes, but its kind is not skipped")
        return self


class RecordRequest(Wire):
    fence: Fence
    items: Annotated[list[RecordItem], Field(min_length=1, max_length=ITEMS_MAX)]


class FinishRequest(Wire):
    fence: Fence
    next_seq: Seq  # the number of items the runner has recorded; the relay must have them all
    output_incomplete: StrictBool = False
    outcome: Literal["completed", "failed", "cancelled", "parked", "waiting"]
    reason: Reason
    message: Text = ""
    exit_code: Annotated[StrictInt, Field(ge=-255, le=255)] | None = None
    session_id: Name | None = None
    not_before: Timestamp | None = None
    usage: UsageView = Field(default_factory=UsageView)
    result: ResultView | None = None
    checkpoint: CheckpointView | None = None
    change: ChangeView | None = None
    messages_seen: Count = 0  # as in a renewal; the relay warns of those after it when the task ends


class ReleaseRequest(Wire):
    """The runner gives the attempt up: `handed_back` does not count as an attempt, `lost_runner` does."""

    fence: Fence
    reason: Literal[Reason.HANDED_BACK, Reason.LOST_RUNNER]
    message: Text = ""
    session_id: Name | None = None
    wants_agent: Name | None = None  # the repository's file asks for an agent that this runner lacks
    checkpoint: CheckpointView | None = None
