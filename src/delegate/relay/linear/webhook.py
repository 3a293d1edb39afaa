"""`POST /webhooks/linear`: checks the signature, stores the delivery, responds. The work is done afterwards."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from delegate.errors import BadPayload, BadSignature, UnsupportedMedia, excerpt
from delegate.linear.payloads import FOLLOWED, Webhook, WebhookKind, is_signed, parse_webhook
from delegate.linear.records import LinearConnection
from delegate.relay.linear.link import INBOX_KEY, LinearLink
from delegate.relay.requests import check_content_type
from delegate.store.linear.connections import note_delivery
from delegate.store.linear.inbox import keep_delivery

DELIVERY_ID_MAX = 100
NOTE_EVERY = timedelta(minutes=1)  # between two notes that webhooks arrive
NEED_SESSION = frozenset({WebhookKind.SESSION_CREATED, WebhookKind.SESSION_PROMPTED})
NEED_ISSUE = frozenset({WebhookKind.ISSUE_UPDATED, WebhookKind.COMMENT_CREATED, WebhookKind.UNASSIGNED})


async def receive_webhook(link: LinearLink, request: Request) -> Response:
    check_content_type(request)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia(given=request.headers["content-encoding"])
    try:
        body = await request.body()
    except ClientDisconnect as error:
        raise BadPayload(why="it ended too early") from error
    connection = await link.connection()
    secrets = connection.secrets.webhook_secrets if connection else ()
    if connection is None or not is_signed(body, request.headers.getlist("linear-signature"), secrets):
        raise BadSignature
    webhook, now = parse_webhook(body), link.relay.now()
    if connection.delivered_at is None or now - connection.delivered_at > NOTE_EVERY:
        await link.relay.database.write("linear.note", partial(note_delivery, now=now))
        await link.reload()
    reason = find_ignored(webhook, connection)
    if reason is None:
        given = request.headers.get("linear-delivery", "")[:DELIVERY_ID_MAX] or None
        write = partial(keep_delivery, delivery_id=given, key=webhook.key, name=webhook.name, body=body, now=now)
        reason = None if await link.relay.database.write("linear.receive", write) else "it was received before"
    if reason is not None:
        return JSONResponse({"status": "ignored", "why": reason})
    link.relay.hub.notify_key(INBOX_KEY)
    return JSONResponse({"status": "accepted"})


def find_ignored(webhook: Webhook, connection: LinearConnection) -> str | None:
    """Pure: return why a signed webhook needs no work, or None. The owner of an API key acts under the same name."""
    if webhook.kind is None:
        return f"{excerpt(webhook.name)} needs no action"
    if webhook.organization_id != connection.organization_id:
        return "it is for another workspace"
    if connection.has_sessions and webhook.actor_ids & {connection.user_id, connection.client_id}:
        return "Delegate caused it itself"
    if (webhook.kind in NEED_SESSION and not webhook.session_id) or (
        webhook.kind in NEED_ISSUE and not webhook.issue_id
    ):
        return "it does not say what it is about"
    return _find_irrelevance(webhook, connection)


def _find_irrelevance(webhook: Webhook, connection: LinearConnection) -> str | None:
    if webhook.kind is WebhookKind.COMMENT_CREATED and connection.has_sessions:
        return "what people write in a session arrives in another way"
    if webhook.kind is WebhookKind.ISSUE_UPDATED and not webhook.changed & FOLLOWED:
        return "no change that matters"
    return None
