"""Every write about people and paired runners is one transaction, and may be repeated when its response was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest
from sqlalchemy import select
from tests.both_databases.scene import NOON, Scene
from tests.both_databases.test_pairing import FACTS, MAREK

from delegate import failpoints
from delegate.errors import DiskFull, NoSuchRunner
from delegate.intake import people
from delegate.intake.people import TokenTerms, new_person
from delegate.model import OWNER, Person, PersonId, Role, Runner, TaskId
from delegate.queue import fleet, fleet_orders
from delegate.report.purge import purge
from delegate.store.database import Connection
from delegate.store.people import insert_person, touch_access_token
from delegate.store.tables import metadata

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P1")]
TERMS = TokenTerms(name="laptop", secret="dlg_laptop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    scene: Scene
    issued: people.IssuedToken
    runner: Runner
    task: TaskId


Operation = Callable[[Stage], Awaitable[object]]


def order(verb: Callable[..., Awaitable[object]], *more: str) -> Operation:
    return lambda on: verb(on.scene.database, "studio", *more, OWNER, is_admin=True, now=on.scene.now)


def change(verb: Callable[..., Awaitable[object]], name: str = "marek", *more: object) -> Operation:
    return lambda on: verb(on.scene.database, name, *more, OWNER, on.scene.now)


def issue(terms: TokenTerms) -> Operation:
    def create(on: Stage) -> Awaitable[object]:
        return people.create_token(on.scene.database, terms, person="marek", by=OWNER, is_admin=True, now=on.scene.now)

    return create


def revoke_token(on: Stage) -> Awaitable[object]:
    return people.revoke_token(on.scene.database, on.issued.token.id, by=OWNER, is_admin=True, now=on.scene.now)


def add(on: Stage) -> Awaitable[object]:
    new = new_person("eve", email=None, role=Role.MEMBER, now=on.scene.now)
    return people.add_person(on.scene.database, new, TokenTerms(name="first", secret="dlg_eve"), OWNER)


def use_token(on: Stage) -> Awaitable[object]:
    work = partial(touch_access_token, token_id=on.issued.token.id, now=on.scene.now)
    return on.scene.database.write("token.used", work)


OPERATIONS: dict[str, Operation] = {
    "user.add": add,
    "user.disable": change(people.disable_person),
    "user.enable": change(people.enable_person, "ada"),
    "user.role": change(people.set_role, "marek", Role.ADMIN),
    "token.create": issue(TokenTerms(name="ci", secret="dlg_ci")),
    "token.revoke": revoke_token,
    "token.used": use_token,
    "pairing_token": lambda on: fleet.create_pairing_token(
        on.scene.database, "attic", "hash-of-attic", by=MAREK, now=on.scene.now
    ),
    "pair": lambda on: fleet.pair(on.scene.database, "hash-of-open", FACTS, "token-of-open", on.scene.now),
    "heartbeat": lambda on: fleet_orders.heartbeat(on.scene.database, on.runner, FACTS, "full", on.scene.now),
    "runner.drain": order(fleet_orders.drain),
    "runner.resume": order(fleet_orders.resume_runner),
    "runner.rename": order(fleet_orders.rename, "attic"),
    "runner.revoke": order(fleet_orders.revoke),
    "purge": lambda on: purge(on.scene.database, on.task, OWNER, on.scene.now),
}


@pytest.fixture
async def stage(scene: Scene) -> Stage:
    def add_people(connection: Connection) -> None:
        for person_id, name in (("user-1", "marek"), ("user-2", "ada")):
            new = Person(id=PersonId(person_id), name=name, role=Role.MEMBER, created_at=NOON)
            insert_person(connection, new)

    database, now = scene.database, scene.now
    await database.write("people", add_people)
    await people.disable_person(database, "ada", OWNER, now)
    issued = await people.create_token(database, TERMS, person="marek", by=OWNER, is_admin=True, now=now)
    for name in ("studio", "open"):
        await fleet.create_pairing_token(database, name, f"hash-of-{name}", by=MAREK, now=now)
    runner = await fleet.pair(database, "hash-of-studio", FACTS, "token-of-studio", now)
    task = await scene.submit("secret")
    await scene.cancel(task)
    return Stage(scene=scene, issued=issued, runner=runner, task=task.id)


async def rows(scene: Scene) -> dict[str, list[str]]:
    """All that the database has."""

    def read(connection: Connection) -> dict[str, list[str]]:
        return {
            table.name: sorted(map(str, connection.execute(select(table)).all())) for table in metadata.sorted_tables
        }

    return await scene.database.read(read)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_fails_before_its_commit_changes_nothing(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await rows(stage.scene)
    monkeypatch.setitem(failpoints.ARMED, f"{name}.before", ("error", ""))

    with pytest.raises((DiskFull, OSError)):
        await OPERATIONS[name](stage)

    assert await rows(stage.scene) == before


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_is_repeated_after_its_response_was_lost_changes_nothing_more(stage: Stage, name: str) -> None:
    before = await rows(stage.scene)
    first = await OPERATIONS[name](stage)
    after = await rows(stage.scene)

    if name == "runner.rename":  # its former name may be that of another runner by now
        with pytest.raises(NoSuchRunner):
            await OPERATIONS[name](stage)
    else:
        again = await OPERATIONS[name](stage)
        assert again == first or name == "runner.revoke"  # the first also says what it took back

    assert before != after or name in {"runner.resume", "heartbeat"}
    assert await rows(stage.scene) == after
