from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from tests.both_databases.clockwork import HOUR, HOURLY, Clockwork
from tests.both_databases.scene import NOON, Scene, fact, output
from tests.both_databases.test_pairing import FACTS

from delegate.config.settings import Settings
from delegate.errors import Unauthenticated
from delegate.intake.people import disable_person, enable_person, set_role
from delegate.model import OWNER, AccessToken, AccessTokenId, Actor, EffectState, Mode, Person, PersonId, Role
from delegate.queue.fleet import create_pairing_token, pair
from delegate.relay.auth import is_valid
from delegate.report.purge import purge
from delegate.report.retention import retain
from delegate.schedule.model import RunOutcome, ScheduleState
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
from delegate.store.runners import paired_by
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


@pytest.mark.promise("P18")
async def test_the_schedules_of_a_disabled_person_start_nothing_and_say_why(clock: Clockwork) -> None:
    database = clock.scene.database
    await database.write("people", lambda c: insert_person(c, MAREK))
    clock.by = MARK
    hourly = await clock.create(cronExpression=HOURLY)
    once = await clock.create(scheduledAt=(NOON + HOUR).isoformat())

    disabled = await disable_person(database, "marek", OWNER, NOON)
    await clock.at(NOON + HOUR)
    refused = (await clock.history(hourly))[0]
    await enable_person(database, "marek", OWNER, clock.scene.now)
    (started,) = await clock.at(NOON + 2 * HOUR)
    await clock.ends()
    await set_role(database, "marek", Role.VIEWER, OWNER, clock.scene.now)
    (viewed,) = await clock.at(NOON + 3 * HOUR)

    assert (disabled.tasks, disabled.schedules, disabled.runners) == (0, 2, ())
    assert (refused.outcome, refused.task_id) == (RunOutcome.REFUSED, None)
    assert "marek is disabled, and the schedule runs for that person" in (refused.message or "")
    assert (await clock.look(once)).state is ScheduleState.FAILED
    assert "marek is disabled" in ((await clock.look(once)).message or "")
    assert started.task is not None
    assert "marek is now a viewer" in (viewed.run.message or "")


@pytest.mark.promise("P18")
async def test_the_runners_of_a_disabled_person_get_nothing_new_and_pair_no_more(scene: Scene) -> None:
    await scene.database.write("people", lambda c: insert_person(c, MAREK))
    for name in ("studio", "attic", "late"):
        await create_pairing_token(scene.database, name, name, by=MARK, now=NOON)
    for name in ("studio", "attic"):
        await pair(scene.database, name, FACTS, f"token-of-{name}", NOON)
    await scene.submit(by=MARK)

    first = await disable_person(scene.database, "marek", OWNER, NOON)
    again = await disable_person(scene.database, "marek", OWNER, NOON + timedelta(hours=1))

    assert first == again
    assert (first.tasks, first.schedules, first.runners) == (1, 0, ("attic", "studio"))
    runners = await scene.database.read(lambda c: paired_by(c, MAREK.id))
    assert [one.draining_at for one in runners] == [NOON, NOON]
    with pytest.raises(Unauthenticated):
        await pair(scene.database, "late", FACTS, "token-of-late", NOON)
    entries = await scene.database.read(lambda c: page_of_audit(c, before=None, limit=3))
    assert [(one.action, one.subject) for one in entries] == [
        ("runner.drain", "studio"),
        ("runner.drain", "attic"),
        ("user.disable", "marek"),
    ]
