from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from tests.both_databases.scene import NOON, Scene, fact, output

from delegate.config.settings import Settings
from delegate.model import AccessToken, AccessTokenId, Actor, EffectState, Mode, Person, PersonId, Role
from delegate.relay.auth import is_valid
from delegate.report.purge import purge
from delegate.report.retention import retain
from delegate.states import TaskState
from delegate.store.database import Connection
from delegate.store.people import (
    insert_access_token,
    insert_person,
    page_of_audit,
    record_audit,
    revoke_access_token,
    token_holder,
)
from delegate.store.tables import audit, event_table, task
from delegate.store.tables import output as output_table
from delegate.store.tasks import get_task

pytestmark = pytest.mark.anyio

MAREK = Person(id=PersonId("user-1"), name="marek", email="marek@example.com", role=Role.MEMBER, created_at=NOON)
MARK = Actor(name=MAREK.name, person_id=MAREK.id)
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
    await retain(scene.database, Settings(), NOON + timedelta(days=365, minutes=1))
    kept = await scene.database.read(lambda c: page_of_audit(c, before=None, limit=10))
    assert [entry.subject for entry in kept] == ["task-2", "task-1"]


async def test_a_purge_is_the_one_change_of_an_ended_task(scene: Scene) -> None:
    held = await scene.take(mode=Mode.WORKTREE, repository="acme/shop", agent="claude")
    await scene.record(held, fact(0, text="secret"), output(1, b"secret"))
    await scene.announce(held, EffectState.INTENT)
    await scene.announce(held, EffectState.DONE, external_id="c" * 40)
    await scene.finish(held, next_seq=2)

    purged = await purge(scene.database, held.task.id, MARK, scene.now)

    assert (purged.task.prompt, purged.task.state, purged.task.purged_at) == (
        "[purged]",
        TaskState.COMPLETED,
        scene.now,
    )
    assert purged.branches == ("work-1",)
    assert await purge(scene.database, held.task.id, MARK, NOON + timedelta(days=1)) == purged
    unpurge = update(task).where(task.c.id == held.task.id).values(purged_at=None)
    with pytest.raises(DBAPIError, match="never change"):
        await scene.database.write("unpurge", lambda c: c.execute(unpurge))
    events = await scene.database.read(lambda c: c.execute(select(event_table.c.data)).scalars().all())
    assert "secret" not in str(events)
    assert (await scene.database.read(lambda c: c.execute(select(output_table)).all())) == []


async def test_the_tasks_of_a_person_stay_theirs(scene: Scene) -> None:
    """Those of retries and of agents, whoever asked for them."""
    await scene.database.write("people", lambda c: insert_person(c, MAREK))
    first = await scene.submit(by=MARK)
    await scene.cancel(first)

    retried = await scene.retry(first)

    assert (first.created_by, retried.created_by) == (MAREK.id, MAREK.id)
    stored = await scene.database.read(lambda c: get_task(c, retried.id))
    assert stored is not None
    assert stored.created_by == MAREK.id
