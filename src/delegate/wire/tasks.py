"""The requests and responses for tasks, runners and the relay."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from delegate.config.values import OUTPUT_RANGE, TIMEOUT_RANGE_MS
from delegate.model import DEPENDENCIES_MAX, EventKind, Mode, OnDependencyFailure, Stream
from delegate.states import Reason
from delegate.wire.basics import (
    KNOWN_AGENT,
    VISIBLE,
    AgentText,
    BranchName,
    Directory,
    IdText,
    Line,
    ModelName,
    Money,
    Name,
    PriorityName,
    ProcessState,
    RepositoryName,
    RunnerName,
    Tag,
    TaskStatus,
    Text,
    Title,
    Wire,
)
from delegate.wire.fleet import RunnerCountsView
from delegate.wire.shared_models import CheckpointView, ChoiceView, IssueView, QuestionView, ResultView, UsageView

BATCH_MAX = 100
Prompt = Annotated[AgentText, VISIBLE]
Agent = Annotated[str, StringConstraints(min_length=1, max_length=200), KNOWN_AGENT]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
TimeoutMs = Annotated[StrictInt, Field(ge=TIMEOUT_RANGE_MS[0], le=TIMEOUT_RANGE_MS[1])]
OutputBytes = Annotated[StrictInt, Field(ge=OUTPUT_RANGE[0], le=OUTPUT_RANGE[1])]
Dependencies = Annotated[list[IdText], Field(max_length=DEPENDENCIES_MAX)]


class SubmitRequest(Wire):
    prompt: Prompt
    priority: PriorityName = "P2"
    agent: Agent | None = None
    default_agent: Agent | None = None  # from the caller's settings; labels and the repository's file override it
    model: ModelName | None = None
    effort: Effort | None = None
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] | None = None
    working_directory: Directory | None = None
    machine: Name | None = None  # with a working directory: the machine it is on
    repository: RepositoryName | None = None  # owner/name, or a URL that git can fetch from
    base: BranchName | None = None  # the branch to start from; the default branch if not set
    worktree: StrictBool = False  # work in a fresh worktree; the result is a pushed branch
    pr: StrictBool = False  # the same, and a pull request
    title: Title | None = None
    issue: IssueView | None = None
    labels: Annotated[list[Line], Field(max_length=50)] = []
    timeout: TimeoutMs | None = None
    max_output_buffer: OutputBytes | None = None
    max_budget_usd: Money | None = None
    max_turns: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = None
    rerun: StrictBool = False
    depends_on: Dependencies = []
    continue_from: IdText | None = None  # one more dependency, whose result is given to this task's agent
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    runner: RunnerName | None = None  # the only runner that may take it
    tags: Annotated[list[Tag], Field(max_length=20)] = []  # that its runner must have
    request_key: Name | None = None  # the same key twice is the same task


class BatchEntry(SubmitRequest):
    name: IdText | None = None  # for `dependsOn` and `continueFrom` of other entries in the batch


class BatchRequest(Wire):
    """Submit all tasks or none; `dependsOn` and `continueFrom` may use names from the batch."""

    tasks: Annotated[list[BatchEntry], Field(min_length=1, max_length=BATCH_MAX)]


class BatchResponse(Wire):
    tasks: list[TaskView]


class GraphView(Wire):
    """Every task that this one depends on or that depends on it, directly or not; the oldest first."""

    tasks: list[TaskView]
    is_cut: bool  # there are more tasks than the response has


class CancelRequest(Wire):
    reason: Text = ""


class RetryRequest(Wire):
    request_key: Name | None = None


class ResumeRequest(Wire):
    context: AgentText | None = None  # what the agent should know or do differently
    request_key: Name | None = None


class AnswerRequest(Wire):
    """The answer to all open questions of a task's agent."""

    text: AgentText
    request_key: Name | None = None


class MessageRequest(Wire):
    text: AgentText
    request_key: Name | None = None


class PromptView(Wire):
    """The prompt given to the agent; before it starts, the prompt as submitted."""

    text: str
    is_rendered: bool


class AttemptView(Wire):
    attempt_id: str
    number: int
    runner_id: str
    slot_id: str
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


class PurgedTaskView(Wire):
    task_id: str
    purged_at: datetime
    remains: list[str]  # sentences: where its texts may still be, out of the relay's reach


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
    depends_on: list[str]
    continue_from: str | None = None
    on_dependency_failure: OnDependencyFailure
    schedule_id: str | None = None
    questions: list[QuestionView]  # the most recent ones
    lineage: str
    result: ResultView | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    message: str | None = None
    advice: str | None = None
    why: str | None = None  # why a queued task is not running yet
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    not_before: datetime | None = None
    retry_of: str | None = None
    parent_task_id: str | None = None
    retry_count: int = 0
    attempt: int
    session_id: str | None = None
    submitted_by: str | None = None  # the task whose agent submitted it
    runner: str | None = None  # the only runner that may take it
    tags: list[str]  # that its runner must have
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
    checkpoint: CheckpointView | None = None  # of its last attempt
    attempts: list[AttemptView]
    events: list[EventView]


class TaskPage(Wire):
    tasks: list[TaskView]
    next: str | None = None


class OutputView(Wire):
    """Output as lines of text; bytes that are not UTF-8 are replaced here; `output/raw` has the exact bytes."""

    lines: list[OutputLine]
    truncated_bytes: int


class OutputLine(Wire):
    at: datetime
    stream: Stream
    text: str


class OutputChunkView(Wire):
    """A chunk of output in a stream; `output` is base64 of the exact bytes, from byte `offset` of the attempt."""

    attempt_id: str
    seq: int
    stream: Stream
    at: datetime
    offset: int
    output: str


class ProcessView(Wire):
    """A process of the pool on the relay's own machine."""

    id: str
    name: str
    pid: int
    version: str
    agents: list[str]
    state: ProcessState
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
    settings: dict[str, object]  # as read when it started, without secrets
    runners: RunnerCountsView
    processes: list[ProcessView]  # of the pool on the relay's own machine
