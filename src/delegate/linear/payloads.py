"""Verifies and parses webhooks. Linear adds fields, and sends a field without a value as null or not at all."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from delegate.errors import BadPayload

OLDEST, NEWEST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STOP_SIGNAL = "stop"
BLOCKERS = "blockers"  # among the changes that Delegate finds itself
DIGEST = re.compile(r"[0-9a-f]{64}")
Json = Mapping[str, Any]  # Any: a payload of another program


class WebhookKind(StrEnum):
    """The webhooks that Delegate acts on."""

    SESSION_CREATED = "AgentSessionEvent.created"
    SESSION_PROMPTED = "AgentSessionEvent.prompted"
    ISSUE_UPDATED = "Issue.update"
    COMMENT_CREATED = "Comment.create"
    UNASSIGNED = "AppUserNotification.issueUnassignedFromYou"
    APP_REVOKED = "OAuthApp.revoked"


KINDS: Mapping[str, WebhookKind] = {kind.value: kind for kind in WebhookKind}
EDITED = frozenset({"title", "description"})
FOLLOWED = frozenset({"labelIds", "delegateId", "stateId", BLOCKERS}) | EDITED  # the fields of an issue that matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    body: str
    origin: str  # the team's name, or "workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptActivity:
    """What a person wrote into a session."""

    id: str
    body: str
    signal: str | None
    user_id: str | None
    parent_id: str | None = None  # of a comment that replies to another


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    name: str  # type and action, as in `Issue.update`
    key: str  # from the signed body: the same for every delivery of one event
    sent_at: datetime
    organization_id: str
    actor_ids: frozenset[str]  # who caused it: the user, or the OAuth client
    session_id: str | None = None
    issue_id: str | None = None
    activity: PromptActivity | None = None
    guidance: tuple[Guidance, ...] = ()
    changed: frozenset[str] = frozenset()  # the fields of an issue that have another value now
    changed_at: datetime | None = None  # the time of that change
    old_label_ids: frozenset[str] = frozenset()
    comment: PromptActivity | None = None

    @property
    def kind(self) -> WebhookKind | None:
        return KINDS.get(self.name)

    @property
    def subject(self) -> str | None:
        """The issue or session that it is about."""
        return self.issue_id or self.session_id


def is_signed(body: bytes, signatures: Sequence[str], secrets: Sequence[str]) -> bool:
    """Whether the only signature is right for one of the secrets; two are valid while a secret is being replaced."""
    if len(signatures) != 1 or DIGEST.fullmatch(signatures[0]) is None:
        return False
    found = [hmac.compare_digest(sign(body, secret), signatures[0]) for secret in secrets]
    return any(found)


def sign(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def parse_webhook(body: bytes) -> Webhook:
    payload = _load(body)
    sent_at = _parse_milliseconds(payload.get("webhookTimestamp"))
    name = f"{_require_text(payload, 'type')}.{_require_text(payload, 'action')}"
    session, activity = _object(payload, "agentSession"), _object(payload, "agentActivity")
    data, notification = _object(payload, "data"), _object(payload, "notification")
    changes = _object(payload, "updatedFrom")
    is_comment = name == WebhookKind.COMMENT_CREATED
    issue_ids = (session.get("issueId"), notification.get("issueId"), data.get("issueId" if is_comment else "id"))
    return Webhook(
        name=name,
        key=_key(name, payload),
        sent_at=sent_at,
        organization_id=_text(payload, "organizationId") or "",
        actor_ids=_actors(payload, activity),
        session_id=_text(session, "id"),
        issue_id=next((value for value in issue_ids if isinstance(value, str)), None),
        activity=_prompt(activity, _object(activity, "content")) if activity else None,
        guidance=_guidance(payload),
        changed=frozenset(changes),
        changed_at=_parse_time(data.get("updatedAt")) if changes else None,
        old_label_ids=frozenset(_texts(changes.get("labelIds"))),
        comment=_prompt(data, data) if is_comment else None,
    )


def _load(body: bytes) -> Json:
    try:
        payload = json.loads(body.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadPayload(why="it is not JSON in UTF-8 with unique keys") from error
    if not isinstance(payload, dict):
        raise BadPayload(why="it is not an object")
    return payload


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = clean_pairs(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found


def clean_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: without what no database stores. Linear cuts texts, also between two surrogates."""
    return {name: _clean(value) for name, value in pairs}


def _clean(value: Any) -> Any:  # Any: a value of JSON
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if not isinstance(value, str) or (value.isascii() and "\x00" not in value):
        return value
    return value.replace("\x00", "").encode("utf-8", "replace").decode()


def _parse_milliseconds(value: object) -> datetime:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            at = EPOCH + value * MILLISECOND
        except OverflowError:
            at = EPOCH
        if OLDEST < at < NEWEST:
            return at
    raise BadPayload(why="webhookTimestamp is not a time in milliseconds")


def _parse_time(value: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _key(name: str, payload: Json) -> str:
    """Identify the event by signed fields: the delivery id is in a header, which is not signed."""
    session, activity = _object(payload, "agentSession"), _object(payload, "agentActivity")
    entity = _object(payload, "data") or _object(payload, "notification")
    changes = json.dumps(_object(payload, "updatedFrom"), sort_keys=True)
    if session:
        parts = [session.get("id"), activity.get("id")]
    else:
        parts = [entity.get("id"), entity.get("updatedAt"), None if entity else payload.get("createdAt"), changes]
    text = json.dumps([name, payload.get("organizationId"), *parts])
    return hashlib.sha256(text.encode()).hexdigest()


def _actors(payload: Json, activity: Json) -> frozenset[str]:
    found = (
        _object(payload, "actor").get("id"),
        activity.get("userId"),
        _object(payload, "notification").get("actorId"),
    )
    return frozenset(value for value in found if isinstance(value, str))


def _prompt(entity: Json, content: Json) -> PromptActivity | None:
    identifier = _text(entity, "id")
    if identifier is None:
        return None
    return PromptActivity(
        id=identifier,
        body=_text(content, "body") or "",
        signal=_text(entity, "signal"),
        user_id=_text(entity, "userId"),
        parent_id=_text(entity, "parentId"),
    )


def _guidance(payload: Json) -> tuple[Guidance, ...]:
    rules = payload.get("guidance")
    found = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return tuple(
        Guidance(body=body, origin=_text(_object(_object(rule, "origin"), "team"), "name") or "workspace")
        for rule in found
        if (body := _text(rule, "body"))
    )


def _object(payload: Json, name: str) -> Json:
    value = payload.get(name)
    return value if isinstance(value, dict) else {}


def _text(payload: Json, name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) else None


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _require_text(payload: Json, name: str) -> str:
    value = _text(payload, name)
    if not value:
        raise BadPayload(why=f"{name} is missing")
    return value
