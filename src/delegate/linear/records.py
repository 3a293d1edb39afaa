"""What the relay remembers about Linear: the connection, sessions, deliveries, posts and maps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from delegate.model import TaskId


class ConnectionKind(StrEnum):
    OAUTH = "oauth"  # an app that a workspace admin has approved
    CLIENT_CREDENTIALS = "client_credentials"  # a private app of the workspace
    API_KEY = "api_key"  # a person's key: no agent sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSecrets:
    """Stored encrypted, as one JSON text."""

    access_token: str
    refresh_token: str | None = None
    client_secret: str | None = None
    webhook_secrets: tuple[str, ...] = ()  # newest first; two while a secret is being replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConnection:
    kind: ConnectionKind
    organization_id: str
    organization_name: str
    url_key: str
    user_id: str  # the app user, or the owner of the API key
    user_name: str
    client_id: str | None
    scopes: tuple[str, ...]
    members: tuple[str, ...]  # addresses of those who may trigger work; empty: every member
    connected_at: datetime
    secrets: LinearSecrets
    expires_at: datetime | None = None
    revision: int = 0  # raised when the secrets change
    problem: str | None = None
    delivered_at: datetime | None = None  # the last signed webhook
    polled_at: datetime | None = None

    @property
    def authorization(self) -> str:
        token = self.secrets.access_token
        return token if self.kind is ConnectionKind.API_KEY else f"Bearer {token}"

    @property
    def has_sessions(self) -> bool:
        return self.kind is not ConnectionKind.API_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    id: int
    key: str
    body: bytes
    received_at: datetime
    tries: int


class Scope(StrEnum):
    """What to work on when a delegated issue has open sub-issues."""

    ASKED = "asked"  # the pending question is about it
    ISSUE = "issue"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """What must be answered before there is a task."""

    text: str
    options: tuple[str, ...] = ()
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueSession:
    """A conversation about one issue: an agent session of Linear, or a comment that Delegate edits."""

    id: str
    issue_id: str
    issue_key: str
    created_at: datetime
    creator: str  # the name of who started it
    email: str = ""  # and the address
    is_comment: bool = False
    is_delegated: bool = True  # False: a mention or a label started it, and un-delegating the issue does not end it
    task_id: TaskId | None = None  # its latest task
    team_id: str = ""
    started_state_id: str | None = None  # to which the issue moves when work begins
    review_state_id: str | None = None  # and when there is a pull request
    cursor: int = 0  # the last event that was reported
    posted_at: datetime | None = None  # the last activity that was queued
    question: PendingQuestion | None = None
    log: tuple[str, ...] = ()  # lines of the comment, for a session that is one
    ended_at: datetime | None = None
    parent_id: str | None = None  # the session about the parent issue that started this one
    text_hash: str | None = None  # of the title and description that the agent knows


class PostKind(StrEnum):
    ACTIVITY = "activity"
    SESSION = "session"
    PLAN = "plan"  # replaced by the next one
    STATE = "state"
    PULL_REQUEST = "pull_request"
    COMMENT = "comment"


class PostPriority(IntEnum):
    """Which post goes first when Linear allows few."""

    URGENT = 0  # a question, the end
    NORMAL = 1
    EPHEMERAL = 2  # replaced by the next one; dropped if it is late


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPost:
    session_id: str
    key: str  # the same for a repeat
    kind: PostKind
    data: dict[str, object]
    priority: PostPriority = PostPriority.NORMAL
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    id: int
    session_id: str
    kind: PostKind
    data: dict[str, object]
    priority: PostPriority
    created_at: datetime
    tries: int


class MapKind(StrEnum):
    TEAM = "team"
    PROJECT = "project"
    ISSUE = "issue"  # an answer to the question for the repository


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueMap:
    """Which repository and agent the issues of a team or project are for."""

    kind: MapKind
    target_id: str
    name: str
    repository: str
    agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCounts:
    waiting: int = 0
    dead: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearState:
    """For `delegate linear status`."""

    connection: LinearConnection | None
    maps: tuple[IssueMap, ...] = ()
    outbox: OutboxCounts = field(default_factory=OutboxCounts)
    inbox_waiting: int = 0
