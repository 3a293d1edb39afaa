"""Finds, for a connection with an API key, labels that start work and comments that reply, without webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from delegate.linear.issues import read_label
from delegate.linear.payloads import WebhookKind
from delegate.linear.records import IssueSession, LinearConnection
from delegate.linear.tags import is_trigger

OVERLAP = timedelta(minutes=5)  # a change may be visible late, and the clocks may differ; repeats are recognised
CLOCK_SKEW = timedelta(minutes=1)  # a label is new if it is this much newer than the last session of its issue
Json = dict[str, Any]  # Any: an answer of Linear


def look_since(connection: LinearConnection) -> datetime:
    """Pure: labels that are older than the connection start nothing."""
    last = connection.polled_at or connection.connected_at
    return max(last - OVERLAP, connection.connected_at)


def find_label_event(node: Json, sessions: list[IssueSession], since: datetime) -> Json | None:
    """Pure: the webhook that a label must have caused, unless it is old or has started a session."""
    triggers = {label["id"] for label in node["labels"]["nodes"] if is_trigger(read_label(label))}
    created = {"createdAt": node["createdAt"], "actorId": (node["creator"] or {}).get("id")}
    changes = [one for one in node["history"]["nodes"] if triggers & set(one["addedLabelIds"] or ())]
    last = max([created, *changes], key=lambda one: str(one["createdAt"]))
    added_at = datetime.fromisoformat(last["createdAt"])
    if not triggers or added_at < since or any(added_at < one.created_at + CLOCK_SKEW for one in sessions):
        return None
    return {
        **_head(WebhookKind.ISSUE_UPDATED),
        "actor": {"id": last["actorId"]},
        "data": {"id": node["id"], "updatedAt": last["createdAt"]},
        "updatedFrom": {"labelIds": []},
    }


def comment_events(nodes: list[Json]) -> Iterator[Json]:
    """Pure: the webhooks that comments have caused, oldest first."""
    for node in sorted(nodes, key=lambda one: str(one["createdAt"])):
        author = (node["user"] or {}).get("id")
        data = {
            "id": node["id"],
            "body": node["body"],
            "updatedAt": node["createdAt"],
            "userId": author,
            "parentId": (node["parent"] or {}).get("id"),
            "issueId": (node["issue"] or {}).get("id"),
        }
        yield {**_head(WebhookKind.COMMENT_CREATED), "actor": {"id": author}, "data": data}


def _head(kind: WebhookKind) -> Json:
    name, _, action = kind.partition(".")
    return {"type": name, "action": action}
