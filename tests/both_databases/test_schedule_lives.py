"""Schedules that run for long, in large numbers, and after each other."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

import anyio
import pytest
from sqlalchemy import update
from tests.both_databases.clockwork import BAD, DAY, HERE, HOUR, HOURLY, MINUTE, SECOND, Clockwork
from tests.both_databases.scene import NOON

from delegate.config.settings import Settings
from delegate.errors import InvalidField, NoSuchSchedule, NoSuchTask, PreferenceConflict
from delegate.intake import schedules
from delegate.intake.firing import BATCH_SIZE, FiringRound, expire, fire_due, recompute_next_runs
from delegate.model import ScheduleId
from delegate.queue import cascade
from delegate.queue.finish import cancel
from delegate.relay.schedules import schedule_view
from delegate.report.retention import retain
from delegate.schedule.model import Schedule, ScheduleState
from delegate.store.database import Connection
from delegate.store.schedules import lock_due
from delegate.store.tables import schedule as table

pytestmark = pytest.mark.anyio


async def fire(clock: Clockwork, at: datetime, passed: frozenset[ScheduleId] = frozenset()) -> FiringRound:
    return await fire_due(clock.scene.database, Settings(), at, passed)


async def lose_zones(clock: Clockwork) -> None:
    """As after an update of the machine's time zones."""

    def write(connection: Connection) -> None:
        connection.execute(update(table).values(timezone="Mars/Base"))

    await clock.scene.database.write("lose", write)


async def expire_now(clock: Clockwork, schedule: Schedule) -> None:
    """A paused one that has expired meanwhile."""
    await clock.pause(schedule)
    expired = update(table).where(table.c.id == schedule.id).values(expires_at=NOON)
    await clock.scene.database.write("expire", lambda connection: connection.execute(expired))
    await expire(clock.scene.database, NOON)


def notified_followers(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = (vars(record) for record in caplog.records if record.msg == "follower settled")
    return [(fields["schedule_id"], fields["state"].value) for fields in found]


async def follower_of(clock: Clockwork, **wanted: object) -> tuple[Schedule, Schedule]:
    before = await clock.create(cronExpression=HOURLY)
    return before, await clock.create(afterSchedule=before.id, **wanted)


async def test_who_asks_again_with_the_key_gets_what_was_made_also_when_its_moment_has_passed(clock: Clockwork) -> None:
    wanted = {"scheduledAt": (NOON + 2 * SECOND).isoformat(), "requestKey": "moment"}
    expiring = {"cronExpression": HOURLY, "expiresAt": (NOON + 2 * HOUR).isoformat(), "requestKey": "expiry"}
    first = [await clock.create(**wanted), await clock.create(**expiring)]

    clock.scene.now = NOON + 3 * HOUR
    again = [await clock.create(**wanted), await clock.create(**expiring)]

    assert again == first


@pytest.mark.parametrize("trouble", ["another relay is at them", "they have a defect"])
async def test_a_schedule_that_cannot_be_fired_does_not_delay_others(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    first = {(await clock.create(scheduledAt=(NOON + MINUTE).isoformat())).id for _ in range(BATCH_SIZE)}
    other = await clock.create(scheduledAt=(NOON + 2 * MINUTE).isoformat())

    def lock(connection: Connection, schedule_id: ScheduleId, now: datetime) -> Schedule | None:
        if schedule_id not in first:
            return lock_due(connection, schedule_id, now)
        if trouble == "they have a defect":
            raise RuntimeError(trouble)
        return None

    monkeypatch.setattr("delegate.intake.firing.lock_due", lock)
    one = await fire(clock, NOON + 2 * MINUTE)
    two = await fire(clock, NOON + 2 * MINUTE, one.skipped)

    assert (one.fired, one.may_have_more, one.skipped, one.has_failed) == ((), True, first, False)
    assert [fired.schedule.id for fired in two.fired] == [other.id]
    assert (two.may_have_more, two.skipped, two.has_failed) == (False, first, False)


async def test_many_schedules_fire_at_once_although_another_relay_has_taken_one(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await clock.create(scheduledAt=(NOON + MINUTE).isoformat()) for _ in range(BATCH_SIZE + 1)]

    def lock(connection: Connection, schedule_id: ScheduleId, now: datetime) -> Schedule | None:
        return None if schedule_id == made[0].id else lock_due(connection, schedule_id, now)

    monkeypatch.setattr("delegate.intake.firing.lock_due", lock)
    done = await fire(clock, NOON + MINUTE)

    assert done.may_have_more
    assert len(done.fired) >= BATCH_SIZE - 1


async def test_a_schedule_whose_times_cannot_be_worked_out_any_more_fails_and_says_why(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    follower = await clock.create(afterSchedule=schedule.id)
    ahead = await clock.create(cronExpression="0 0 * * *")
    await lose_zones(clock)

    (fired,) = await clock.at(NOON + HOUR)
    await recompute_next_runs(clock.scene.database, NOON - HOUR)

    found = await clock.look(schedule)
    assert (fired.task, found.state, await clock.outcomes(schedule)) == (None, ScheduleState.FAILED, ["refused"])
    assert "unknown time zone 'Mars/Base'" in (found.message or "")
    assert (await clock.look(follower)).state is ScheduleState.FAILED
    assert (await clock.look(ahead)).state is ScheduleState.FAILED
    assert schedule_view(replace(ahead, timing=replace(ahead.timing, timezone="Mars/Base"))).next_runs == [
        NOON + DAY / 2
    ]


async def test_ended_tasks_that_a_living_schedule_names_are_kept(clock: Clockwork) -> None:
    named = [await clock.scene.submit(), await clock.scene.submit(), await clock.scene.submit()]
    for _ in named:
        await clock.ends()
    later = (NOON + 400 * DAY).isoformat()
    once = await clock.create(scheduledAt=later, dependsOn=[named[0].id], missedRunPolicy="catchup")
    continuing = await clock.create(scheduledAt=later, continueFrom=named[1].id, missedRunPolicy="catchup")
    await clock.cancel(await clock.create(scheduledAt=later, dependsOn=[named[2].id]))

    clock.scene.now = NOON + 200 * DAY
    assert await retain(clock.scene.database, Settings(), clock.scene.now) == 1

    fired = await clock.at(NOON + 400 * DAY)
    assert {one.schedule.id for one in fired if one.task is not None} == {once.id, continuing.id}
    clock.scene.now += 200 * DAY
    with pytest.raises(NoSuchTask):
        await clock.scene.task(named[2])


async def test_one_that_was_released_and_paused_does_not_wait_again(clock: Clockwork) -> None:
    before, after = await follower_of(clock)
    await clock.at(NOON + HOUR)
    await clock.ends()
    paused = await clock.pause(after)
    await clock.at(NOON + 2 * HOUR)
    await clock.ends(BAD)

    assert (await clock.look(after)).state is ScheduleState.PAUSED
    assert schedule_view(paused).next_run_at is None
    resumed = await clock.resume(after)
    assert (resumed.state, resumed.next_run_at) == (ScheduleState.ACTIVE, clock.scene.now)
    assert [fired.schedule.id for fired in await clock.tick()] == [after.id]
    assert (await clock.look(before)).state is ScheduleState.ACTIVE


async def test_what_waits_or_is_paused_expires_too_and_its_followers_fail(clock: Clockwork) -> None:
    expiry = (NOON + DAY).isoformat()
    before, waiting = await follower_of(clock, expiresAt=expiry)
    last = await clock.create(afterSchedule=waiting.id)
    paused = await clock.create(cronExpression=HOURLY, expiresAt=expiry)
    await clock.pause(paused)
    await clock.pause(before)

    await expire(clock.scene.database, NOON + DAY - SECOND)
    assert (await clock.look(waiting)).state is ScheduleState.ACTIVE
    await expire(clock.scene.database, NOON + DAY)

    found = [(await clock.look(one)).state.value for one in (waiting, paused, last, before)]
    assert found == ["expired", "expired", "failed", "paused"]


async def test_what_expires_together_with_what_it_comes_after_ends_too(clock: Clockwork) -> None:
    expiry = (NOON + DAY).isoformat()
    before, waiting = await follower_of(clock, expiresAt=expiry)
    last = await clock.create(afterSchedule=waiting.id, expiresAt=expiry)

    await expire(clock.scene.database, NOON + DAY)

    found = [await clock.look(one) for one in (before, waiting, last)]
    assert [one.state.value for one in found[:2]] == ["active", "expired"]
    assert found[2].state.value in ("expired", "failed")  # whichever of the two was found first


async def test_one_that_ends_when_the_clock_goes_back_takes_what_comes_after_it_along(clock: Clockwork) -> None:
    before, waiting = await follower_of(clock)
    other = await clock.create(scheduledAt=(NOON + DAY).isoformat())
    await lose_zones(clock)

    await recompute_next_runs(clock.scene.database, NOON - HOUR)

    found = [await clock.look(one) for one in (before, waiting, other)]
    assert [one.state.value for one in found] == ["failed", "failed", "active"]
    assert found[2].reckoned_at == NOON - HOUR


@pytest.mark.promise("P23")
@pytest.mark.parametrize("jump", [DAY, 365 * DAY])
async def test_what_a_clock_ended_that_was_ahead_becomes_active_again_and_runs_once(
    clock: Clockwork, jump: timedelta
) -> None:
    soon, expiry = (NOON + HOUR).isoformat(), (NOON + 20 * HOUR).isoformat()
    once = await clock.create(scheduledAt=soon)
    strict = await clock.create(cronExpression=HOURLY, missedRunPolicy="fail")
    expiring = await clock.create(cronExpression=HOURLY, expiresAt=expiry)
    before, waiting = await follower_of(clock, expiresAt=expiry)
    last = await clock.create(afterSchedule=waiting.id)
    paused = await clock.pause(await clock.create(cronExpression=HOURLY, expiresAt=expiry))
    caught_up = await clock.create(scheduledAt=soon, missedRunPolicy="catchup")
    ended = (once, strict, expiring, waiting, last, paused)

    await clock.at(NOON + jump)
    await expire(clock.scene.database, clock.scene.now)
    ahead = [(await clock.look(one)).state.value for one in ended]
    await clock.at(NOON + MINUTE)
    back = [(await clock.look(one)).state.value for one in ended]
    runs = await clock.at(NOON + HOUR)

    assert ahead == ["expired", "failed", "expired", "expired", "failed", "expired"]
    assert back == ["active", "active", "active", "active", "active", "paused"]
    assert {one.schedule.id for one in runs if one.task} == {once.id, strict.id, expiring.id, before.id}
    assert [await clock.outcomes(one) for one in (once, strict, expiring, caught_up)] == [["started"]] * 4
    assert await clock.outcomes(paused) == []


@pytest.mark.promise("P23")
async def test_what_was_missed_also_by_the_right_clock_stays_ended(clock: Clockwork) -> None:
    once = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    cancelled, follower = await follower_of(clock)
    await clock.at(NOON + DAY)
    await clock.cancel(cancelled)

    await clock.at(NOON + 2 * HOUR)

    assert (await clock.look(once)).state is ScheduleState.EXPIRED
    assert [(run.outcome.value, run.at) for run in await clock.history(once)] == [("missed", NOON + 2 * HOUR)]
    assert [(await clock.look(one)).state.value for one in (cancelled, follower)] == ["cancelled", "failed"]


async def test_followers_that_move_are_in_the_log(clock: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, released = await follower_of(clock)
    await clock.at(NOON + HOUR)
    await clock.ends()
    before, failed = await follower_of(clock)
    await clock.cancel(before)

    assert notified_followers(caplog) == [(released.id, "active"), (failed.id, "failed")]


async def test_followers_are_logged_once_however_often_the_change_is_tried(
    clock: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is refused in the same commit makes SQLite do all of it again."""
    caplog.set_level(logging.INFO)
    before, failed = await follower_of(clock)
    run = await clock.create(scheduledAt=(NOON + MINUTE).isoformat())
    released = await clock.create(afterSchedule=run.id)
    await clock.at(NOON + MINUTE)
    held = await clock.scene.claim()
    assert held is not None

    async def refused() -> None:
        with pytest.raises(NoSuchSchedule):
            await schedules.pause(clock.scene.database, ScheduleId("schedule-none"), "", clock.scene.now)

    async with anyio.create_task_group() as group:
        group.start_soon(clock.cancel, before)
        group.start_soon(clock.scene.finish, held)
        group.start_soon(refused)

    assert sorted(notified_followers(caplog)) == sorted([(failed.id, "failed"), (released.id, "active")])


@pytest.mark.parametrize("verb", ["expire", "fire", "reckon"])
async def test_every_end_of_a_schedule_reports_what_became_of_its_followers(
    clock: Clockwork, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    caplog.set_level(logging.INFO)
    before, follower = await follower_of(clock)
    last = await clock.create(afterSchedule=follower.id)
    await lose_zones(clock)

    match verb:
        case "expire":
            await expire_now(clock, before)
        case "fire":
            await clock.at(NOON + HOUR)
        case _:
            await recompute_next_runs(clock.scene.database, NOON - HOUR)

    assert notified_followers(caplog) == [(follower.id, "failed"), (last.id, "failed")]


async def test_so_many_schedules_may_wait_for_one_end_and_no_more(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "FOLLOWERS_MAX", 3)
    top, first = await follower_of(clock)
    second = await clock.create(afterSchedule=first.id)
    other = await clock.create(afterSchedule=top.id)

    for one in (top, first, second, other):
        with pytest.raises(InvalidField) as caught:
            await clock.create(afterSchedule=one.id)
        assert caught.value.message == (
            f"afterSchedule: cannot name {one.id}: 3 schedules wait for the same run, and the limit is 3; "
            "name another schedule, or cancel some of those"
        )
    assert await clock.create(afterSchedule=top.id, cronExpression=HOURLY)  # its tasks wait, not the schedule
    await clock.cancel(second)
    assert await clock.create(afterSchedule=other.id)


async def test_schedules_that_an_end_stops_count_with_the_tasks_it_settles(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "CASCADE_MAX", 3)
    monkeypatch.setattr(cascade, "DEPENDENTS_PER_STATEMENT", 1)
    top = await clock.scene.submit()
    runs = [await clock.create(cronExpression=HOURLY, dependsOn=[top.id]) for _ in range(2)]
    waiting = [await clock.create(afterSchedule=run.id) for run in runs for _ in range(2)]
    await clock.at(NOON + HOUR)

    moved = await cancel(clock.scene.database, top.id, "", clock.scene.now)

    assert (len(moved.others), len(moved.followers)) == (1, 2)
    assert len(await cascade.settle_blocked(clock.scene.database, clock.scene.now)) == 1
    assert {(await clock.look(one)).state for one in waiting} == {ScheduleState.FAILED}


async def test_the_task_of_the_schedule_before_counts_as_a_dependency_from_the_start(clock: Clockwork) -> None:
    before = await clock.create(cronExpression=HOURLY)
    tasks = [(await clock.scene.submit()).id for _ in range(100)]

    with pytest.raises(InvalidField, match="dependsOn: has 101 tasks including that of the previous schedule"):
        await clock.create(cronExpression=HOURLY, afterSchedule=before.id, dependsOn=tasks)
    with pytest.raises(InvalidField, match=r"steps\.1\.dependsOn: has 101"):
        await clock.pipeline(steps=[{"prompt": "a", **HERE}, {"prompt": "b", **HERE, "dependsOn": tasks}])
    assert await clock.create(cronExpression=HOURLY, afterSchedule=before.id, dependsOn=tasks[1:])
    assert await clock.create(afterSchedule=before.id, dependsOn=tasks)  # it comes after a run, and depends on none


async def test_conflicting_preferences_are_reported_with_their_step(clock: Clockwork) -> None:
    fighting = {"labels": ["delegate:agent=claude", "delegate:agent=codex"], "workingDirectory": "/", "machine": "desk"}

    with pytest.raises(PreferenceConflict, match=r"steps\.1: "):
        await clock.pipeline(steps=[{"prompt": "a", **HERE}, {"prompt": "b", **fighting}])
