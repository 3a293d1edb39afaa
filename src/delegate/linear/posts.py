"""Builds what Delegate posts in a session. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from uuid import UUID

from delegate.linear.issues import TrackedIssue
from delegate.linear.records import IssueSession, NewPost, PendingQuestion, PostKind, PostPriority, Scope

THIS_ISSUE = "This issue only"
LOG_LINES = 20  # in the comment of a session that is one


def stable_id(*parts: object) -> str:
    """Return an id for Linear that is the same for the same thing, so that a repeat creates nothing."""
    digest = sha256("\n".join(str(part) for part in parts).encode()).digest()
    return str(UUID(bytes=digest[:16], version=4))


def activity(session: IssueSession, key: str, kind: str, body: str, priority: PostPriority | None = None) -> NewPost:
    """A thought, a response or an error."""
    urgent = kind in ("response", "error")
    return NewPost(
        session_id=session.id,
        key=f"{session.id}/{key}",
        kind=PostKind.ACTIVITY,
        data={
            "id": stable_id(session.id, key),
            "content": {"type": kind, "body": body},
            "ephemeral": priority is PostPriority.EPHEMERAL,
        },
        priority=priority or (PostPriority.URGENT if urgent else PostPriority.NORMAL),
    )


def elicitation(session: IssueSession, key: str, question: PendingQuestion) -> NewPost:
    data: dict[str, object] = {
        "id": stable_id(session.id, key),
        "content": {"type": "elicitation", "body": question.text},
        "ephemeral": False,
    }
    if question.options:
        data |= {"signal": "select", "signalMetadata": {"options": [{"value": one} for one in question.options]}}
    return NewPost(
        session_id=session.id,
        key=f"{session.id}/{key}",
        kind=PostKind.ACTIVITY,
        data=data,
        priority=PostPriority.URGENT,
    )


def ask_scope(issue: TrackedIssue) -> PendingQuestion | None:
    """Ask whether to work on the open sub-issues, if there are any."""
    children = [one for one in issue.children if one.is_open]
    if not children:
        return None
    keys = ", ".join(one.key for one in children)
    text = f"{issue.key} has open sub-issues: {keys}. What should I work on?"
    options = (THIS_ISSUE, f"All {len(children)} sub-issues" if len(children) > 1 else "All: its sub-issue")
    return PendingQuestion(text=text, options=options, scope=Scope.ASKED)


def read_scope(text: str) -> Scope | None:
    """Return which of both options a reply chooses."""
    words = set(re.findall(r"\w+", text.lower()))
    if "all" in words:
        return Scope.ALL
    return Scope.ISSUE if words & {"this", "only"} else None


def ask_repository(candidates: Sequence[str]) -> PendingQuestion:
    if candidates:
        return PendingQuestion(text="Which repository is this issue for?", options=tuple(candidates))
    text = "Which repository is this issue for? Reply with its name, as in `owner/name`."
    return PendingQuestion(text=f"{text} `delegate linear map` sets it for a whole team or project.")


def comment_id(session_id: str) -> str:
    return stable_id(session_id, "comment")


def to_comment(session: IssueSession, posts: Sequence[NewPost]) -> tuple[IssueSession, list[NewPost]]:
    """Without an agent session, activities become the lines of one comment that is edited in place."""
    lines = [text for post in posts if (text := _line_of(post))]
    others = [post for post in posts if post.kind in (PostKind.STATE, PostKind.PULL_REQUEST)]
    if not lines:
        return session, others
    log = (*session.log, *lines)
    kept = log if len(log) <= LOG_LINES else (log[0], "…", *log[-LOG_LINES + 2 :])
    known = replace(session, log=kept)
    urgent = any(post.priority is PostPriority.URGENT for post in posts)
    comment = NewPost(
        session_id=session.id,
        key=f"{posts[-1].key}/comment",
        kind=PostKind.COMMENT,
        data={
            "id": comment_id(session.id),
            "issueId": session.issue_id,
            "body": "\n\n".join(kept),
        },
        priority=PostPriority.URGENT if urgent else PostPriority.NORMAL,
    )
    return known, [*others, comment]


def _line_of(post: NewPost) -> str:
    content = post.data.get("content")
    if post.kind is not PostKind.ACTIVITY or not isinstance(content, dict) or post.data.get("ephemeral"):
        return ""
    if content["type"] == "action":
        return f"{content['action']} {content['parameter']}: {content.get('result', '')}"
    options = post.data.get("signalMetadata")
    listed = options.get("options", []) if isinstance(options, dict) else []
    return "\n".join([str(content["body"]), *(f"- {option['value']}" for option in listed)])
