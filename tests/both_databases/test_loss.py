"""Tasks whose runner is lost, silent, or could not reach the relay."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest
from tests.both_databases.scene import GONE, LEASE, NOON, RECLAIM_AFTER, Scene, fact, only_reading, runner

from delegate.errors import NoSuchTask, StaleFence
from delegate.model import EventKind, TaskId
from delegate.queue.claim import ClaimedTask, ClaimQuery
from delegate.queue.finish import cancel
from delegate.queue.rescue import ABANDONED_AFTER, has_expired, renew_leases_after_restart
from delegate.relay.requests import SharedClock
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.offline import tasks_running_since
from delegate.store.runners import delete_silent_runners

pytestmark = pytest.mark.anyio
EVE = runner("eve")


async def test_a_lost_command_fails_because_it_may_not_be_repeatable(scene: Scene) -> None:
    held = await scene.take()

    answered = await scene.release(held, GONE)

    task = await scene.task(held)
    assert task == answered
    assert (task.state, task.reason, task.finished_at) == (TaskState.FAILED, Reason.LOST_RUNNER, NOON)
    assert [attempt.state for attempt in await scene.attempts(held)] == [AttemptState.LOST]
    assert (await scene.kinds(held))[-2:] == [EventKind.LOST, EventKind.FINISHED]


async def test_a_lost_command_that_may_be_repeated_waits_again(scene: Scene) -> None:
    held = await scene.take(rerun=True)

    await scene.release(held, GONE)

    task = await scene.task(held)
    assert (task.state, task.attempts, task.reason) == (TaskState.QUEUED, 1, None)
    assert (await scene.kinds(held))[-1] is EventKind.LOST


async def test_a_lost_agent_continues_its_session(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.record(held, fact(0, EventKind.SESSION, sessionId="s-1"))
    await scene.release(held, GONE)

    again = await scene.claim()

    assert again is not None
    assert (again.task.session_id, again.attempt.number, again.attempt.fence) == ("s-1", 2, 2)


async def test_a_stop_reports_only_the_tasks_that_ran(scene: Scene) -> None:
    await scene.release(await scene.take(), GONE)
    scene.now += timedelta(seconds=1)
    lost, back = await scene.take(), await scene.take(rerun=True)
    held = await scene.take()
    for one in (lost, back):
        await scene.release(one, GONE)

    found = await scene.database.read(lambda connection: tasks_running_since(connection, scene.now))

    assert {task.id: task.state for task in found} == {
        lost.task.id: TaskState.FAILED,
        back.task.id: TaskState.QUEUED,
        held.task.id: TaskState.RUNNING,
    }


async def test_telling_a_loss_twice_is_telling_it_once(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.release(held, GONE)

    await scene.release(held, GONE)

    assert (await scene.task(held)).attempts == 1
    assert (await scene.kinds(held)).count(EventKind.LOST) == 1


@pytest.mark.promise("P5")
async def test_a_task_that_cost_three_runners_is_poison(scene: Scene) -> None:
    held: ClaimedTask | None = await scene.take(agent="claude")
    for _ in range(3):
        assert held is not None
        lost = await scene.release(held, GONE)
        held = await scene.claim()

    assert held is None
    assert (lost.state, lost.reason, lost.attempts) == (TaskState.FAILED, Reason.POISON, 3)
    assert lost.message == "3 attempts were lost with their runners"


@pytest.mark.promise("P5")
async def test_the_claim_of_another_runner_takes_what_a_silent_one_holds(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER)

    taken = await scene.claim(EVE)

    assert taken is not None
    assert (taken.task.id, taken.attempt.fence, taken.attempt.number) == (held.task.id, 2, 2)
    assert [attempt.state for attempt in await scene.attempts(held)] == [AttemptState.LOST, AttemptState.RUNNING]
    assert (await scene.kinds(held))[-2:] == [EventKind.LOST, EventKind.CLAIMED]
    with pytest.raises(StaleFence):
        await scene.renew(held)


@pytest.mark.promise("P3")
async def test_many_claims_at_once_take_a_silent_runners_task_once(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER)

    taken = await scene.claim_at_once(8)

    assert [one.attempt.fence for one in taken] == [2]
    assert (await scene.kinds(held)).count(EventKind.LOST) == 1


@pytest.mark.promise("P5")
async def test_a_silent_runners_command_fails_when_another_one_asks_for_work(scene: Scene) -> None:
    held = await scene.take()
    await scene.pass_time(RECLAIM_AFTER)

    assert await scene.claim(EVE) is None

    task = await scene.task(held)
    assert (task.state, task.reason, task.finished_at) == (TaskState.FAILED, Reason.LOST_RUNNER, scene.now)


@pytest.mark.promise("P4")
async def test_a_lease_that_ran_out_is_suspect_and_not_lost(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER - timedelta(microseconds=1))

    assert await scene.claim(EVE) is None
    await scene.renew(held)
    await scene.pass_time(RECLAIM_AFTER - timedelta(microseconds=1))
    assert await scene.claim(EVE) is None

    assert (await scene.finish(held)).state is TaskState.COMPLETED


@pytest.mark.promise("P4")
async def test_a_silent_runner_keeps_its_task_until_another_runner_could_do_it(scene: Scene) -> None:
    await scene.register(runner())
    held = await scene.take(agent="claude")
    await scene.pass_time(3 * RECLAIM_AFTER)

    assert await scene.claim(runner("otto", machine="attic")) is None
    assert await scene.claim(runner("eve", agents=["shell"])) is None
    assert await scene.tick() == []

    await scene.renew(held)
    assert (await scene.finish(held)).state is TaskState.COMPLETED


@pytest.mark.promise("P5")
async def test_what_a_forgotten_runner_holds_is_taken_back_without_a_claim(scene: Scene) -> None:
    await scene.register(runner())
    held = await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER)
    assert await scene.tick() == []

    await scene.database.write("forget", lambda c: delete_silent_runners(c, silent_since=scene.now))

    assert [task.id for task in await scene.tick()] == [held.task.id]
    assert (await scene.task(held)).state is TaskState.QUEUED


@pytest.mark.promise("P5")
async def test_a_runner_that_is_silent_for_a_day_is_given_up(scene: Scene) -> None:
    await scene.register(runner())
    held = await scene.take()
    await scene.pass_time(ABANDONED_AFTER)

    await scene.tick()

    assert (await scene.task(held)).reason is Reason.LOST_RUNNER


@pytest.mark.promise("P5")
async def test_a_cancelled_task_of_a_silent_runner_ends_without_a_claim(scene: Scene) -> None:
    await scene.register(runner())
    held = await scene.take(agent="claude")
    waiting = await scene.submit(depends_on=(held.task.id,))
    await scene.cancel(held.task, "enough")
    await scene.pass_time(RECLAIM_AFTER - timedelta(microseconds=1))
    assert await scene.tick() == []
    scene.now += timedelta(microseconds=1)

    assert [task.id for task in await scene.tick()] == [held.task.id]

    task = await scene.task(held)
    assert (task.state, task.reason, task.message) == (TaskState.CANCELLED, Reason.CANCELLED, "enough")
    assert (await scene.task(waiting)).reason is Reason.DEPENDENCY_FAILED
    with pytest.raises(StaleFence):
        await scene.renew(held)


@pytest.mark.parametrize("taker", ["tick", "claim"])
async def test_a_loss_is_in_the_log_once_however_often_it_is_written(
    scene: Scene, caplog: pytest.LogCaptureFixture, taker: str
) -> None:
    """A refused neighbour has a whole batch done again."""
    held = await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER)
    await scene.database.write("forget", lambda c: delete_silent_runners(c, silent_since=scene.now))

    async def be_refused() -> None:
        with pytest.raises(NoSuchTask):
            await cancel(scene.database, TaskId("task-none"), "", scene.now)

    async with anyio.create_task_group() as group:
        group.start_soon(getattr(scene, taker))
        group.start_soon(be_refused)

    [logged] = [vars(record) for record in caplog.records if record.msg == "attempt lost"]
    assert (logged["task_id"], logged["attempt_id"], logged["state"]) == (
        held.task.id,
        held.attempt.id,
        TaskState.QUEUED,
    )
    assert logged["runner_id"] == held.attempt.slot_id


async def test_a_loss_that_its_runner_tells_is_in_the_log_as_every_loss(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    held = await scene.take()

    await scene.release(held, GONE)

    [logged] = [vars(record) for record in caplog.records if record.msg == "attempt lost"]
    assert (logged["attempt_id"], logged["state"]) == (held.attempt.id, TaskState.FAILED)


async def test_looking_for_what_silent_runners_hold_locks_nothing(scene: Scene) -> None:
    """PostgreSQL refuses locks in a transaction that only reads."""
    await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER)
    scope = ClaimQuery(claim_id="c", slot=EVE, agents=EVE.agents, parked={}).scope

    assert await only_reading(scene.database).read(lambda c: has_expired(c, scene.rules, scope, scene.now))


@pytest.mark.promise("P5")
async def test_recording_keeps_the_lease_as_renewing_does(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    for seq in range(3):
        await scene.pass_time(RECLAIM_AFTER - LEASE)
        await scene.record(held, fact(seq))

    assert await scene.claim(EVE) is None
    assert (await scene.task(held)).state is TaskState.RUNNING


@pytest.mark.promise("P8")
async def test_a_restart_of_the_relay_costs_no_runner_its_lease(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.pass_time(LEASE)
    await scene.tick()
    scene.now += timedelta(days=1)

    assert await renew_leases_after_restart(scene.database, scene.rules, scene.now) == 1

    assert await scene.claim(EVE) is None
    await scene.pass_time(RECLAIM_AFTER)
    taken = await scene.claim(EVE)
    assert taken is not None
    assert taken.task.id == held.task.id


@pytest.mark.promise("P5")
async def test_a_relay_that_keeps_restarting_extends_a_silent_runners_lease_only_once(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    waited = timedelta()
    while await scene.claim(EVE) is None:
        scene.now += LEASE * 1.5
        waited += LEASE * 1.5
        await renew_leases_after_restart(scene.database, scene.rules, scene.now)
        assert waited <= 2 * RECLAIM_AFTER

    assert (await scene.kinds(held))[-2:] == [EventKind.LOST, EventKind.CLAIMED]


@pytest.mark.promise("P8")
async def test_a_relay_that_dies_again_before_runners_can_renew_costs_no_lease(scene: Scene) -> None:
    """On a busy machine a relay may be killed once more right after its start."""
    held = await scene.take(agent="claude")
    for _ in range(RECLAIM_AFTER // LEASE - 1):
        scene.now += RECLAIM_AFTER * 2
        await renew_leases_after_restart(scene.database, scene.rules, scene.now)
        assert await scene.claim(EVE) is None

    await scene.renew(held)
    assert (await scene.finish(held)).state is TaskState.COMPLETED


@pytest.mark.promise("P8")
@pytest.mark.parametrize("verb", ["renew", "record"])
async def test_a_runner_that_renews_between_restarts_keeps_its_lease(scene: Scene, verb: str) -> None:
    held = await scene.take(agent="claude")
    for seq in range(3):
        scene.now += timedelta(days=1)
        await renew_leases_after_restart(scene.database, scene.rules, scene.now)
        assert await scene.claim(EVE) is None
        await (scene.renew(held) if verb == "renew" else scene.record(held, fact(seq)))

    next_seq = 3 if verb == "record" else 0
    assert (await scene.finish(held, next_seq=next_seq)).state is TaskState.COMPLETED


def _time_ahead(ahead: timedelta) -> datetime:
    return datetime.now(UTC) + ahead


@pytest.mark.promise("P23")
@pytest.mark.parametrize("skew", [timedelta(minutes=3), timedelta(minutes=11)])
async def test_relays_whose_clocks_differ_agree_on_the_time_of_a_lease(scene: Scene, skew: timedelta) -> None:
    if scene.database.is_sqlite:
        skew = timedelta()  # its only relay has one clock
    clocks = [SharedClock(partial(_time_ahead, ahead)) for ahead in (timedelta(), skew)]
    for clock in clocks:
        await clock.sync(scene.database)
    scene.now = clocks[0].now()
    held = await scene.take(agent="claude")

    scene.now = clocks[1].now()
    assert await scene.claim(EVE) is None
    first = (await scene.attempts(held))[0].renewed_at
    scene.now = clocks[0].now()
    await scene.tick()

    assert (await scene.attempts(held))[0].renewed_at == first


async def test_a_restart_does_not_bring_back_a_lease_that_was_over_before(scene: Scene) -> None:
    await scene.take(agent="claude")
    await scene.pass_time(RECLAIM_AFTER - timedelta(seconds=1))
    await scene.tick()
    scene.now += timedelta(seconds=1)

    assert await renew_leases_after_restart(scene.database, scene.rules, scene.now) == 0

    assert await scene.claim(EVE) is not None


async def test_the_first_start_of_a_relay_renews_no_leases(scene: Scene) -> None:
    assert await renew_leases_after_restart(scene.database, scene.rules, scene.now) == 0


@pytest.mark.promise("P8")
@pytest.mark.parametrize("first", ["claim", "tick"])
async def test_time_without_a_relay_does_not_count_as_silence(scene: Scene, first: str) -> None:
    """The machine slept, the clock jumped, or the database was down: no runner could renew."""
    held = await scene.take(agent="claude")
    scene.now += timedelta(hours=8)

    if first == "tick":
        assert await scene.tick() == []
    assert await scene.claim(EVE) is None

    await scene.renew(held)
    assert (await scene.finish(held)).state is TaskState.COMPLETED


@pytest.mark.promise("P5")
async def test_a_runner_that_stays_silent_after_such_a_time_loses_its_task_all_the_same(scene: Scene) -> None:
    """Claims alone are enough: no housekeeping is needed for it."""
    await scene.take(agent="claude")
    scene.now += timedelta(hours=8)
    waited = timedelta()
    while await scene.claim(EVE) is None:
        scene.now += timedelta(seconds=5)
        waited += timedelta(seconds=5)
        assert waited <= RECLAIM_AFTER

    assert waited == RECLAIM_AFTER


async def test_a_clock_that_was_set_back_steals_no_lease(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    scene.now -= timedelta(hours=1)

    assert await scene.claim(EVE) is None
    assert await scene.tick() == []

    assert (await scene.finish(held)).state is TaskState.COMPLETED


async def test_a_loss_does_not_forget_the_session_of_an_earlier_attempt(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.release(held, replace(GONE, session_id="s-1"))
    again = await scene.claim()
    assert again is not None

    await scene.release(again, GONE)

    assert (await scene.task(held)).session_id == "s-1"


async def test_a_clock_that_was_ahead_and_is_set_back_does_not_stretch_a_lease(scene: Scene) -> None:
    await scene.register(EVE)
    await scene.pass_time(timedelta(days=1))
    held = await scene.take(agent="claude")
    scene.now = NOON

    assert await scene.tick() == []
    await scene.pass_time(scene.rules.reclaim_after)
    rescued = await scene.claim(EVE)

    assert rescued is not None
    assert rescued.task.id == held.task.id
