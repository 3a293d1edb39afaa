"""Queries on people, their tokens and the audit log; the caller owns the transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from delegate.model import AccessToken, AccessTokenId, Actor, AuditEntry, Person, PersonId, Role
from delegate.schedule.model import ScheduleState
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.tables import access_token, audit, from_row, has_state, person, schedule, task

# Used by every request of a person, and by every change: built once.
OF_HASH = (
    select(access_token, person.c.id.label("holder"), person.c.name.label("holder_name"), person.c.email, person.c.role)
    .add_columns(person.c.created_at.label("joined_at"), person.c.disabled_at)
    .join(person, person.c.id == access_token.c.person_id)
    .where(access_token.c.token_hash == bindparam("hash"))
)
INSERT_AUDIT = insert(audit)


def insert_person(connection: Connection, new: Person) -> None:
    connection.execute(insert(person).values(**asdict(new)))


def get_person(connection: Connection, person_id: PersonId) -> Person | None:
    row = connection.execute(select(person).where(person.c.id == person_id)).one_or_none()
    return None if row is None else to_person(row)


def person_named(connection: Connection, name: str) -> Person | None:
    """Find a person by name, in upper or lower case, and lock the row."""
    query = select(person).where(func.lower(person.c.name) == name.lower())
    row = connection.execute(query.with_for_update()).one_or_none()
    return None if row is None else to_person(row)


def person_with_email(connection: Connection, email: str) -> Person | None:
    row = connection.execute(select(person).where(person.c.email == email)).one_or_none()
    return None if row is None else to_person(row)


def list_people(connection: Connection) -> list[Person]:
    return [to_person(row) for row in connection.execute(select(person).order_by(person.c.name))]


def write_person(connection: Connection, changed: Person) -> None:
    """Write the role and whether the person is disabled."""
    values = {"role": changed.role, "disabled_at": changed.disabled_at}
    connection.execute(update(person).where(person.c.id == changed.id).values(values))


def count_open_work(connection: Connection, person_id: PersonId) -> tuple[int, int]:
    """Count the tasks of a person that have not ended, and the schedules that would start more."""
    is_open = task.c.state.in_([state for state in TaskState if state not in FINAL_TASK_STATES])
    tasks = select(func.count()).select_from(task).where(task.c.created_by == person_id, is_open)
    is_active = has_state(schedule, ScheduleState.ACTIVE)
    schedules = select(func.count()).select_from(schedule).where(schedule.c.created_by == person_id, is_active)
    return connection.execute(tasks).scalar_one(), connection.execute(schedules).scalar_one()


def insert_access_token(connection: Connection, new: AccessToken, *, token_hash: str) -> None:
    connection.execute(insert(access_token).values(token_hash=token_hash, **asdict(new)))


def token_holder(connection: Connection, token_hash: str) -> tuple[AccessToken, Person] | None:
    """Return the token and its person, whether or not they are still valid."""
    row = connection.execute(OF_HASH, {"hash": token_hash}).one_or_none()
    if row is None:
        return None
    holder = from_row(
        Person, row, id=PersonId(row.holder), name=row.holder_name, role=Role(row.role), created_at=row.joined_at
    )
    return to_access_token(row), holder


def access_token_by_id(connection: Connection, token_id: AccessTokenId) -> AccessToken | None:
    row = connection.execute(select(access_token).where(access_token.c.id == token_id)).one_or_none()
    return None if row is None else to_access_token(row)


def list_access_tokens(connection: Connection, person_id: PersonId | None) -> list[tuple[AccessToken, str]]:
    """Return the tokens of one person or of all, newest first, with the names of their people."""
    query = select(access_token, person.c.name.label("holder")).join(person, person.c.id == access_token.c.person_id)
    if person_id is not None:
        query = query.where(access_token.c.person_id == person_id)
    rows = connection.execute(query.order_by(access_token.c.created_at.desc()))
    return [(to_access_token(row), row.holder) for row in rows]


def revoke_access_token(connection: Connection, token_id: AccessTokenId, now: datetime) -> bool:
    query = update(access_token).where(access_token.c.id == token_id, access_token.c.revoked_at.is_(None))
    return connection.execute(query.values(revoked_at=now)).rowcount == 1


def touch_access_token(connection: Connection, token_id: AccessTokenId, now: datetime) -> None:
    connection.execute(update(access_token).where(access_token.c.id == token_id).values(last_used_at=now))


def record_audit(
    connection: Connection,
    actor: Actor,
    action: str,
    subject: str,
    *,
    now: datetime,
    details: Mapping[str, object] | None = None,
) -> None:
    """Record who did what. Call it in the transaction of the change. Details must not contain texts of a task."""
    row = {"at": now, "actor": actor.name, "action": action, "subject": subject, "details": dict(details or {})}
    connection.execute(INSERT_AUDIT, row)


def page_of_audit(connection: Connection, *, before: int | None, limit: int) -> list[AuditEntry]:
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.id < before)
    return [to_audit_entry(row) for row in connection.execute(query)]


def last_details(connection: Connection, action: str) -> dict[str, Any] | None:
    """Return the details of the last entry about this action."""
    query = select(audit.c.details).where(audit.c.action == action).order_by(audit.c.id.desc()).limit(1)
    found: dict[str, Any] | None = connection.execute(query).scalar_one_or_none()
    return found


def delete_old_audit(connection: Connection, *, before: datetime, limit: int) -> int:
    old = select(audit.c.id).where(audit.c.at < before).order_by(audit.c.at).limit(limit)
    return connection.execute(delete(audit).where(audit.c.id.in_(old.scalar_subquery()))).rowcount


def to_person(row: Row[Any]) -> Person:
    return from_row(Person, row, role=Role(row.role))


def to_access_token(row: Row[Any]) -> AccessToken:
    return from_row(AccessToken, row)


def to_audit_entry(row: Row[Any]) -> AuditEntry:
    return from_row(AuditEntry, row)
