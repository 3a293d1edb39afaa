"""Adds and changes people and their tokens; every change is in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.errors import Forbidden, InvalidField, NoSuchAccessToken, NoSuchPerson, PersonExists
from delegate.model import (
    OWNER,
    TOKEN_DAYS,
    AccessToken,
    AccessTokenId,
    Actor,
    Person,
    PersonId,
    Role,
    new_access_token_id,
    new_person_id,
)
from delegate.store.database import Connection, Database
from delegate.store.people import (
    access_token_by_id,
    count_open_work,
    get_person,
    insert_access_token,
    insert_person,
    person_named,
    person_with_email,
    record_audit,
    revoke_access_token,
    token_holder,
    write_person,
)
from delegate.store.runners import lock_fleet, paired_by, set_orders
from delegate.tokens import hash_token

log = logging.getLogger(__name__)
PREFIX_SHOWN = 10  # characters of a token


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    token: AccessToken
    person: Person
    secret: str  # what the person types; not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class DisabledPerson:
    person: Person
    tasks: int  # that have not ended; they continue
    schedules: int  # that are active; their runs are refused
    runners: tuple[str, ...]  # that the person paired; they drain


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    name: str
    secret: str  # what the person types; the same if the request is repeated
    days: int | None = TOKEN_DAYS  # None: until it is revoked

    def check_own(self) -> None:
        """A token that makes another must not let its thief stay for longer."""
        if self.days is None or self.days > TOKEN_DAYS:
            why = f"of a token for yourself is at most {TOKEN_DAYS}; an admin can create a longer one"
            raise InvalidField(field="expiresInDays", why=why)


async def add_person(database: Database, new: Person, terms: TokenTerms, by: Actor) -> IssuedToken:
    """Add a person with a first token."""

    def write(connection: Connection) -> IssuedToken:
        if (earlier := _issued_before(connection, terms)) is not None:
            return earlier
        if new.name.lower() == OWNER.name:
            raise InvalidField(field="name", why="is that of the relay's owner; use another one")
        if person_named(connection, new.name) is not None:
            raise PersonExists(field="name", value=new.name)
        if new.email is not None and person_with_email(connection, new.email) is not None:
            raise PersonExists(field="email", value=new.email)
        insert_person(connection, new)
        record_audit(connection, by, "user.add", new.name, now=new.created_at, details={"role": new.role})
        return _issue(connection, new, terms, by, new.created_at)

    return await database.write("user.add", write)


def new_person(name: str, *, email: str | None, role: Role, now: datetime) -> Person:
    address = None if email is None else email.lower()
    return Person(id=new_person_id(), name=name, email=address, role=role, created_at=now)


async def disable_person(database: Database, name: str, by: Actor, now: datetime) -> DisabledPerson:
    """End all tokens of a person at once. Tasks continue, schedules start nothing, and the person's runners drain."""

    def write(connection: Connection) -> DisabledPerson:
        person = _get_person(connection, name)
        changed = _write_change(connection, "user.disable", person, replace(person, disabled_at=now), by, now)
        lock_fleet(connection)
        runners = paired_by(connection, person.id)
        for runner in runners:
            if runner.draining_at is None:
                set_orders(connection, replace(runner, draining_at=now))
                record_audit(connection, by, "runner.drain", runner.name, now=now)
        tasks, schedules = count_open_work(connection, person.id)
        names = tuple(runner.name for runner in runners)
        return DisabledPerson(person=changed, tasks=tasks, schedules=schedules, runners=names)

    disabled = await database.write("user.disable", write)
    log.info("user changed", extra={"person_id": disabled.person.id, "action": "user.disable"})
    return disabled


async def enable_person(database: Database, name: str, by: Actor, now: datetime) -> Person:
    return await _change(database, "user.enable", name, by, now, lambda person: replace(person, disabled_at=None))


async def set_role(database: Database, name: str, role: Role, by: Actor, now: datetime) -> Person:
    return await _change(database, "user.role", name, by, now, lambda person: replace(person, role=role))


async def _change(
    database: Database, action: str, name: str, by: Actor, now: datetime, change: Callable[[Person], Person]
) -> Person:
    def write(connection: Connection) -> Person:
        person = _get_person(connection, name)
        return _write_change(connection, action, person, change(person), by, now)

    changed = await database.write(action, write)
    log.info("user changed", extra={"person_id": changed.id, "action": action})
    return changed


def _write_change(
    connection: Connection, action: str, person: Person, changed: Person, by: Actor, now: datetime
) -> Person:
    """Write the person unless nothing has changed; returns the person as stored."""
    if (changed.role, changed.disabled_at is None) == (person.role, person.disabled_at is None):
        return person
    write_person(connection, changed)
    record_audit(connection, by, action, person.name, now=now, details={"role": changed.role})
    return changed


async def create_token(
    database: Database, terms: TokenTerms, *, person: str | None, by: Actor, is_admin: bool, now: datetime
) -> IssuedToken:
    """Issue a token for a person: for oneself, or, as an admin, for anybody."""

    def write(connection: Connection) -> IssuedToken:
        if (earlier := _issued_before(connection, terms)) is not None:
            return earlier
        whose = _get_own(connection, by) if person is None else _get_person(connection, person)
        if not is_admin:
            if whose.id != by.person_id:
                raise Forbidden(what="the tokens of others; that is for admins")
            terms.check_own()
        return _issue(connection, whose, terms, by, now)

    return await database.write("token.create", write)


def _issued_before(connection: Connection, terms: TokenTerms) -> IssuedToken | None:
    """Return what the same request has issued, if its response was lost."""
    found = token_holder(connection, hash_token(terms.secret))
    return None if found is None else IssuedToken(token=found[0], person=found[1], secret=terms.secret)


def _issue(connection: Connection, person: Person, terms: TokenTerms, by: Actor, now: datetime) -> IssuedToken:
    secret = terms.secret
    token = AccessToken(
        id=new_access_token_id(),
        person_id=person.id,
        name=terms.name,
        prefix=secret[:PREFIX_SHOWN],
        created_at=now,
        expires_at=None if terms.days is None else now + timedelta(days=terms.days),
    )
    insert_access_token(connection, token, token_hash=hash_token(secret))
    details = {"person": person.name, "name": token.name}
    record_audit(connection, by, "token.create", token.id, now=now, details=details)
    return IssuedToken(token=token, person=person, secret=secret)


async def revoke_token(
    database: Database, token_id: AccessTokenId, *, by: Actor, is_admin: bool, now: datetime
) -> tuple[AccessToken, Person]:
    """Revoke a token of one's own or, as an admin, of anybody. A revoked one stays as it is."""

    def write(connection: Connection) -> tuple[AccessToken, Person]:
        token = access_token_by_id(connection, token_id)
        if token is None or not (is_admin or token.person_id == by.person_id):
            raise NoSuchAccessToken(token_id=token_id)  # also of others: their ids are none of the caller's business
        person = get_person(connection, token.person_id)
        assert person is not None  # people are never deleted
        if not revoke_access_token(connection, token_id, now):
            return token, person
        details = {"person": person.name, "name": token.name}
        record_audit(connection, by, "token.revoke", token_id, now=now, details=details)
        return replace(token, revoked_at=now), person

    return await database.write("token.revoke", write)


def _get_person(connection: Connection, name: str) -> Person:
    person = person_named(connection, name)
    if person is None:
        raise NoSuchPerson(name=name)
    return person


def _get_own(connection: Connection, by: Actor) -> Person:
    person = None if by.person_id is None else get_person(connection, PersonId(by.person_id))
    if person is None:
        raise InvalidField(field="person", why="is missing; the relay's owner is not a user: say whose token it is")
    return person
