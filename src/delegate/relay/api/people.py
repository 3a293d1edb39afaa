"""The endpoints for people, tokens and the audit log."""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from delegate import __version__
from delegate.errors import Forbidden, NoSuchAccessToken, NoSuchPerson
from delegate.intake import people
from delegate.intake.people import IssuedToken, TokenTerms
from delegate.model import PERSON_NAME, AccessToken, AccessTokenId, Person, Role
from delegate.relay.access import ADMINS, Holder
from delegate.relay.auth import Caller, caller_of, require_access
from delegate.relay.problems import PROBLEMS
from delegate.relay.requests import ID, JsonBody, check_query, relay_of
from delegate.relay.views import next_cursor, parse_page_cursor, respond, view_of
from delegate.store.people import list_access_tokens, list_people, page_of_audit, person_named
from delegate.tokens import PERSON_PREFIX, token_for_request
from delegate.wire.people import (
    AccessTokenRequest,
    AccessTokensView,
    AccessTokenView,
    AuditCursor,
    AuditEntryView,
    AuditView,
    DisabledPersonView,
    EmptyRequest,
    MeView,
    NewAccessTokenView,
    NewPersonView,
    PeopleView,
    PersonName,
    PersonRequest,
    PersonView,
    RoleRequest,
)

router = APIRouter(prefix="/api", dependencies=[Depends(require_access), Depends(check_query)], responses=PROBLEMS)
PersonBody = Annotated[PersonRequest, Depends(JsonBody(PersonRequest))]
RoleBody = Annotated[RoleRequest, Depends(JsonBody(RoleRequest))]
TokenBody = Annotated[AccessTokenRequest, Depends(JsonBody(AccessTokenRequest))]
EmptyBody = Annotated[EmptyRequest, Depends(JsonBody(EmptyRequest))]

KINDS: dict[Holder, Literal["owner", "agent"]] = {Holder.OWNER: "owner", Holder.AGENT: "agent"}


async def person_in_path(person: str) -> str:
    if re.fullmatch(PERSON_NAME, person) is None:
        raise NoSuchPerson(name=person)
    return person


async def token_in_path(token_id: str) -> AccessTokenId:
    if ID.fullmatch(token_id) is None:
        raise NoSuchAccessToken(token_id=token_id)
    return AccessTokenId(token_id)


PersonInPath = Annotated[str, Depends(person_in_path)]
TokenInPath = Annotated[AccessTokenId, Depends(token_in_path)]


@router.get("/me", response_model=MeView)
async def show_me(request: Request) -> Response:
    """Shows who the token belongs to."""
    return respond(me_view(caller_of(request)))


@router.post("/people", status_code=201, response_model=NewPersonView)
async def add_person(request: Request, body: PersonBody) -> Response:
    """Adds a user with a first token, which is shown only in this response."""
    relay, by = relay_of(request), caller_of(request).actor
    now = relay.now()
    new = people.new_person(body.name, email=body.email, role=Role(body.role), now=now)
    secret = token_for_request(PERSON_PREFIX, relay.token_hash, body.request_key, "user.add", body.name)
    terms = TokenTerms(name=f"first of {body.name}", secret=secret, days=body.expires_in_days)
    issued = await people.add_person(relay.database, new, terms, by)
    return respond(NewPersonView(person=person_view(issued.person), token=issued_view(issued, now)), 201)


@router.get("/people", response_model=PeopleView)
async def show_people(request: Request) -> Response:
    found = await relay_of(request).database.read(list_people)
    return respond(PeopleView(people=[person_view(person) for person in found]))


@router.post("/people/{person}/disable", response_model=DisabledPersonView)
async def disable_person(request: Request, person: PersonInPath, _body: EmptyBody) -> Response:
    """Ends all tokens of the user at once; the runs of their schedules are refused, and their runners drain."""
    relay, by = relay_of(request), caller_of(request).actor
    disabled = await people.disable_person(relay.database, person, by, relay.now())
    left = {"tasks": disabled.tasks, "schedules": disabled.schedules, "runners": list(disabled.runners)}
    return respond(DisabledPersonView.model_validate({**person_view(disabled.person).model_dump(), **left}))


@router.post("/people/{person}/enable", response_model=PersonView)
async def enable_person(request: Request, person: PersonInPath, _body: EmptyBody) -> Response:
    relay, by = relay_of(request), caller_of(request).actor
    return respond(person_view(await people.enable_person(relay.database, person, by, relay.now())))


@router.post("/people/{person}/role", response_model=PersonView)
async def set_role(request: Request, person: PersonInPath, body: RoleBody) -> Response:
    relay, by = relay_of(request), caller_of(request).actor
    return respond(person_view(await people.set_role(relay.database, person, Role(body.role), by, relay.now())))


@router.post("/tokens", status_code=201, response_model=NewAccessTokenView)
async def create_token(request: Request, body: TokenBody) -> Response:
    """Creates a token, which is shown only in this response."""
    relay, caller = relay_of(request), caller_of(request)
    now = relay.now()
    named = (caller.actor.name, body.person or "", body.name)
    secret = token_for_request(PERSON_PREFIX, relay.token_hash, body.request_key, "token.create", *named)
    terms = TokenTerms(name=body.name, secret=secret, days=body.expires_in_days)
    issued = await people.create_token(
        relay.database, terms, person=body.person, by=caller.actor, is_admin=is_admin(caller), now=now
    )
    return respond(issued_view(issued, now), 201)


@router.get("/tokens", response_model=AccessTokensView)
async def show_tokens(request: Request, person: Annotated[PersonName | None, Query()] = None) -> Response:
    """Lists the caller's tokens; for admins, those of one user or of all."""
    relay, caller = relay_of(request), caller_of(request)
    whose = caller.person if person is None else await relay.database.read(partial(person_named, name=person))
    if person is not None and whose is None and is_admin(caller):
        raise NoSuchPerson(name=person)
    if not is_admin(caller) and (whose is None or whose.id != caller.actor.person_id):
        raise Forbidden(what="the tokens of others; that is for admins")
    only = None if is_admin(caller) and person is None else whose
    found = await relay.database.read(partial(list_access_tokens, person_id=None if only is None else only.id))
    now = relay.now()
    return respond(AccessTokensView(tokens=[token_view(token, name, now) for token, name in found]))


@router.post("/tokens/{token_id}/revoke", response_model=AccessTokenView)
async def revoke_token(request: Request, token_id: TokenInPath, _body: EmptyBody) -> Response:
    relay, caller = relay_of(request), caller_of(request)
    now = relay.now()
    token, person = await people.revoke_token(
        relay.database, token_id, by=caller.actor, is_admin=is_admin(caller), now=now
    )
    return respond(token_view(token, person.name, now))


@router.get("/audit", response_model=AuditView)
async def show_audit(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[AuditCursor | None, Query()] = None,
) -> Response:
    """Lists who did what, newest first."""
    before = parse_page_cursor(cursor)
    found = await relay_of(request).database.read(partial(page_of_audit, before=before, limit=limit))
    following = next_cursor("a", [(entry.id, entry) for entry in found], limit)
    return respond(AuditView(entries=[view_of(AuditEntryView, entry) for entry in found], next=following))


def is_admin(caller: Caller) -> bool:
    return caller.holder in ADMINS


def me_view(caller: Caller) -> MeView:
    person, token = caller.person, caller.token
    role = Role.ADMIN if caller.holder is Holder.OWNER else None if person is None else person.role
    return MeView(
        kind="person" if person is not None else KINDS.get(caller.holder, "runner"),
        name=caller.actor.name,
        role=role,
        token_name=None if token is None else token.name,
        expires_at=None if token is None else token.expires_at,
        relay_version=__version__,
    )


def person_view(person: Person) -> PersonView:
    return view_of(PersonView, person, person_id=person.id)


def token_view(token: AccessToken, person: str, now: datetime) -> AccessTokenView:
    is_over = token.expires_at is not None and token.expires_at <= now
    return view_of(
        AccessTokenView,
        token,
        token_id=token.id,
        person=person,
        status="revoked" if token.revoked_at is not None else "expired" if is_over else "valid",
    )


def issued_view(issued: IssuedToken, now: datetime) -> NewAccessTokenView:
    shown = token_view(issued.token, issued.person.name, now)
    return NewAccessTokenView(**shown.model_dump(), token=issued.secret)
