"""The things of the trade: tasks, attempts, runners and what is known of them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NewType

from delegate.states import AttemptState, Reason, TaskState

TaskId = NewType("TaskId", str)
AttemptId = NewType("AttemptId", str)
RunnerId = NewType("RunnerId", str)

PROMPT_MAX = 250_000
MAX_ATTEMPTS = 3  # in all, counting those lost with their machine
ANY_MACHINE = "*"
HEAD_SHARE = 8  # of the output that is kept, one part in eight is its beginning, the rest its end


class Priority(IntEnum):
    P0 = 0
    P1 = 1
    P2 = 2


class AgentName(StrEnum):
    CLAUDE = "claude"
    SHELL = "shell"


# Agents that spend money; the daily budget holds these back and no others.
PAID_AGENTS = frozenset({AgentName.CLAUDE})


class EventKind(StrEnum):
    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    STARTED = "started"
    SESSION = "session"
    MESSAGE = "message"
    TOOL = "tool"
    TODO = "todo"
    USAGE = "usage"
    WARNING = "warning"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: TaskId
    state: TaskState
    prompt: str
    agent: AgentName
    limits: Limits
    created_at: datetime
    priority: Priority = Priority.P2
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    working_directory: str | None = None
    machine: str = ANY_MACHINE  # the only machine whose runners may claim it, or ANY_MACHINE
    rerun: bool = False
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
