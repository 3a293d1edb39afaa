"""The queries and mutations of the Linear stand-in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLSchema,
    IntValueNode,
    OperationDefinitionNode,
    SelectionSetNode,
    VariableNode,
    build_ast_schema,
    parse,
)
from tests.fakes.linear_deliveries import (
    CONTENT_FIELDS,
    DEFAULT_PAGE,
    PLAN_MARKS,
    PRIORITIES,
    Entity,
    Json,
    Refused,
    forbidden,
    invalid,
    iso,
)

if TYPE_CHECKING:
    from tests.fakes.linear_standin import LinearStandin


# Connections that are the rows of `kind` whose field holds the owner's id.
REVERSE = {
    "Issue.comments": ("Comment", "issueId"),
    "Issue.children": ("Issue", "parentId"),
    "Issue.history": ("IssueHistory", "issueId"),
    "Issue.attachments": ("Attachment", "issueId"),
    "Issue.relations": ("IssueRelation", "issueId"),
    "Issue.inverseRelations": ("IssueRelation", "relatedIssueId"),
    "Issue.reactions": ("Reaction", "issueId"),
    "Issue.agentSessions": ("AgentSession", "issueId"),
    "Comment.children": ("Comment", "parentId"),
    "Comment.reactions": ("Reaction", "commentId"),
    "Comment.agentSessions": ("AgentSession", "commentId"),
    "Comment.spawnedAgentSessions": ("AgentSession", "sourceCommentId"),
    "Team.issues": ("Issue", "teamId"),
    "Team.states": ("WorkflowState", "teamId"),
    "Team.labels": ("IssueLabel", "teamId"),
    "Team.gitAutomationStates": ("GitAutomationState", "teamId"),
    "Team.webhooks": ("Webhook", "teamId"),
    "WorkflowState.issues": ("Issue", "stateId"),
    "IssueLabel.children": ("IssueLabel", "parentId"),
    "Project.issues": ("Issue", "projectId"),
    "User.assignedIssues": ("Issue", "assigneeId"),
    "User.delegatedIssues": ("Issue", "delegateId"),
    "User.createdIssues": ("Issue", "creatorId"),
}
MANY = {
    "issues": "Issue",
    "issueLabels": "IssueLabel",
    "labels": "IssueLabel",
    "workflowStates": "WorkflowState",
    "teams": "Team",
    "users": "User",
    "projects": "Project",
    "comments": "Comment",
    "webhooks": "Webhook",
    "attachments": "Attachment",
    "agentSessions": "AgentSession",
    "agentActivities": "AgentActivity",
    "issueRelations": "IssueRelation",
}
ONE = {
    "issue": "Issue",
    "issueLabel": "IssueLabel",
    "workflowState": "WorkflowState",
    "team": "Team",
    "user": "User",
    "project": "Project",
    "comment": "Comment",
    "webhook": "Webhook",
    "attachment": "Attachment",
    "agentSession": "AgentSession",
    "agentActivity": "AgentActivity",
    "issueRelation": "IssueRelation",
}
COMPUTED: dict[str, Callable[[LinearStandin, Entity], Any]] = {
    "Issue.labels": lambda s, e: [s.rows[i] for i in e["labelIds"]],
    "Issue.url": lambda s, e: s.issue_url(e),
    "Issue.priorityLabel": lambda s, e: PRIORITIES[int(e["priority"])],
    "Issue.branchName": lambda s, e: s.branch_name(e),
    "Issue.subscribers": lambda s, e: [s.rows[i] for i in e["subscriberIds"]],
    "Issue.hasActiveAgentSessions": lambda s, e: any(
        x["issueId"] == e.id and s.session_status(x) in ("pending", "active", "awaitingInput") for x in s.sessions
    ),
    "Issue.hasBlockedByRelations": lambda s, e: any(
        r["type"] == "blocks" and r["relatedIssueId"] == e.id for r in s.tables["IssueRelation"].values()
    ),
    "Issue.hasBlockingRelations": lambda s, e: any(
        r["type"] == "blocks" and r["issueId"] == e.id for r in s.tables["IssueRelation"].values()
    ),
    "IssueLabel.issues": lambda s, e: [i for i in s.tables["Issue"].values() if e.id in i["labelIds"]],
    "Comment.url": lambda s, e: s.comment_url(e),
    "Comment.agentSession": lambda s, e: next((x for x in s.sessions if x["commentId"] == e.id), None),
    "User.isMe": lambda s, e: e is s.caller.user,
    "User.url": lambda s, e: s.user_url(e),
    "User.isAssignable": lambda s, e: not e["app"] or "app:assignable" in s.app_scopes,
    "User.isMentionable": lambda s, e: not e["app"] or "app:mentionable" in s.app_scopes,
    "User.supportsAgentSessions": lambda s, e: e["app"],
    "User.organization": lambda s, e: s.organization,
    "Team.organization": lambda s, e: s.organization,
    "User.teams": lambda s, e: list(s.tables["Team"].values()),
    "Team.members": lambda s, e: list(s.tables["User"].values()),
    "Team.projects": lambda s, e: [p for p in s.tables["Project"].values() if e.id in p["_team_ids"]],
    "Project.teams": lambda s, e: [s.rows[i] for i in e["_team_ids"]],
    "Project.url": lambda s, e: s.project_url(e),
    "AgentSession.status": lambda s, e: s.session_status(e),
    "AgentSession.externalUrls": lambda s, e: e["externalLinks"],
    "AgentSession.externalLink": lambda s, e: e["externalLinks"][0]["url"] if e["externalLinks"] else None,
    "AgentSession.activities": lambda s, e: [a for a in s.all_activities(e) if not a["_replaced"]],
    "AgentActivity.type": lambda s, e: e["_content"]["type"],
    "AgentActivity.content": lambda s, e: Entity(
        f"AgentActivity{e['_content']['type'].capitalize()}Content", **e["_content"]
    ),
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda v, w: v == w,
    "neq": lambda v, w: v != w,
    "in": lambda v, w: v in w,
    "nin": lambda v, w: v not in w,
    "null": lambda v, w: (v is None) == w,
    "lt": lambda v, w: v is not None and v < w,
    "lte": lambda v, w: v is not None and v <= w,
    "gt": lambda v, w: v is not None and v > w,
    "gte": lambda v, w: v is not None and v >= w,
    "contains": lambda v, w: w in (v or ""),
    "notContains": lambda v, w: w not in (v or ""),
    "startsWith": lambda v, w: (v or "").startswith(w),
    "endsWith": lambda v, w: (v or "").endswith(w),
    "eqIgnoreCase": lambda v, w: (v or "").lower() == w.lower(),
    "neqIgnoreCase": lambda v, w: (v or "").lower() != w.lower(),
    "containsIgnoreCase": lambda v, w: w.lower() in (v or "").lower(),
    "startsWithIgnoreCase": lambda v, w: (v or "").lower().startswith(w.lower()),
    "notContainsIgnoreCase": lambda v, w: w.lower() not in (v or "").lower(),
    "notStartsWith": lambda v, w: not (v or "").startswith(w),
    "notEndsWith": lambda v, w: not (v or "").endswith(w),
}
DURATION = re.compile(r"(-?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


@dataclass(slots=True)
class Token:
    value: str
    user: Entity
    scopes: tuple[str, ...]
    kind: str  # key, oauth, client (a client-credentials token)
    expires_at: float = math.inf
    refresh: str = ""

    def require(self, *accepted: str) -> None:
        if accepted == ("admin",) and "admin" not in self.scopes:
            raise forbidden("Invalid role: admin required", "You need to have the admin scope for webhooks.")
        if not set(accepted) & set(self.scopes):
            raise forbidden(f"Invalid scope: `{accepted[0]}` required")


@dataclass(slots=True)
class Bucket:
    """DOC: a leaky bucket, refilled at limit per hour."""

    limit: float
    level: float
    at: float

    def refill(self, now: float) -> None:
        self.level = min(self.limit, self.level + max(0.0, now - self.at) * self.limit / 3600)
        self.at = now


@lru_cache(maxsize=4)
def load_schema(path: Path) -> GraphQLSchema:
    """Linear's schema; parsing its 50,000 lines takes about two seconds, once per process."""
    return build_ast_schema(
        parse(path.read_text(encoding="utf-8"), no_location=True), assume_valid=True, assume_valid_sdl=True
    )


def complexity(  # noqa: C901  # three small functions
    document: DocumentNode, operation: OperationDefinitionNode, variables: Json
) -> int:
    """DOC: 0.1 a property, 1 an object, a connection multiplies by its page size, rounded up."""
    fragments = {d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)}

    def fields(selection: SelectionSetNode) -> Iterable[FieldNode]:
        for node in selection.selections:
            if isinstance(node, FieldNode):
                yield node
            elif isinstance(node, FragmentSpreadNode):
                yield from fields(fragments[node.name.value].selection_set)
            else:
                yield from fields(node.selection_set)  # type: ignore[attr-defined]

    def page_size(node: FieldNode) -> int:
        for argument in node.arguments or ():
            if argument.name.value in ("first", "last"):
                value = argument.value
                size = (
                    variables.get(value.name.value)
                    if isinstance(value, VariableNode)
                    else int(value.value)
                    if isinstance(value, IntValueNode)
                    else None
                )
                return int(size or DEFAULT_PAGE)
        return DEFAULT_PAGE

    def cost(selection: SelectionSetNode, page: int) -> float:
        total = 0.0
        for node in fields(selection):
            if node.selection_set is None:
                total += 0.1
            elif node.name.value in ("nodes", "edges"):
                total += page * (1 + cost(node.selection_set, 1))
            elif any(f.name.value in ("nodes", "edges") for f in fields(node.selection_set)):
                total += cost(node.selection_set, page_size(node))
            else:
                total += 1 + cost(node.selection_set, 1)
        return total

    return math.ceil(round(cost(operation.selection_set, 1), 6))


Mutation = Callable[["LinearStandin", Token, Json], tuple[str, Entity]]
MUTATIONS: dict[str, tuple[tuple[str, ...], Mutation]] = {}


def mutation(name: str, *scopes: str) -> Callable[[Mutation], Mutation]:
    def register(function: Mutation) -> Mutation:
        MUTATIONS[name] = (scopes or ("write",), function)
        return function

    return register


def own_session(s: LinearStandin, caller: Token, session_id: str) -> Entity:
    session = s.get("AgentSession", session_id)
    if caller.user.id != session["appUserId"]:  # DOC: only the app that owns the session may write
        raise forbidden("Only the app that owns the agent session can change it")
    return session


def check_activity(data: Json) -> None:
    """DOC: shapes are validated, an app makes no prompts, only thoughts and actions are ephemeral."""
    content, signal = data["content"], data.get("signal")
    kind = content.get("type") if isinstance(content, dict) else None
    if kind not in CONTENT_FIELDS:
        raise invalid(f"content.type must be one of {', '.join(CONTENT_FIELDS)}.")
    required, optional = CONTENT_FIELDS[kind]
    given = {k for k, v in content.items() if v is not None} - {"type"}
    if required - given or given - required - optional or not all(isinstance(content[k], str) for k in given):
        raise invalid(f"content of type {kind} takes {', '.join(sorted(required | optional))} as strings.")
    if data.get("ephemeral") and kind not in ("thought", "action"):
        raise invalid(f"an activity of type {kind} cannot be ephemeral.")
    if signal and (signal not in ("select", "auth") or kind != "elicitation"):
        raise invalid(f"signal {signal} is not allowed on an activity of type {kind}.")
    needed = {"select": "options", "auth": "url"}.get(signal or "")
    if needed and needed not in (data.get("signalMetadata") or {}):
        raise invalid(f"signal {signal} needs signalMetadata.{needed}.")


@mutation("agentActivityCreate")
def agent_activity_create(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    data = args["input"]
    session = own_session(s, caller, data["agentSessionId"])
    if s.duplicate_ids == "return" and data.get("id") in s.tables["AgentActivity"]:
        return "agentActivity", s.rows[data["id"]]
    row_id = s.client_id(data.get("id"), "AgentActivity")
    check_activity(data)
    return "agentActivity", s.add_activity(
        session,
        caller.user,
        data["content"],
        row_id=row_id,
        ephemeral=bool(data.get("ephemeral")),
        signal=data.get("signal"),
        metadata=data.get("signalMetadata"),
    )


@mutation("agentSessionUpdate")
def agent_session_update(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    session, data = own_session(s, caller, args["id"]), args["input"]
    issue_id, links = session["issueId"], list(session["externalLinks"])
    if "plan" in data:  # the schema says JSONObject; callers send the array that the guide describes
        plan = data["plan"]
        if plan is not None and not (
            isinstance(plan, list)
            and all(isinstance(p, dict) and p.get("content") and p.get("status") in PLAN_MARKS for p in plan)
        ):
            raise invalid("plan must be an array of {content, status}.")
        session["plan"] = plan
        s.note(
            issue_id,
            "plan: " + "".join(f"\n  [{PLAN_MARKS[p['status']]}] {p['content']}" for p in plan or []),
            session.id,
        )
    if "externalUrls" in data:
        links = list(data["externalUrls"] or [])
    if data.get("externalLink"):
        links = [{"label": "Open", "url": data["externalLink"]}]
    removed = set(data.get("removedExternalUrls") or []) | {u["url"] for u in data.get("addedExternalUrls") or []}
    links = [u for u in links if u["url"] not in removed] + list(data.get("addedExternalUrls") or [])
    for link in links:
        if link not in session["externalLinks"]:
            s.note(issue_id, f"session link: {link['label']} {link['url']}", session.id)
    session.update(externalLinks=links, updatedAt=iso(s.clock()))
    return "agentSession", session


@mutation("agentSessionCreateOnIssue")
def agent_session_create_on_issue(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    return own_new_session(s, caller, s.get("Issue", args["input"]["issueId"]), None, args["input"])


def own_new_session(
    s: LinearStandin, caller: Token, issue: Entity, source: Entity | None, data: Json
) -> tuple[str, Entity]:
    if not caller.user["app"]:
        raise forbidden("Only an app can create agent sessions")
    root = s.rows[source["parentId"] or source.id] if source else s._session_root(issue)
    session = s.open_session(issue, creator=None, comment=root, source=source, announce=s.announce_own_sessions)
    session["externalLinks"] = list(data.get("externalUrls") or [])
    return "agentSession", session


@mutation("issueUpdate")
def issue_update(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    issue, changes = s.get("Issue", args["id"]), dict(args["input"])
    added, removed = changes.pop("addedLabelIds", None) or [], changes.pop("removedLabelIds", None) or []
    labels = changes.get("labelIds") or ([] if "labelIds" in changes else issue["labelIds"])
    labels = [i for i in dict.fromkeys([*labels, *added]) if i not in removed]
    if labels != issue["labelIds"]:
        s.check_labels(labels)
        changes["labelIds"] = labels
    for key, kind in (
        ("stateId", "WorkflowState"),
        ("assigneeId", "User"),
        ("delegateId", "User"),
        ("projectId", "Project"),
        ("parentId", "Issue"),
    ):
        if changes.get(key):
            changes[key] = s.get(kind, changes[key]).id
    unknown = set(changes) - set(issue)
    if unknown:
        raise s.not_imitated(f"IssueUpdateInput.{sorted(unknown)[0]}")
    s.update_issue(issue, caller.user, changes)
    return "issue", issue


@mutation("issueLabelCreate")
def issue_label_create(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    data = {k: v for k, v in args["input"].items() if v is not None}
    data["id"] = s.client_id(data.get("id"), "IssueLabel")
    if any(
        row["name"].lower() == data["name"].lower()
        and row["parentId"] == data.get("parentId")
        and row["teamId"] == data.get("teamId")
        for row in s.tables["IssueLabel"].values()
    ):
        raise Refused("Duplicate label name", f"A label named {data['name']} already exists.")
    if data.get("parentId"):
        s.get("IssueLabel", data["parentId"])["isGroup"] = True
    return "issueLabel", s.create_label(caller.user, **data)


@mutation("commentCreate", "write", "comments:create")
def comment_create(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    data = args["input"]
    parent = s.get("Comment", data["parentId"]) if data.get("parentId") else None
    if not data.get("body") or not (data.get("issueId") or parent):
        raise invalid("a comment needs a body and an issueId or parentId.")
    if data.get("createAsUser") and not caller.user["app"]:
        raise invalid("createAsUser is available to apps only.")
    issue = s.get("Issue", data["issueId"]) if data.get("issueId") else s.rows[parent["issueId"]]  # type: ignore[index]
    row = s.create_comment(
        issue, data["body"], caller.user, parent=parent, row_id=s.client_id(data.get("id"), "Comment")
    )
    s.note(issue.id, f"comment by {caller.user['name']}: {data['body']}")
    return "comment", row


@mutation("commentUpdate")
def comment_update(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    row, body = s.get("Comment", args["id"]), args["input"].get("body")
    if row["userId"] != caller.user.id:
        raise forbidden("Only the author can edit a comment")
    before = {"body": row["body"], "updatedAt": row["updatedAt"], "editedAt": row["editedAt"]}
    now = iso(s.clock())
    row.update(body=body or row["body"], updatedAt=now, editedAt=row["editedAt"] if args.get("skipEditedAt") else now)
    issue = s.rows[row["issueId"]]
    s._emit_data(
        "Comment",
        "update",
        s.comment_data(row),
        caller.user,
        issue["teamId"],
        url=s.comment_url(row),
        updatedFrom=before,
    )
    return "comment", row


def attach(s: LinearStandin, caller: Token, data: Json, **fields: Any) -> tuple[str, Entity]:
    """DOC: one attachment per issue and url; creating it again updates it."""
    issue = s.get("Issue", data["issueId"])
    fields = {
        "title": data.get("title") or data["url"],
        "subtitle": data.get("subtitle"),
        "metadata": data.get("metadata") or {},
        "source": None,
        "sourceType": "api",
        "groupBySource": bool(data.get("groupBySource")),
    } | fields
    row = next(
        (a for a in s.tables["Attachment"].values() if a["issueId"] == issue.id and a["url"] == data["url"]), None
    )
    action = "update" if row else "create"
    if row is None:
        row = s._add(
            "Attachment",
            s.client_id(data.get("id"), "Attachment"),
            issueId=issue.id,
            url=data["url"],
            creatorId=caller.user.id,
            originalIssueId=None,
            **fields,
        )
        s.note(issue.id, f"attachment ({fields['sourceType']}): {fields['title']} {data['url']}")
    row.update(fields, updatedAt=iso(s.clock()))
    s._emit_data("Attachment", action, {k: v for k, v in row.items() if k[0] != "_"}, caller.user, issue["teamId"])
    return "attachment", row


@mutation("attachmentLinkURL")
def attachment_link_url(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    return attach(s, caller, args)


@mutation("attachmentLinkGitHubPR")
def attachment_link_github_pr(s: LinearStandin, caller: Token, args: Json) -> tuple[str, Entity]:
    """ASSUMED: needs the workspace's GitHub integration, which then runs the team's git automation."""
    match = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/pull/(\d+)", args["url"])
    if match is None:
        raise invalid("url must be the URL of a GitHub pull request.")
    if not s.github_integration:
        raise Refused("Integration not found", "GitHub is not connected to this workspace.")
    title = args.get("title") or f"{match[1]}#{match[2]}"
    result = attach(
        s,
        caller,
        {**args, "title": title},
        sourceType="github",
        metadata={"url": args["url"], "number": int(match[2]), "repository": match[1], "status": "open"},
    )
    s.git_event(args["issueId"], "review")
    return result
