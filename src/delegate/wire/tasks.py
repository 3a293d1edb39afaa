"""Tasks as people and their programs ask for them and see them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
)

from delegate.config import OUTPUT_RANGE, TIMEOUT_RANGE_MS
from delegate.model import (
    EventKind,
    Mode,
    Stream,
)
from delegate.states import Reason
from delegate.wire.basics import (
    ABSOLUTE,
    KNOWN_AGENT,
    VISIBLE,
    BranchName,
    Line,
    ModelName,
    Money,
    Name,
    PriorityName,
    RepositoryName,
    RunnerState,
    TaskStatus,
    Text,
    Title,
    Wire,
    Words,
    without_nul,
)
from delegate.wire.parts import ChoiceView, IssueView, ResultView, UsageView


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
