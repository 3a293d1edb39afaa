"""Finds what no webhook brought, by asking Linear; the only source when the relay has no public address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from delegate.linear.operations import LABELLED, SESSIONS
from delegate.linear.payloads import STOP_SIGNAL, WebhookKind, parse_webhook
from delegate.linear.records import LinearConnection
from delegate.relay.linear.label_poll import comment_events, find_label_event, look_since
from delegate.relay.linear.link import INBOX_KEY, LinearLink
from delegate.store.database import Connection
from delegate.store.linear.connections import note_poll
from delegate.store.linear.inbox import keep_delivery
from delegate.store.linear.sessions import get_session, sessions_of_issue

POLL_EVERY = timedelta(seconds=10)  # without webhooks
RECONCILE_EVERY = timedelta(minutes=2)  # beside webhooks: 30 requests an hour
WEBHOOKS_COUNT = timedelta(hours=1)  # after a delivery, webhooks count as working for so long
OVERLAP = timedelta(minutes=5)  # of two polls: a session may have changed while the last one ran
PAGES_MAX = 10  # of 50 sessions
ENDED = frozenset({"complete", "error"})
Json = dict[str, Any]  # Any: an answer of Linear


class Poll:
    """Puts what it finds into the inbox, as if a webhook had brought it: the same key, so that one of both counts."""

    def __init__(self, link: LinearLink) -> None:
        self.link = link
        self._next_at: datetime | None = None
        self._connected_at: datetime | None = None  # of the connection that was asked last

    async def run(self, now: datetime) -> int:
        connection = await self.link.connection()
        is_new = connection is not None and connection.connected_at != self._connected_at
        if connection is None or (not is_new and self._next_at is not None and now < self._next_at):
            return 0
        self._connected_at = connection.connected_at
        self._next_at = now + poll_interval(connection, now)
        if connection.has_sessions:
            nodes = await self._changed_sessions(connection)
            own = [node for node in nodes if node["appUser"]["id"] == connection.user_id and node.get("issue")]
            write = partial(self._keep, nodes=own, connection_info=connection, now=now)
        else:
            since = look_since(connection)
            answer = await self.link.call(LABELLED, {"since": since.isoformat()})
            write = partial(self._keep_labelled, answer=answer, connection_info=connection, now=now)
        found = await self.link.relay.database.write("linear.poll", write)
        if found:
            self.link.relay.hub.notify_key(INBOX_KEY)
        return 0

    async def _changed_sessions(self, connection: LinearConnection) -> list[Json]:
        """Return the first page of sessions, and the next ones if they changed since the last poll."""
        since, nodes, after = (connection.polled_at or connection.connected_at) - OVERLAP, [], None
        for _ in range(PAGES_MAX):
            page = (await self.link.call(SESSIONS, {"after": after}))["agentSessions"]
            nodes += page["nodes"]
            after = page["pageInfo"]["endCursor"]
            if not page["pageInfo"]["hasNextPage"] or datetime.fromisoformat(nodes[-1]["updatedAt"]) < since:
                break
        return nodes

    def _keep(self, connection: Connection, nodes: list[Json], connection_info: LinearConnection, now: datetime) -> int:
        note_poll(connection, now)
        found = 0
        for node in nodes:
            is_known = get_session(connection, node["id"]) is not None
            for payload in missed_events(node, connection_info, now, is_known=is_known):
                found += _keep_event(connection, payload, now)
        return found

    def _keep_labelled(
        self, connection: Connection, answer: Json, connection_info: LinearConnection, now: datetime
    ) -> int:
        note_poll(connection, now)
        since = look_since(connection_info)
        started = [
            find_label_event(node, sessions_of_issue(connection, node["id"]), since)
            for node in answer["issues"]["nodes"]
        ]
        said = comment_events(answer["comments"]["nodes"])
        signed = {
            "organizationId": connection_info.organization_id,
            "webhookTimestamp": int(now.timestamp() * 1000),
        }
        return sum(_keep_event(connection, {**event, **signed}, now) for event in [*started, *said] if event)


def _keep_event(connection: Connection, payload: Json, now: datetime) -> bool:
    body = json.dumps(payload).encode()
    webhook = parse_webhook(body)
    return keep_delivery(connection, delivery_id=None, key=webhook.key, name=webhook.name, body=body, now=now)


def poll_interval(connection: LinearConnection, now: datetime) -> timedelta:
    has_webhooks = connection.delivered_at is not None and now - connection.delivered_at < WEBHOOKS_COUNT
    return RECONCILE_EVERY if has_webhooks else POLL_EVERY


def missed_events(node: Json, connection: LinearConnection, now: datetime, *, is_known: bool) -> Iterator[Json]:
    """Pure: the webhooks that this session must have caused: its creation, and what people wrote into it."""
    if not is_known and node["status"] in ENDED:
        return
    if not is_known:
        yield _payload(node, connection, now, WebhookKind.SESSION_CREATED)
    for activity in sorted(_prompts(node, connection), key=lambda one: str(one["createdAt"])):
        said = {
            "id": activity["id"],
            "signal": activity.get("signal"),
            "userId": (activity.get("user") or {}).get("id"),
            "content": activity["content"],
        }
        yield {**_payload(node, connection, now, WebhookKind.SESSION_PROMPTED), "agentActivity": said}


def _prompts(node: Json, connection: LinearConnection) -> list[Json]:
    """What people said; the first prompt of a session repeats the comment that created it."""
    return [
        one
        for one in node["activities"]["nodes"]
        if (one.get("user") or {}).get("id") != connection.user_id
        and ((one.get("content") or {}).get("body") or one.get("signal") == STOP_SIGNAL)
    ]


def _payload(node: Json, connection: LinearConnection, now: datetime, kind: WebhookKind) -> Json:
    event, _, action = kind.partition(".")
    return {
        "type": event,
        "action": action,
        "organizationId": connection.organization_id,
        "webhookTimestamp": int(now.timestamp() * 1000),
        "agentSession": {"id": node["id"], "issueId": node["issue"]["id"]},
    }
