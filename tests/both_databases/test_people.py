from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError
from tests.both_databases.scene import NOON, Scene

from delegate.model import AccessToken, AccessTokenId, Actor, Person, PersonId, Role
from delegate.relay.auth import is_valid
from delegate.store.database import Connection
from delegate.store.people import (
    delete_old_audit,
    insert_access_token,
    insert_person,
    page_of_audit,
    record_audit,
    revoke_access_token,
    token_holder,
)
from delegate.store.tables import audit

pytestmark = pytest.mark.anyio

MAREK = Person(id=PersonId("user-1"), name="marek", email="marek@example.com", role=Role.MEMBER, created_at=NOON)
TOKEN = AccessToken(
    id=AccessTokenId("token-1"),
    person_id=MAREK.id,
    name="laptop",
    prefix="dlg_abcdef",
    created_at=NOON,
    expires_at=NOON + timedelta(days=90),
)


async def test_a_token_is_found_by_its_hash_with_its_person(scene: Scene) -> None:
    def write(connection: Connection) -> None:
        insert_person(connection, MAREK)
        insert_access_token(connection, TOKEN, token_hash="h")

    await scene.database.write("people", write)

    assert await scene.database.read(lambda c: token_holder(c, "h")) == (TOKEN, MAREK)
    assert await scene.database.read(lambda c: token_holder(c, "other")) is None
    assert await scene.database.write("revoke", lambda c: revoke_access_token(c, TOKEN.id, NOON))
    assert not await scene.database.write("revoke", lambda c: revoke_access_token(c, TOKEN.id, NOON))
    found = await scene.database.read(lambda c: token_holder(c, "h"))
    assert found is not None
    assert not is_valid(*found, NOON)


async def test_audit_rows_are_added_and_paged_and_never_changed(scene: Scene) -> None:
    def write(connection: Connection) -> None:
        for number in range(3):
            at = NOON + timedelta(minutes=number)
            record_audit(connection, Actor(name="marek"), "cancel", f"task-{number}", now=at, details={"n": number})

    await scene.database.write("audit", write)

    page = await scene.database.read(lambda c: page_of_audit(c, before=None, limit=2))
    rest = await scene.database.read(lambda c: page_of_audit(c, before=page[-1].id, limit=2))
    assert [(entry.actor, entry.action, entry.subject, entry.details) for entry in [*page, *rest]] == [
        ("marek", "cancel", f"task-{number}", {"n": number}) for number in (2, 1, 0)
    ]
    with pytest.raises(DBAPIError, match="never change"):
        await scene.database.write("forge", lambda c: c.execute(update(audit).values(actor="x")))
    deleted = await scene.database.write(
        "forget", lambda c: delete_old_audit(c, before=NOON + timedelta(minutes=1), limit=10)
    )
    assert deleted == 1
