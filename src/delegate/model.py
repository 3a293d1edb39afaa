"""The domain model: tasks, attempts, runners, events and results."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NewType

from delegate.config.values import AGENT_COMMAND
from delegate.placement import ANY_MACHINE as ANY_MACHINE
from delegate.placement import Origin, Placement, Policy, lane_of, repository_key
from delegate.states import AttemptState, Reason, TaskState

TaskId = NewType("TaskId", str)
AttemptId = NewType("AttemptId", str)
RunnerId = NewType("RunnerId", str)
SlotId = NewType("SlotId", str)
ScheduleId = NewType("ScheduleId", str)
PersonId = NewType("PersonId", str)
AccessTokenId = NewType("AccessTokenId", str)

PROMPT_MAX = 250_000
DEPENDENCIES_MAX = 100  # of one task
DEPENDENTS_MAX = 1_000  # of one task: its end resolves them in one transaction
FOLLOWERS_MAX = 1_000  # schedules chained after one run: its failure may stop them all
DEPTH_MAX = 100  # tasks in a chain of dependencies
QUESTIONS_MAX = 10  # of one attempt
QUESTION_MAX = 10_000  # characters
OPTIONS_MAX = 20  # of one question
OPTION_MAX = 1_000  # characters
MAX_ATTEMPTS = 3  # including those lost with their machine
PERSON_NAME = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"
TOKEN_DAYS, TOKEN_DAYS_MAX = 90, 3650  # that a person's token is valid
HEAD_SHARE = 8  # one eighth of the kept output is its beginning, the rest its end


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


# Agents that report their cost; the daily budget applies only to these.
PAID_AGENTS = frozenset({AgentName.CLAUDE})


class Mode(StrEnum):
    """Where an attempt works, and what happens to its changes."""

    IN_PLACE = "in_place"
    WORKTREE = "worktree"  # a fresh worktree; the result is a pushed branch
    PULL_REQUEST = "pull_request"  # the same, and a pull request


class OnDependencyFailure(StrEnum):
    """What happens to a task when one of its dependencies fails or is cancelled."""

    CANCEL = "cancel"
    RUN = "run"


IS_WAITING = "isWaiting"  # in the data of a warning: its text says why the task still runs


class EventKind(StrEnum):
    SUBMITTED = "submitted"
    TRIGGERED = "triggered"  # what outside of Delegate asked for the task
    READY = "ready"  # all dependencies have ended
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


class Role(StrEnum):
    """What a person may do; each role includes the ones before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class Privacy(StrEnum):
    """What a runner reports to its relay, from least to most."""

    MINIMAL = "minimal"
    SUMMARY = "summary"
    FULL = "full"


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


def new_person_id() -> PersonId:
    return PersonId(f"user-{secrets.token_hex(5)}")


def new_access_token_id() -> AccessTokenId:
    return AccessTokenId(f"token-{secrets.token_hex(5)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user of a team's relay."""

    id: PersonId
    name: str
    role: Role
    created_at: datetime
    email: str | None = None
    disabled_at: datetime | None = None

    @property
    def refusal(self) -> str | None:
        """Why nothing may be started for this person."""
        if self.disabled_at is not None:
            return f"{self.name} is disabled"
        return f"{self.name} is now a viewer" if self.role is Role.VIEWER else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """A person's token; only its hash is stored."""

    id: AccessTokenId
    person_id: PersonId
    name: str
    prefix: str  # its first characters, to recognise it by
    created_at: datetime
    expires_at: datetime | None  # None: never
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who makes a change, for the audit log and the timeline."""

    name: str
    person_id: PersonId | None = None

    @property
    def event_data(self) -> dict[str, object]:
        """Return what an event says about it: only people are named, a relay of one user has only its owner."""
        return {} if self.person_id is None else {"by": self.name}


OWNER = Actor(name="owner")  # the owner of the relay, with the token in its home


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, object]


def slot_id(runner_id: RunnerId, slot: str) -> SlotId:
    """Return the id of a runner's slot: the same whenever a process registers for it."""
    return SlotId(f"{runner_id}-{slot}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an attempt has spent, as far as the agent reports it."""

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
    """Where a preference comes from; a later source overrides the earlier ones."""

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
    """The value chosen for one preference, and its source."""

    field: Field
    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """The tracker's issue that a task works on."""

    key: str
    title: str
    url: str | None = None
    review_state: str | None = None  # to which the tracker moves it when the pull request is open


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question from an agent to the user, and its answer."""

    attempt_id: AttemptId
    text: str
    asked_at: datetime
    options: tuple[str, ...] = ()
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an attempt produced, for the user to review."""

    summary: str = ""
    base: str | None = None
    base_commit: str | None = None
    branch: str | None = None
    commit: str | None = None
    pull_request: str | None = None  # its URL
    files: int = 0
    additions: int = 0
    deletions: int = 0
    checks_passed: int = 0
    checks_total: int = 0
    is_kept: bool = False  # unpushed work is kept on the runner's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An attempt's diff against its base; a long patch is cut."""

    base_commit: str
    commit: str
    patch: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What an attempt leaves for the next one."""

    session_id: str | None = None
    branch: str | None = None
    base_commit: str | None = None
    commit: str | None = None
    dirty_files: tuple[str, ...] | None = None  # None: not known
    output_tail: tuple[str, ...] = ()
    error: str | None = None
    summary: str = ""  # the agent's final message
    is_work_done: bool = False  # the agent had succeeded: only checks or publishing were left
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
    """An external side effect. It is recorded before it happens, so that a second try can look for the first."""

    task_id: TaskId
    kind: EffectKind
    fence: int
    state: EffectState
    target: str  # the branch
    expected: str | None = None  # the commit it should point to
    external_id: str | None = None  # the resulting commit or pull request URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """An open issue in Linear that blocks the issue of a task."""

    id: str
    key: str  # as in PER-12


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
    context: str | None = None  # what the user adds when resuming a task
    choices: tuple[Choice, ...] = ()
    depends_on: tuple[TaskId, ...] = ()
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    depth: int = 0  # length of the dependency chain above it
    continue_from: TaskId | None = None  # the dependency whose checkpoint (and session, if possible) it continues
    schedule_id: ScheduleId | None = None  # the schedule that created it
    questions: tuple[Question, ...] = ()  # the most recent ones, all from one attempt
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
    submitted_by: TaskId | None = None  # the task whose agent submitted it
    root_id: TaskId | None = None  # the task at the top of those; None: it is one
    generation: int = 0  # the number of tasks above it
    created_by: PersonId | None = None  # the person it works for; None: the relay's owner
    is_from_linear: bool = False
    runner: str | None = None  # the name of the only runner that may claim it
    tags: tuple[str, ...] = ()  # that its runner must have, sorted
    prefers: RunnerId | None = None  # the runner with its session: for a while, only that one may claim it
    blockers: tuple[Blocker, ...] = ()  # issues that must be closed first
    purged_at: datetime | None = None  # when its texts were removed
    usage: Usage = field(default_factory=Usage)

    @property
    def origin(self) -> Origin:
        if self.schedule_id is not None:
            return Origin.SCHEDULE
        return Origin.LINEAR if self.is_from_linear else Origin.PERSON

    @property
    def placement(self) -> Placement:
        return Placement(
            agent=self.agent,
            machine=self.machine,
            in_place=self.mode is Mode.IN_PLACE,
            repository=None if self.repository is None else repository_key(self.repository),
            person=self.created_by,
            origin=self.origin,
            runner=self.runner,
            tags=self.tags,
        )

    @property
    def lane(self) -> str:
        """The part of the queue whose tasks the same runners may take; a claim reads the head of each it may serve."""
        return lane_of(self.placement, place=self.prefers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    id: AttemptId
    task_id: TaskId
    slot_id: SlotId  # the process that holds it
    runner_id: RunnerId
    claim_id: str
    fence: int  # raised by every claim; a stale holder cannot write
    number: int
    state: AttemptState
    started_at: datetime
    renewed_at: datetime
    next_seq: int = 0
    messages_seen: int = 0  # the last message delivered to the agent
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
class RunnerAgent:
    """An agent on a runner's machine, as the runner last reported it."""

    name: str
    version: str | None = None
    is_logged_in: bool | None = None  # None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A paired machine, or the pool of the relay's own machine; its slots are the processes that run tasks."""

    id: RunnerId
    name: str
    machine: str
    version: str
    paired_at: datetime
    seen_at: datetime
    is_paired: bool = False  # False: the pool of a keeper, which has the owner's token
    os: str | None = None
    architecture: str | None = None
    agents: tuple[RunnerAgent, ...] = ()
    policy: Policy | None = None  # None: it takes every task
    tags: tuple[str, ...] = ()
    privacy: str | None = None
    paired_by: PersonId | None = None  # None: the relay's owner
    draining_at: datetime | None = None
    revoked_at: datetime | None = None
    slots: int = 1  # how many tasks it may run at once
    problem: str | None = None  # why it takes no work


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSlot:
    """One process of a runner; it runs one task at a time."""

    id: SlotId
    runner: Runner
    name: str  # within its runner
    pid: int
    version: str
    agents: tuple[str, ...]
    registered_at: datetime
    seen_at: datetime
    instance: str | None = None  # the boot of the machine that the process runs on
    parked: dict[str, datetime] = field(default_factory=dict)
    problem: str | None = None  # why it currently takes no work


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingToken:
    """What a machine shows once, to become a runner."""

    token_hash: str
    name: str  # of the runner
    created_by: PersonId | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """A message from the user to a running agent."""

    id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a task; `id` orders all events of one relay."""

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
    """How an attempt ended, as its runner reports it."""

    state: AttemptState
    reason: Reason
    message: str
    exit_code: int | None = None
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    not_before: datetime | None = None  # set if and only if the reason parks the task
    result: Result | None = None
    checkpoint: Checkpoint | None = None
    change: Change | None = None
    wants_agent: str | None = None  # the other agent that the repository file asks for, when the task is released
    messages_seen: int = 0  # the last message that its agent got
