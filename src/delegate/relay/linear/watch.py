"""Looks for what no webhook told: new labels, and the end, edits and blockers of the issues in work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from delegate.linear.issues import CLOSED_TYPES, hash_text, read_label
from delegate.linear.operations import NEW_LABELS, WATCHED
from delegate.linear.payloads import BLOCKERS, parse_webhook
from delegate.linear.records import IssueSession, LinearConnection
from delegate.linear.tags import is_trigger
from delegate.relay.linear.link import INBOX_KEY, LinearLink
from delegate.relay.linear.poll import poll_interval
from delegate.store.database import Connection
from delegate.store.graph import waiting_for_issues
from delegate.store.linear.inbox import keep_delivery
from delegate.store.linear.sessions import open_sessions, sessions_of_issue

WATCH_EVERY = timedelta(seconds=30)  # without webhooks; beside them, as often as the poll
WATCHED_AT_ONCE = 40  # issues in one request
LABEL_OVERLAP = timedelta(minutes=10)  # of two looks for labels: Linear may show a change late
LABELS_BACK = timedelta(days=7)  # of the first look after a start
TRIGGER_NAMES = [{"name": {"startsWithIgnoreCase": prefix}} for prefix in ("delegate:", "delego:")]
Json = dict[str, Any]  # Any: an answer of Linear


class Watch:
    """Puts what it finds into the inbox, as if a webhook had brought it."""

    def __init__(self, link: LinearLink) -> None:
        self.link = link
        self._next_at: datetime | None = None
        self._labels_since: datetime | None = None

    async def run(self, now: datetime) -> int:
        connection = await self.link.connection()
        if connection is None or (self._next_at is not None and now < self._next_at):
            return 0
        self._next_at = now + max(WATCH_EVERY, poll_interval(connection, now))
        database = self.link.relay.database
        ids = sorted({session.issue_id for session in await database.read(open_sessions)})
        for start in range(0, len(ids), WATCHED_AT_ONCE):
            answer = await self.link.call(WATCHED, {"ids": ids[start : start + WATCHED_AT_ONCE]})
            keep = partial(_keep_changes, nodes=answer["issues"]["nodes"], info=connection, now=now)
            if await database.write("linear.watch", keep):
                self.link.relay.hub.notify_key(INBOX_KEY)
        if connection.has_sessions:
            await self._look_for_labels(connection, now)
        return 0

    async def _look_for_labels(self, connection: LinearConnection, now: datetime) -> None:
        since = max(connection.connected_at, self._labels_since or now - LABELS_BACK)
        answer = await self.link.call(NEW_LABELS, {"since": since.isoformat(), "names": TRIGGER_NAMES})
        keep = partial(_keep_labels, nodes=answer["issues"]["nodes"], info=connection, now=now)
        if await self.link.relay.database.write("linear.watch", keep):
            self.link.relay.hub.notify_key(INBOX_KEY)
        self._labels_since = now - LABEL_OVERLAP


def _keep_changes(connection: Connection, nodes: Sequence[Json], info: LinearConnection, now: datetime) -> int:
    waiting = {task.id: blockers for task, blockers in waiting_for_issues(connection)}
    found = 0
    for node in nodes:
        sessions = [one for one in sessions_of_issue(connection, node["id"]) if one.ended_at is None]
        blockers = [blocker.id for one in sessions if one.task_id in waiting for blocker in waiting[one.task_id]]
        for changes in missed_changes(node, sessions, blockers, info):
            data = {"id": node["id"], "updatedAt": node["updatedAt"]}
            found += _keep(connection, {"data": data, "updatedFrom": changes}, info, now)
    return found


def _keep_labels(connection: Connection, nodes: Sequence[Json], info: LinearConnection, now: datetime) -> int:
    found = 0
    for node in nodes:
        added = None if sessions_of_issue(connection, node["id"]) else find_added_label(node, info)
        if added is not None:
            others = [one["id"] for one in node["labels"]["nodes"] if one["id"] not in added["addedLabelIds"]]
            data = {"id": node["id"], "updatedAt": added["createdAt"]}
            change = {"actor": {"id": added["actorId"]}, "data": data, "updatedFrom": {"labelIds": others}}
            found += _keep(connection, change, info, now)
    return found


def _keep(connection: Connection, change: Json, info: LinearConnection, now: datetime) -> bool:
    head = {"type": "Issue", "action": "update", "organizationId": info.organization_id}
    body = json.dumps({**head, "webhookTimestamp": int(now.timestamp() * 1000), **change}).encode()
    known = parse_webhook(body)
    return keep_delivery(connection, delivery_id=None, key=known.key, name=known.name, body=body, now=now)


def find_added_label(node: Json, connection: LinearConnection) -> Json | None:
    """Pure: the entry of the issue's history in which a label that asks for work was added, if it is still there."""
    triggers = {label.id for one in node["labels"]["nodes"] if is_trigger(label := read_label(one))}
    added = [
        entry
        for entry in node["history"]["nodes"]
        if triggers.intersection(entry.get("addedLabelIds") or ())
        and datetime.fromisoformat(entry["createdAt"]) > connection.connected_at
    ]
    return max(added, key=lambda entry: str(entry["createdAt"]), default=None)


def missed_changes(
    node: Json, sessions: Sequence[IssueSession], blockers: Sequence[str], connection: LinearConnection
) -> Iterator[Json]:
    """Pure: what happened to an issue in work, as the changes in a webhook."""
    relations = [one["issue"] for one in node["inverseRelations"]["nodes"] if one["type"] == "blocks"]
    still_open = {one["id"] for one in relations if one["state"]["type"] not in CLOSED_TYPES}
    is_taken_back = (node.get("delegate") or {}).get("id") != connection.user_id
    text_hash = hash_text(node["title"], node.get("description"))
    if node["state"]["type"] in CLOSED_TYPES:
        yield {"stateId": None}
    elif is_taken_back and any(one.is_delegated for one in sessions):
        yield {"delegateId": connection.user_id}
    else:
        if gone := sorted(set(blockers) - still_open):
            yield {BLOCKERS: gone}
        if any(one.task_id is not None and one.text_hash not in (None, text_hash) for one in sessions):
            yield {"description": text_hash}
