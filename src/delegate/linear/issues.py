"""Reads issues, sessions and people from Linear's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

CLOSED_TYPES = frozenset({"completed", "canceled", "duplicate"})
ENDED_STATUSES = frozenset({"complete", "error"})
STARTED = "started"
Json = Mapping[str, Any]  # Any: an answer of Linear, whose shape its schema gives


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowState:
    id: str
    name: str
    type: str
    position: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueLabel:
    id: str
    name: str
    group: str | None

    @property
    def text(self) -> str:
        """As a flat label: `executor/codex` for a label in a group."""
        return f"{self.group}/{self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueComment:
    id: str
    body: str
    author: str
    is_by_app: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedIssue:
    id: str
    key: str
    title: str
    state_type: str

    @property
    def is_open(self) -> bool:
        return self.state_type not in CLOSED_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedIssue:
    id: str
    key: str
    title: str
    description: str
    url: str
    state: WorkflowState
    team_id: str
    team_key: str
    team_name: str
    states: tuple[WorkflowState, ...]
    git_events: frozenset[str]  # for which the team's git automation moves issues
    project_id: str | None
    project_name: str | None
    delegate_id: str | None
    parent: str | None  # the parent issue, as text
    labels: tuple[IssueLabel, ...]
    links: tuple[tuple[str, str], ...]  # titles and addresses of attachments
    children: tuple[RelatedIssue, ...]
    blockers: tuple[RelatedIssue, ...]
    comments: tuple[IssueComment, ...]  # oldest first

    @property
    def is_closed(self) -> bool:
        return self.state.type in CLOSED_TYPES

    @property
    def text_hash(self) -> str:
        """Identifies what an agent was told of the issue."""
        return hash_text(self.title, self.description)

    @property
    def started_state(self) -> WorkflowState | None:
        """The state to move the issue to when work begins; None if it has begun or ended."""
        if self.state.type == STARTED or self.is_closed:
            return None
        return min(self._states_of(STARTED), key=lambda state: state.position, default=None)

    @property
    def review_state(self) -> WorkflowState | None:
        """The started state for reviews: one with that word in its name, else the last."""
        started = sorted(self._states_of(STARTED), key=lambda state: state.position)
        named = [state for state in started if "review" in state.name.lower()]
        return next(iter(named), started[-1] if len(started) > 1 else None)

    def _states_of(self, kind: str) -> list[WorkflowState]:
        return [state for state in self.states if state.type == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearUser:
    id: str
    name: str
    email: str
    is_member: bool  # active, and neither a guest nor an app


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSession:
    id: str
    status: str
    creator: LinearUser | None
    source_comment: str | None  # the comment that mentioned the app
    issue: TrackedIssue | None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED_STATUSES


def hash_text(title: str, description: str | None) -> str:
    return sha256(f"{title}\n{description or ''}".encode()).hexdigest()


def read_issue(data: Json) -> TrackedIssue:
    """Read a node with the fields of `operations.ISSUE_FIELDS`."""
    team, project = data["team"], data.get("project")
    parent = data.get("parent")
    blocking = [relation["issue"] for relation in _nodes(data, "inverseRelations") if relation["type"] == "blocks"]
    return TrackedIssue(
        id=data["id"],
        key=data["identifier"],
        title=data["title"],
        description=data.get("description") or "",
        url=data["url"],
        state=_state(data["state"]),
        team_id=team["id"],
        team_key=team["key"],
        team_name=team["name"],
        states=tuple(_state(state) for state in _nodes(team, "states")),
        git_events=frozenset(rule["event"] for rule in _nodes(team, "gitAutomationStates")),
        project_id=project["id"] if project else None,
        project_name=project["name"] if project else None,
        delegate_id=(data.get("delegate") or {}).get("id"),
        parent=f"{parent['identifier']} {parent['title']}" if parent else None,
        labels=tuple(read_label(label) for label in _nodes(data, "labels")),
        links=tuple((link["title"], link["url"]) for link in _nodes(data, "attachments")),
        children=tuple(_related(child) for child in _nodes(data, "children")),
        blockers=tuple(_related(issue) for issue in blocking),
        comments=tuple(_comment(comment) for comment in reversed(_nodes(data, "comments"))),
    )


def read_session(data: Json) -> AgentSession:
    session = data["agentSession"]
    creator, comment, issue = session.get("creator"), session.get("sourceComment"), session.get("issue")
    return AgentSession(
        id=session["id"],
        status=session["status"],
        creator=read_user(creator) if creator else None,
        source_comment=comment["body"] if comment else None,
        issue=read_issue(issue) if issue else None,
    )


def read_user(data: Json) -> LinearUser:
    is_member = data["active"] and not data["app"] and not data["guest"]
    return LinearUser(id=data["id"], name=data["name"], email=data["email"], is_member=is_member)


def _nodes(data: Json, name: str) -> Sequence[Json]:
    found: Sequence[Json] = (data.get(name) or {}).get("nodes") or []
    return found


def _state(data: Json) -> WorkflowState:
    return WorkflowState(id=data["id"], name=data["name"], type=data["type"], position=data.get("position") or 0.0)


def read_label(data: Json) -> IssueLabel:
    return IssueLabel(id=data["id"], name=data["name"], group=(data.get("parent") or {}).get("name"))


def _related(data: Json) -> RelatedIssue:
    return RelatedIssue(
        id=data["id"], key=data["identifier"], title=data["title"], state_type=(data.get("state") or {}).get("type", "")
    )


def _comment(data: Json) -> IssueComment:
    user = data.get("user") or {}
    return IssueComment(
        id=data["id"], body=data["body"], author=user.get("name") or "someone", is_by_app=bool(user.get("app"))
    )
