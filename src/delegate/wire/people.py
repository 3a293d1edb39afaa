"""Requests and responses about people, their tokens and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StringConstraints

from delegate.model import PERSON_NAME, TOKEN_DAYS, TOKEN_DAYS_MAX, Role
from delegate.wire.basics import PATTERN_MESSAGES, Name, Wire

PERSON = f"^{PERSON_NAME}$"
EMAIL = r"^[^\s@\x00-\x1f\x7f]{1,100}@[A-Za-z0-9.-]{1,150}$"
PATTERN_MESSAGES |= {
    PERSON: "is not a valid name: use 1 to 64 letters, digits and ._@+-, starting with a letter or digit",
    EMAIL: "is not a valid address",
}
PersonName = Annotated[str, StringConstraints(pattern=PERSON)]
Email = Annotated[str, StringConstraints(pattern=EMAIL)]
RoleName = Literal["viewer", "member", "admin"]
Days = Annotated[StrictInt, Field(ge=1, le=TOKEN_DAYS_MAX)]
AuditCursor = Annotated[str, StringConstraints(pattern=r"^a[1-9][0-9]{0,17}$")]


class PersonRequest(Wire):
    name: PersonName
    email: Email | None = None
    role: RoleName = "member"
    expires_in_days: Days | None = TOKEN_DAYS  # null: never
    request_key: Name | None = None  # the same key twice is the same user and token


class RoleRequest(Wire):
    role: RoleName


class EmptyRequest(Wire):
    """Nothing needs to be said."""


class AccessTokenRequest(Wire):
    name: Name
    person: PersonName | None = None  # null: the caller
    expires_in_days: Days | None = TOKEN_DAYS  # null: never
    request_key: Name | None = None


class PersonView(Wire):
    person_id: str
    name: str
    email: str | None = None
    role: Role
    created_at: datetime
    disabled_at: datetime | None = None


class DisabledPersonView(PersonView):
    tasks: int  # that have not ended
    schedules: int
    runners: list[str]  # by name


class PeopleView(Wire):
    people: list[PersonView]


class AccessTokenView(Wire):
    token_id: str
    person: str
    name: str
    prefix: str
    status: Literal["valid", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class AccessTokensView(Wire):
    tokens: list[AccessTokenView]


class NewAccessTokenView(AccessTokenView):
    token: str  # shown only here


class NewPersonView(Wire):
    person: PersonView
    token: NewAccessTokenView


class MeView(Wire):
    kind: Literal["owner", "person", "agent", "runner"]
    name: str
    role: Role | None = None
    token_name: str | None = None
    expires_at: datetime | None = None
    relay_version: str


class AuditEntryView(Wire):
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, object]


class AuditView(Wire):
    entries: list[AuditEntryView]
    next: str | None = None
