"""The things of the trade: tasks, attempts, runners and what is known of them."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NewType

from delegate.config.values import AGENT_COMMAND
from delegate.states import AttemptState, Reason, TaskState

TaskId = NewType("TaskId", str)
AttemptId = NewType("AttemptId", str)
RunnerId = NewType("RunnerId", str)
ScheduleId = NewType("ScheduleId", str)

PROMPT_MAX = 250_000
DEPENDENCIES_MAX = 100  # of one task
DEPENDENTS_MAX = 1_000  # that wait for one task: its end settles them in one transaction
FOLLOWERS_MAX = 1_000  # schedules that wait for one end, each for the one before it: that end may stop them all
DEPTH_MAX = 100  # tasks in a chain of dependencies
QUESTIONS_MAX = 10  # of one attempt
QUESTION_MAX = 10_000  # characters
OPTIONS_MAX = 20  # of one question
OPTION_MAX = 1_000  # characters
MAX_ATTEMPTS = 3  # in all, counting those lost with their machine
ANY_MACHINE = "*"
HEAD_SHARE = 8  # of the output that is kept, one part in eight is its beginning, the rest its end


class Priority(IntEnum):
    P0 = 0
    P1 = 1
    P2 = 2


class AgentName(StrEnum):
    """The agents known by name; `acp:<command>` names every other one."""

    CLAUDE = "claude"
    CODEX = "codex"
    SHELL = "shell"


ACP_AGENT = re.compile(f"acp:{AGENT_COMMAND}")


def is_agent(name: str) -> bool:
    return name in set(AgentName) or ACP_AGENT.fullmatch(name) is not None


# Agents that tell what they cost; the daily budget holds these back and no others.
PAID_AGENTS = frozenset({AgentName.CLAUDE})


class Mode(StrEnum):
    """Where an attempt works, and what becomes of it."""

    IN_PLACE = "in_place"
    WORKTREE = "worktree"  # a fresh worktree; the work ends on a pushed branch
    PULL_REQUEST = "pull_request"  # the same, and a pull request


class OnDependencyFailure(StrEnum):
    """What becomes of a task when one that it waits for does not end well."""

    CANCEL = "cancel"
    RUN = "run"


class EventKind(StrEnum):
    SUBMITTED = "submitted"
    READY = "ready"  # all that it waited for has ended
    CLAIMED = "claimed"
    STARTED = "started"
    SESSION = "session"
    MESSAGE = "message"
    TOOL = "tool"
    TODO = "todo"
    USAGE = "usage"
    QUESTION = "question"
    ANSWER = "answer"
    WARNING = "warning"
    PREFERENCES = "preferences"
    WORKSPACE = "workspace"
    SETUP = "setup"
    PROMPT = "prompt"
    CHECK = "check"
    COMMIT = "commit"
    PUSH = "push"
    PULL_REQUEST = "pull_request"
    OUTPUT = "output"
    SKIPPED = "skipped"
    RELEASED = "released"
    PARKED = "parked"
    LOST = "lost"
    CANCEL_REQUESTED = "cancel_requested"
    FINISHED = "finished"


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


def new_task_id() -> TaskId:
    return TaskId(f"task-{secrets.token_hex(5)}")


def new_attempt_id() -> AttemptId:
    return AttemptId(f"att-{secrets.token_hex(8)}")


def new_schedule_id() -> ScheduleId:
    return ScheduleId(f"schedule-{secrets.token_hex(5)}")


def new_runner_id() -> RunnerId:
    return RunnerId(f"runner-{secrets.token_hex(4)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an attempt has spent, as far as the agent tells."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            turns=self.turns + other.turns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    timeout: timedelta
    max_output: int
    max_budget_usd: float | None = None
    max_turns: int | None = None


class Field(StrEnum):
    """What a preference can decide."""

    AGENT = "agent"
    MODEL = "model"
    EFFORT = "effort"
    REPOSITORY = "repository"
    BASE = "base"
    MODE = "mode"


class Source(StrEnum):
    """Who decided; a later one wins over those before it."""

    DEFAULT = "default"
    RELAY = "relay settings"
    CALLER = "caller's settings"
    PROJECT = "project"
    REPOSITORY_FILE = ".delegate.toml"
    LABEL = "label"
    DESCRIPTION = "description"
    COMMENT = "comment"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision of the preferences, and who made it."""

    field: Field
    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """The tracker's issue that a task works on."""

    key: str
    title: str
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What an agent wants to know from a person, and what it was told."""

    attempt_id: AttemptId
    text: str
    asked_at: datetime
    options: tuple[str, ...] = ()
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an attempt left behind for people to look at."""

    summary: str = ""
    base: str | None = None
    base_commit: str | None = None
    branch: str | None = None
    commit: str | None = None
    pull_request: str | None = None  # its address
    files: int = 0
    additions: int = 0
    deletions: int = 0
    checks_passed: int = 0
    checks_total: int = 0
    is_kept: bool = False  # unpushed work is kept on the runner's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of an attempt against its base, as a patch that may be cut."""

    base_commit: str
    commit: str
    patch: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is left of an attempt for the next one."""

    session_id: str | None = None
    branch: str | None = None
    base_commit: str | None = None
    commit: str | None = None
    dirty_files: tuple[str, ...] | None = None  # None: not known
    output_tail: tuple[str, ...] = ()
    error: str | None = None
    summary: str = ""  # the agent's last words
    is_work_done: bool = False  # the agent had ended well: only checks or publishing were left
    usage: Usage = field(default_factory=Usage)  # of the whole session so far


class EffectKind(StrEnum):
    PUSH = "push"
    PULL_REQUEST = "pull_request"


class EffectState(StrEnum):
    INTENT = "intent"
    DONE = "done"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something visible outside: announced before it is done, so that a second try looks for the first."""

    task_id: TaskId
    kind: EffectKind
    fence: int
    state: EffectState
    target: str  # the branch
    expected: str | None = None  # the commit that is to be there
    external_id: str | None = None  # what came of it: the commit, or the pull request's address


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: TaskId
    state: TaskState
    prompt: str
    agent: str
    lineage: TaskId  # the first task of the chain that shares a workspace, a branch and an agent's session
    limits: Limits
    created_at: datetime
    priority: Priority = Priority.P2
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    working_directory: str | None = None
    machine: str = ANY_MACHINE  # the only machine whose runners may claim it, or ANY_MACHINE
    rerun: bool = False
    mode: Mode = Mode.IN_PLACE
    repository: str | None = None
    base: str | None = None
    title: str | None = None
    issue: Issue | None = None
    context: str | None = None  # what a person adds when a task is resumed
    choices: tuple[Choice, ...] = ()
    depends_on: tuple[TaskId, ...] = ()
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    depth: int = 0  # of the chain of dependencies above it
    continue_from: TaskId | None = None  # the dependency whose checkpoint, and session if possible, it goes on from
    schedule_id: ScheduleId | None = None  # the schedule that made it
    questions: tuple[Question, ...] = ()  # those its agent asked last, all of one attempt
    result: Result | None = None
    reason: Reason | None = None
    message: str | None = None
    exit_code: int | None = None
    fence: int = 0
    attempts: int = 0
    not_before: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    retry_of: TaskId | None = None
    parent_task_id: TaskId | None = None
    retry_count: int = 0
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def lane(self) -> str:
        return lane(self.machine, self.agent)


def lane(machine: str, agent: str) -> str:
    """The part of the queue that one kind of runner drains: the claim looks at the head of each of its lanes."""
    return f"{machine}/{agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    id: AttemptId
    task_id: TaskId
    runner_id: RunnerId
    claim_id: str
    fence: int  # raised by every claim; a stale holder cannot write
    number: int
    state: AttemptState
    started_at: datetime
    renewed_at: datetime
    next_seq: int = 0
    messages_seen: int = 0  # the last message that reached the agent
    budget_usd: float | None = None  # what this attempt may spend, reserved from the daily budget
    reason: Reason | None = None  # set exactly when the state is final
    message: str | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    session_id: str | None = None
    output_bytes: int = 0
    truncated_bytes: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    id: RunnerId
    name: str
    machine: str
    pid: int
    version: str
    agents: tuple[str, ...]
    registered_at: datetime
    seen_at: datetime
    parked: dict[str, datetime] = field(default_factory=dict)
    problem: str | None = None  # why it takes no work just now


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """A person's words for an agent that is at work."""

    id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact about a task; `id` orders all events of one relay."""

    id: int
    task_id: TaskId
    attempt_id: AttemptId | None
    kind: EventKind
    at: datetime
    data: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    id: int
    attempt_id: AttemptId
    seq: int
    stream: Stream
    at: datetime
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, as the runner judged it."""

    state: AttemptState
    reason: Reason
    message: str
    exit_code: int | None = None
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    not_before: datetime | None = None  # set exactly when the reason parks the task
    result: Result | None = None
    checkpoint: Checkpoint | None = None
    change: Change | None = None
    wants_agent: str | None = None  # a released task that the repository's file gives to another agent
