"""What people order about runners, and what the list of runners says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.both_databases.scene import LEASE, Scene, holder, runner
from tests.both_databases.test_pairing import FACTS, MAREK, paired, register

from delegate.errors import Forbidden, KeeperPool, NoSuchRunner, RunnerNameUsed, RunnerRevoked, StaleFence
from delegate.model import OWNER, Actor, EventKind, PersonId, RunnerSlot
from delegate.placement import AcceptFrom, Policy
from delegate.queue import fleet_orders
from delegate.queue.fleet_orders import RunnerPage, read_runners
from delegate.queue.runner_states import RunnerCondition, RunnerCounts
from delegate.report.record import renew
from delegate.states import TaskState
from delegate.store.people import page_of_audit
from delegate.store.runners import get_runner, update_runner

pytestmark = pytest.mark.anyio
OPEN = replace(FACTS, policy=Policy(repositories=None, accept_from=(AcceptFrom.MEMBERS,), in_place=True, shell=True))
EVE = Actor(name="eve", person_id=PersonId("user-2"))


async def working(scene: Scene) -> RunnerSlot:
    await paired(scene, facts=OPEN)
    return await register(scene)


async def listed(scene: Scene, after: tuple[str, str] | None = None, limit: int = 10) -> RunnerPage:
    return await read_runners(scene.database, scene.rules, after=after, limit=limit, now=scene.now)


async def test_the_list_says_what_each_runner_does(scene: Scene) -> None:
    mbp, desk = await working(scene), await scene.register(runner())
    ended = await scene.take(desk)
    await scene.finish(ended)
    held = await scene.take(mbp, agent="claude", machine="mbp-1")

    page = await listed(scene)

    first, second = page.reports
    assert (first.runner.name, first.condition, first.slots) == ("desk", RunnerCondition.ONLINE, 1)
    assert first.last is not None
    assert (first.last.task_id, first.last.state) == (ended.task.id, "completed")
    assert (second.runner.name, second.condition, second.slots) == ("marek-mbp", RunnerCondition.CLAIMING, 2)
    assert [task.id for _, task in second.held] == [held.task.id]
    assert page.counts == RunnerCounts(online=2, claiming=1, idle=1, total=2)


async def test_the_list_is_read_in_pages(scene: Scene) -> None:
    for machine in ("b", "a", "c"):
        await scene.register(runner(machine=machine))

    first = await listed(scene, limit=2)
    last = first.reports[-1].runner
    second = await listed(scene, after=(last.name, last.id), limit=2)

    assert [one.runner.name for one in (*first.reports, *second.reports)] == ["a", "b", "c"]
    assert first.counts.total == second.counts.total == 3


async def test_what_a_runner_reports_does_not_undo_a_new_name(scene: Scene) -> None:
    runner_id = (await working(scene)).runner.id
    before = await scene.database.read(lambda c: get_runner(c, runner_id))
    assert before is not None
    await fleet_orders.rename(scene.database, "marek-mbp", "studio", MAREK, is_admin=False, now=scene.now)

    await scene.database.write("heartbeat", lambda c: update_runner(c, replace(before, version="9.9")))

    after = await scene.database.read(lambda c: get_runner(c, runner_id))
    assert after is not None
    assert (after.name, after.version) == ("studio", "9.9")


async def test_a_draining_runner_finishes_and_takes_nothing_new(scene: Scene) -> None:
    mbp = await working(scene)
    held = await scene.take(mbp, agent="claude", machine="mbp-1")
    waiting = await scene.submit(agent="claude", machine="mbp-1")

    await fleet_orders.drain(scene.database, "marek-mbp", MAREK, is_admin=False, now=scene.now)

    assert (await scene.finish(held)).state is TaskState.COMPLETED
    assert await scene.claim(mbp) is None
    assert (await listed(scene)).reports[0].condition is RunnerCondition.DRAINING
    await fleet_orders.resume_runner(scene.database, "marek-mbp", MAREK, is_admin=False, now=scene.now)
    again = await scene.claim(mbp)
    assert again is not None
    assert again.task.id == waiting.id


async def test_a_revoked_runner_holds_nothing_and_gets_nothing(scene: Scene) -> None:
    mbp = await working(scene)
    held = await scene.take(mbp, agent="claude", machine="mbp-1")
    command = await scene.take(mbp, machine="mbp-1")

    revoked, lost = await fleet_orders.revoke(scene.database, "marek-mbp", MAREK, is_admin=False, now=scene.now)

    assert revoked.revoked_at == scene.now
    assert {one.task.id for one in lost} == {held.task.id, command.task.id}
    assert (await scene.task(held)).state is TaskState.QUEUED
    assert (await scene.task(command)).state is TaskState.FAILED
    assert EventKind.LOST in await scene.kinds(held)
    with pytest.raises(StaleFence):
        await renew(scene.database, holder(held), 0, scene.now)
    assert await scene.claim(mbp) is None
    with pytest.raises(RunnerRevoked):
        await register(scene)
    assert (await scene.cancel(held.task)).state is TaskState.CANCELLED


async def test_the_name_of_a_revoked_runner_is_free(scene: Scene) -> None:
    mbp = await working(scene)
    await fleet_orders.revoke(scene.database, "marek-mbp", MAREK, is_admin=False, now=scene.now)

    again = await fleet_orders.read_runner(scene.database, scene.rules, mbp.runner.id, scene.now)

    assert again.condition is RunnerCondition.REVOKED
    with pytest.raises(NoSuchRunner):
        await fleet_orders.drain(scene.database, "marek-mbp", MAREK, is_admin=True, now=scene.now)


async def test_only_its_owner_and_admins_order_a_runner(scene: Scene) -> None:
    await working(scene)
    await scene.register(runner())

    with pytest.raises(Forbidden, match="its owner and admins"):
        await fleet_orders.drain(scene.database, "marek-mbp", EVE, is_admin=False, now=scene.now)
    with pytest.raises(Forbidden):  # the pool belongs to the relay's owner
        await fleet_orders.drain(scene.database, "desk", EVE, is_admin=False, now=scene.now)
    await fleet_orders.drain(scene.database, "marek-mbp", EVE, is_admin=True, now=scene.now)


async def test_the_pool_of_a_keeper_is_not_revoked(scene: Scene) -> None:
    await scene.register(runner())

    with pytest.raises(KeeperPool, match="pool of a keeper"):
        await fleet_orders.revoke(scene.database, "desk", OWNER, is_admin=True, now=scene.now)


async def test_a_runner_gets_another_name_unless_it_is_used(scene: Scene) -> None:
    await working(scene)
    await scene.register(runner())

    with pytest.raises(RunnerNameUsed):
        await fleet_orders.rename(scene.database, "marek-mbp", "desk", MAREK, is_admin=False, now=scene.now)
    renamed = await fleet_orders.rename(scene.database, "marek-mbp", "mbp", MAREK, is_admin=False, now=scene.now)

    assert renamed.name == "mbp"
    audit = await scene.database.read(lambda c: page_of_audit(c, before=None, limit=1))
    assert (audit[0].actor, audit[0].action, audit[0].subject) == ("marek", "runner.rename", "marek-mbp")


async def test_a_heartbeat_keeps_a_runner_online_and_tells_it_to_drain(scene: Scene) -> None:
    mbp = await working(scene)
    scene.now += timedelta(minutes=5)
    assert (await listed(scene)).reports[0].condition is RunnerCondition.IDLE

    seen = await fleet_orders.heartbeat(scene.database, mbp.runner, FACTS, "no memory", scene.now)

    report = (await listed(scene)).reports[0]
    assert seen.draining_at is None
    assert (report.condition, report.runner.problem) == (RunnerCondition.ONLINE, "no memory")
    await fleet_orders.drain(scene.database, "marek-mbp", MAREK, is_admin=False, now=scene.now)
    again = await fleet_orders.heartbeat(scene.database, mbp.runner, FACTS, None, scene.now)
    assert again.draining_at == scene.now


async def test_a_silent_runner_with_work_is_silent(scene: Scene) -> None:
    mbp = await working(scene)
    await scene.take(mbp, agent="claude", machine="mbp-1")

    scene.now += LEASE + timedelta(microseconds=1)

    assert (await listed(scene)).reports[0].condition is RunnerCondition.SILENT
