"""`POST /webhooks/linear`: checks the signature, stores the delivery, responds. The work is done afterwards."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from delegate.errors import BadPayload, BadSignature, UnsupportedMedia
from delegate.linear.payloads import Webhook, is_signed, parse_webhook
from delegate.linear.records import LinearConnection
from delegate.relay.linear.link import INBOX_KEY, LinearLink
from delegate.relay.requests import check_content_type
from delegate.store.database import Connection
from delegate.store.linear.connections import note_delivery
from delegate.store.linear.inbox import keep_delivery

DELIVERY_ID_MAX = 100


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
    webhook = parse_webhook(body)
    reason = find_ignored(webhook, connection)
    if reason is None:
        given = request.headers.get("linear-delivery", "")[:DELIVERY_ID_MAX] or None
        write = partial(_keep, webhook=webhook, body=body, delivery_id=given, now=link.relay.now())
        reason = None if await link.relay.database.write("linear.receive", write) else "it was received before"
    if reason is not None:
        return JSONResponse({"status": "ignored", "why": reason})
    link.relay.hub.notify_key(INBOX_KEY)
    return JSONResponse({"status": "accepted"})


def find_ignored(webhook: Webhook, connection: LinearConnection) -> str | None:
    """Pure: return why a signed webhook needs no work, or None. The owner of an API key acts under the same name."""
    if webhook.kind is None:
        return f"{webhook.name} needs no action"
    if webhook.organization_id != connection.organization_id:
        return "it is for another workspace"
    if connection.has_sessions and webhook.actor_ids & {connection.user_id, connection.client_id}:
        return "Delegate caused it itself"
    return None


def _keep(connection: Connection, webhook: Webhook, body: bytes, delivery_id: str | None, now: datetime) -> bool:
    note_delivery(connection, now)
    return keep_delivery(connection, delivery_id=delivery_id, key=webhook.key, name=webhook.name, body=body, now=now)
