"""Schedules on both databases: every due time is handled once, whatever the clock does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from tests.both_databases.clockwork import BAD, DAY, HOUR, HOURLY, MINUTE, SECOND, Clockwork
from tests.both_databases.scene import NOON
from tests.both_databases.test_plans import overheard, plan_of
from tests.databases import Place

from delegate.config.settings import Settings
from delegate.errors import (
    DependencyFailed,
    InvalidField,
    InvalidSchedule,
    KeyUsed,
    NoSuchSchedule,
    ScheduleEnded,
    UnknownAgent,
    UnknownDependency,
)
from delegate.intake.firing import expire, fire_due
from delegate.model import ScheduleId
from delegate.report.retention import retain
from delegate.schedule.model import RunOutcome, ScheduleState
from delegate.states import TaskState
from delegate.store.database import Connection, open_database
from delegate.store.retention import drop_runs_before
from delegate.store.tables import EPOCH

pytestmark = pytest.mark.anyio


async def test_a_cron_schedule_makes_a_task_each_time_and_knows_how_each_ended(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, prompt="back up", priority="P1", timeout=5000)
    assert schedule.next_run_at == NOON + HOUR

    assert await clock.after(59 * MINUTE) == ()
    (first,) = await clock.at(NOON + HOUR)
    await clock.ends()
    await clock.at(NOON + 2 * HOUR)
    failed = await clock.ends(BAD)
    await clock.at(NOON + 3 * HOUR)

    assert first.task is not None
    assert (first.task.prompt, first.task.priority.name, first.task.schedule_id) == ("back up", "P1", schedule.id)
    assert first.task.limits.timeout == timedelta(seconds=5)
    assert await clock.outcomes(schedule) == ["completed", "failed", "started"]
    second = (await clock.history(schedule))[1]
    assert (second.task_id, second.reason, second.message) == (failed.id, "command_failed", "exit code 1")
    assert (second.occurrence, second.finished_at) == (NOON + 2 * HOUR, NOON + 2 * HOUR)
    found = await clock.look(schedule)
    assert (found.runs, found.last_run_at, found.next_run_at) == (3, NOON + 3 * HOUR, NOON + 4 * HOUR)


async def test_a_one_time_schedule_runs_once_and_is_complete(clock: Clockwork) -> None:
    schedule = await clock.create(scheduledAt=(NOON + HOUR).isoformat())

    await clock.at(NOON + HOUR)
    assert await clock.after(DAY) == ()

    found = await clock.look(schedule)
    assert (found.state, found.runs, found.next_run_at) == (ScheduleState.COMPLETED, 1, None)
    await clock.ends()
    assert await clock.outcomes(schedule) == ["completed"]


async def test_no_run_starts_before_the_one_before_has_ended(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    (first,) = await clock.at(NOON + HOUR)
    assert first.task is not None

    await clock.at(NOON + 2 * HOUR)
    await clock.ends()
    await clock.at(NOON + 3 * HOUR)

    assert await clock.outcomes(schedule) == ["completed", "overlapped", "started"]
    overlapped = (await clock.history(schedule))[1]
    assert overlapped.message == f"the previous run, {first.task.id}, had not ended"
    assert (await clock.look(schedule)).runs == 2


async def test_all_times_that_overlap_one_run_are_one_row_with_a_count(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    for hour in (1, 2, 3, 4):
        await clock.at(NOON + hour * HOUR)
    await clock.ends()
    for hour in (5, 6):
        await clock.at(NOON + hour * HOUR)

    history = await clock.history(schedule)
    assert [(run.occurrence, run.outcome, run.missed) for run in history] == [
        (NOON + HOUR, "completed", 0),
        (NOON + 2 * HOUR, "overlapped", 2),
        (NOON + 5 * HOUR, "started", 0),
        (NOON + 6 * HOUR, "overlapped", 0),
    ]


async def test_a_cancelled_task_is_a_cancelled_run(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    (first,) = await clock.at(NOON + HOUR)
    assert first.task is not None

    await clock.scene.cancel(first.task, "not today")

    assert await clock.outcomes(schedule) == ["cancelled"]


async def test_a_task_that_is_retried_by_hand_is_not_a_run_of_its_schedule(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    await clock.at(NOON + HOUR)
    failed = await clock.ends(BAD)

    await clock.scene.retry(failed)
    await clock.ends()

    assert await clock.outcomes(schedule) == ["failed"]


async def test_a_schedule_runs_as_often_as_it_should_and_no_more(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, maxRuns=2)

    for _ in range(5):
        await clock.after(HOUR)
        await clock.end_if_any()

    assert await clock.outcomes(schedule) == ["completed", "completed"]
    assert (await clock.look(schedule)).state is ScheduleState.COMPLETED


async def test_a_schedule_never_runs_at_or_after_its_expiry(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, expiresAt=(NOON + 3 * HOUR).isoformat())
    late = await clock.create(cronExpression=HOURLY, expiresAt=(NOON + HOUR + MINUTE).isoformat())

    for _ in range(5):
        await clock.after(HOUR + MINUTE / 2)
        await clock.end_if_any()
        await clock.end_if_any()

    assert await clock.outcomes(schedule) == ["completed", "completed"]
    assert (await clock.look(schedule)).state is ScheduleState.EXPIRED
    assert await clock.outcomes(late) == ["completed"]


async def test_a_run_that_comes_too_late_for_the_expiry_is_written_down_as_missed(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, expiresAt=(NOON + HOUR + MINUTE).isoformat())

    await clock.at(NOON + HOUR + MINUTE)

    assert await clock.outcomes(schedule) == ["missed"]
    assert (await clock.look(schedule)).state is ScheduleState.EXPIRED


@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    ("policy", "outcomes", "state"),
    [
        ("skip", ["missed", "started"], ScheduleState.ACTIVE),  # the last of them is only two minutes late
        ("catchup", ["started"], ScheduleState.ACTIVE),
        ("fail", ["missed"], ScheduleState.FAILED),
    ],
)
async def test_missed_runs_follow_the_policy(
    clock: Clockwork, policy: str, outcomes: list[str], state: ScheduleState
) -> None:
    schedule = await clock.create(cronExpression=HOURLY, missedRunPolicy=policy)

    await clock.at(NOON + 3 * HOUR + 2 * MINUTE)
    await clock.tick()

    assert await clock.outcomes(schedule) == outcomes
    found = await clock.look(schedule)
    assert found.state is state
    assert found.next_run_at == (NOON + 4 * HOUR if state is ScheduleState.ACTIVE else None)


@pytest.mark.parametrize("policy", ["skip", "catchup", "fail"])
async def test_times_that_are_a_little_late_are_one_run_whatever_the_policy(clock: Clockwork, policy: str) -> None:
    schedule = await clock.create(cronExpression="* * * * *", missedRunPolicy=policy)

    await clock.at(NOON + 4 * MINUTE + SECOND)

    (run,) = await clock.history(schedule)
    assert (run.occurrence, run.outcome, run.missed) == (NOON + MINUTE, RunOutcome.STARTED, 3)
    found = await clock.look(schedule)
    assert (found.state, found.next_run_at) == (ScheduleState.ACTIVE, NOON + 5 * MINUTE)


@pytest.mark.promise("P14")
@pytest.mark.parametrize("jump", [SECOND, 5 * MINUTE, HOUR, DAY, 3653 * DAY])
@pytest.mark.parametrize("policy", ["skip", "catchup"])
async def test_a_clock_that_jumps_both_ways_and_comes_back_neither_doubles_nor_drops_a_run(
    clock: Clockwork, jump: timedelta, policy: str
) -> None:
    just_started = await clock.create(cronExpression="59 * * * *", missedRunPolicy=policy)
    about_to_start = await clock.create(cronExpression=HOURLY, missedRunPolicy=policy)
    real = NOON + 59 * MINUTE + 30 * SECOND
    await clock.at(real)
    await clock.ends()

    for moment in (real + jump, real, real - jump, real, *(NOON + hour * HOUR for hour in range(1, 5))):
        await clock.at(moment)
        await clock.end_if_any()
        await clock.end_if_any()

    for schedule, first in ((just_started, NOON + HOUR - MINUTE), (about_to_start, NOON + HOUR)):
        runs = await clock.history(schedule)
        ran = [run.occurrence for run in runs if run.task_id is not None]
        due = {first + hours * HOUR for hours in range(4)}
        assert len(ran) == len(set(ran))
        assert due <= set(ran)
        # While the clock was back, times of the past were to come; one of them may be caught up on.
        assert len(set(ran) - due) <= (policy == "catchup")


@pytest.mark.promise("P14")
async def test_a_step_whose_delay_was_counted_from_a_wrong_clock_does_not_wait_for_it(clock: Clockwork) -> None:
    await clock.pipeline(60_000)
    await clock.tick()
    await clock.at(NOON + 3653 * DAY)
    await clock.ends()

    await clock.at(NOON)

    assert len(await clock.after(MINUTE)) == 1


@pytest.mark.promise("P14")
async def test_two_relays_start_each_run_once(place: Place, clock: Clockwork) -> None:
    hourly = [await clock.create(cronExpression=HOURLY) for _ in range(20)]
    fired: list[str] = []

    async def another_relay() -> None:
        async with open_database(path=place.home.database, url=place.url) as database:
            for hour in (1, 2):
                done = await fire_due(database, Settings(), NOON + hour * HOUR)
                fired.extend(one.run.schedule_id for one in done.fired)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(another_relay)

    for schedule in hourly:
        assert sorted(await clock.outcomes(schedule)) == ["overlapped", "started"]
    assert len(fired) == 40
    assert len(await clock.waiting()) == 20


async def test_a_paused_schedule_does_not_run_and_continues_with_its_next_time(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    paused = await clock.pause(schedule, "the holidays")
    assert (paused.state, paused.next_run_at, paused.message) == (ScheduleState.PAUSED, None, "paused: the holidays")
    assert await clock.pause(schedule) == paused

    assert await clock.at(NOON + 3 * HOUR + MINUTE) == ()
    resumed = await clock.resume(schedule)

    assert (resumed.state, resumed.next_run_at, resumed.message) == (ScheduleState.ACTIVE, NOON + 4 * HOUR, None)
    assert await clock.resume(schedule) == resumed
    assert await clock.outcomes(schedule) == []


async def test_a_moment_that_passed_during_a_pause_goes_by_the_policy(clock: Clockwork) -> None:
    wanted = {"scheduledAt": (NOON + HOUR).isoformat()}
    skipped = await clock.create(**wanted)
    caught_up = await clock.create(**wanted, missedRunPolicy="catchup")
    for schedule in (skipped, caught_up):
        await clock.pause(schedule)

    clock.scene.now = NOON + DAY
    for schedule in (skipped, caught_up):
        await clock.resume(schedule)
    await clock.tick()

    assert await clock.outcomes(skipped) == ["missed"]
    assert (await clock.look(skipped)).state is ScheduleState.EXPIRED
    assert await clock.outcomes(caught_up) == ["started"]


@pytest.mark.parametrize(("policy", "state"), [("skip", ScheduleState.EXPIRED), ("fail", ScheduleState.FAILED)])
async def test_resuming_a_schedule_that_is_too_late_reports_its_end_at_once(
    clock: Clockwork, policy: str, state: ScheduleState
) -> None:
    schedule = await clock.create(scheduledAt=(NOON + HOUR).isoformat(), missedRunPolicy=policy)
    follower = await clock.create(afterSchedule=schedule.id)
    await clock.pause(schedule)
    clock.scene.now = NOON + HOUR + 6 * MINUTE

    resumed = await clock.resume(schedule)

    assert (resumed.state, resumed.next_run_at, resumed.last_outcome) == (state, None, RunOutcome.MISSED)
    assert (resumed.message or "").startswith("the run at 2026-03-04 13:00 UTC was missed: it could not start before")
    assert resumed == await clock.look(schedule)
    assert await clock.tick() == ()
    assert await clock.outcomes(schedule) == ["missed"]
    assert (await clock.look(follower)).state is ScheduleState.FAILED


@pytest.mark.parametrize("policy", ["skip", "catchup", "fail"])
async def test_what_is_resumed_in_time_starts(clock: Clockwork, policy: str) -> None:
    schedule = await clock.create(scheduledAt=(NOON + HOUR).isoformat(), missedRunPolicy=policy)
    await clock.pause(schedule)
    clock.scene.now = NOON + HOUR + 5 * MINUTE

    resumed = await clock.resume(schedule)
    await clock.tick()

    assert (resumed.state, resumed.next_run_at) == (ScheduleState.ACTIVE, NOON + HOUR)
    assert await clock.outcomes(schedule) == ["started"]


async def test_a_pause_that_outlasts_the_expiry_is_the_end(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, expiresAt=(NOON + DAY).isoformat())
    await clock.pause(schedule)

    clock.scene.now = NOON + DAY

    assert (await clock.resume(schedule)).state is ScheduleState.EXPIRED


async def test_a_cancelled_schedule_never_runs_again(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    (first,) = await clock.at(NOON + HOUR)
    assert first.task is not None

    cancelled = await clock.cancel(schedule, "no more")

    assert (cancelled.schedule.state, cancelled.schedule.message) == (ScheduleState.CANCELLED, "no more")
    assert cancelled.open_task is None
    assert (await clock.cancel(schedule, with_tasks=True)).open_task == first.task.id
    assert await clock.at(NOON + 2 * HOUR) == ()
    await clock.ends()
    assert await clock.outcomes(schedule) == ["completed"]


async def test_what_has_ended_cannot_be_paused_resumed_or_cancelled(clock: Clockwork) -> None:
    schedule = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    await clock.at(NOON + HOUR)
    with pytest.raises(ScheduleEnded) as refused:
        await clock.cancel(schedule)
    assert refused.value.hint.startswith(f"`delegate schedule cancel --cancel-tasks {schedule.id}` cancels its task")
    assert (await clock.cancel(schedule, with_tasks=True)).open_task is not None
    await clock.ends()

    for verb in (clock.pause, clock.resume, clock.cancel):
        with pytest.raises(ScheduleEnded, match="is completed: it cannot be"):
            await verb(schedule)
    with pytest.raises(NoSuchSchedule):
        await clock.pause(replace(schedule, id=ScheduleId("schedule-0")))


async def test_a_run_whose_task_is_refused_is_recorded_and_the_schedule_continues(
    clock: Clockwork,
) -> None:
    needed = await clock.scene.submit("needed")
    hourly = await clock.create(cronExpression=HOURLY, dependsOn=[needed.id], maxRuns=1)
    once = await clock.create(scheduledAt=(NOON + HOUR).isoformat(), dependsOn=[needed.id])
    await clock.scene.cancel(needed)

    await clock.at(NOON + HOUR)

    assert await clock.outcomes(hourly) == await clock.outcomes(once) == ["refused"]
    assert f"{needed.id} is cancelled" in str((await clock.history(hourly))[0].message)
    found = await clock.look(hourly)
    assert (found.state, found.runs, found.next_run_at) == (ScheduleState.ACTIVE, 0, NOON + 2 * HOUR)
    failed = await clock.look(once)
    assert failed.state is ScheduleState.FAILED
    assert f"its task could not be created: dependsOn: {needed.id}" in str(failed.message)


async def test_each_run_of_a_cron_schedule_waits_for_the_latest_of_the_one_it_comes_after(clock: Clockwork) -> None:
    before = await clock.create(cronExpression=HOURLY, prompt="build")
    after = await clock.create(cronExpression="1 * * * *", prompt="test", afterSchedule=before.id)

    (alone,) = await clock.at(NOON + MINUTE)
    await clock.ends()
    (build,) = await clock.at(NOON + HOUR)
    (test,) = await clock.after(MINUTE)

    assert alone.task is not None
    assert build.task is not None
    assert test.task is not None
    assert (alone.task.depends_on, alone.task.state) == ((), TaskState.QUEUED)
    assert (test.task.depends_on, test.task.state) == ((build.task.id,), TaskState.BLOCKED)
    await clock.ends()
    assert (await clock.ends()).id == test.task.id
    assert await clock.outcomes(after) == ["completed", "completed"]


async def test_a_one_time_schedule_comes_after_the_good_end_of_another(clock: Clockwork) -> None:
    before = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    soon = await clock.create(afterSchedule=before.id)
    later = await clock.create(afterSchedule=before.id, scheduledAt=(NOON + 3 * HOUR).isoformat())
    assert (soon.next_run_at, later.next_run_at) == (None, None)

    await clock.at(NOON + HOUR)
    assert await clock.after(HOUR) == ()
    await clock.ends()

    assert (await clock.look(soon)).next_run_at == NOON + 2 * HOUR
    assert (await clock.look(later)).next_run_at == NOON + 3 * HOUR
    (fired,) = await clock.tick()
    assert fired.schedule.id == soon.id
    at_once = await clock.create(afterSchedule=before.id)
    assert at_once.next_run_at == clock.scene.now


@pytest.mark.parametrize("way", ["failed", "cancelled task", "cancelled schedule", "missed"])
async def test_what_comes_after_a_bad_end_fails_down_the_chain(clock: Clockwork, way: str) -> None:
    before = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    second = await clock.create(afterSchedule=before.id)
    third = await clock.create(afterSchedule=second.id)
    await clock.pause(third)
    if way == "cancelled schedule":
        await clock.cancel(before)
    elif way == "missed":
        await clock.at(NOON + DAY)
    else:
        (fired,) = await clock.at(NOON + HOUR)
        assert fired.task is not None
        await (clock.ends(BAD) if way == "failed" else clock.scene.cancel(fired.task))

    found = [await clock.look(schedule) for schedule in (second, third)]

    assert [schedule.state for schedule in found] == [ScheduleState.FAILED] * 2
    assert str(found[0].message).startswith(f"it follows {before.id}, and ")
    assert found[1].message == f"it follows {second.id}, and that schedule failed"
    assert await clock.after(DAY) == ()
    with pytest.raises(InvalidSchedule, match="so no schedule can follow it"):
        await clock.create(afterSchedule=before.id)


async def test_a_paused_one_waits_no_longer_when_the_other_has_ended_meanwhile(clock: Clockwork) -> None:
    before = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    after = await clock.create(afterSchedule=before.id)
    await clock.pause(after)
    assert (await clock.resume(after)).next_run_at is None
    await clock.pause(after)
    await clock.at(NOON + HOUR)
    await clock.ends()
    clock.scene.now += DAY

    resumed = await clock.resume(after)

    assert resumed.next_run_at == clock.scene.now
    assert len(await clock.tick()) == 1


async def test_the_steps_of_a_pipeline_run_one_after_the_other_each_from_the_one_before(clock: Clockwork) -> None:
    first, second, third = await clock.pipeline(60_000, 0)
    assert {step.pipeline for step in (first, second, third)} == {first.id}

    one = await clock.starts()
    clock.scene.now += HOUR
    await clock.ends()
    assert await clock.after(59 * SECOND) == ()  # from the end of the step before
    (fired,) = await clock.after(SECOND)
    two = fired.task
    assert two is not None
    await clock.ends()
    three = await clock.starts()

    assert [task.prompt for task in (one, two, three)] == ["step 1", "step 2", "step 3"]
    assert (one.continue_from, two.continue_from, three.continue_from) == (None, one.id, two.id)
    assert (two.depends_on, two.state) == ((one.id,), TaskState.QUEUED)


async def test_a_failed_step_stops_the_rest_of_its_pipeline(clock: Clockwork) -> None:
    steps = await clock.pipeline(0, 0)
    await clock.starts()
    await clock.ends()
    failing = await clock.starts()

    await clock.ends(BAD)

    found = [await clock.look(step) for step in steps]
    assert [step.state.value for step in found] == ["completed", "completed", "failed"]
    assert found[2].message == f"it follows {steps[1].id}, and task {failing.id} of that schedule failed"
    assert await clock.after(DAY) == ()


async def test_a_pipeline_continues_when_the_relay_is_back(clock: Clockwork) -> None:
    await clock.pipeline(0)
    await clock.starts()
    await clock.ends()

    (fired,) = await clock.after(DAY)

    assert fired.run.outcome is RunOutcome.STARTED


async def test_a_pipeline_is_made_whole_or_not_at_all(clock: Clockwork) -> None:
    with pytest.raises(InvalidField, match=r"steps\.1\.continueFrom"):
        await clock.pipeline(steps=[{"prompt": "a"}, {"prompt": "b", "continueFrom": "task-1"}])
    here = {"agent": "shell", "workingDirectory": "/", "machine": "desk"}
    with pytest.raises(UnknownDependency, match=r"steps\.1\.dependsOn: no task task-1"):
        await clock.pipeline(steps=[{"prompt": "a", **here}, {"prompt": "b", **here, "dependsOn": ["task-1"]}])
    with pytest.raises(InvalidField, match=r"steps\.1\.workingDirectory: is missing"):
        await clock.pipeline(steps=[{"prompt": "a", **here}, {"prompt": "b"}])

    assert await clock.page() == []


async def test_the_same_request_key_gives_the_same_schedule_and_the_same_pipeline(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, requestKey="once")
    pipeline = await clock.pipeline(0, requestKey="all")

    assert await clock.create(cronExpression="0 0 * * *", requestKey="once") == schedule
    assert await clock.pipeline(0, 0, 0, requestKey="all") == pipeline
    with pytest.raises(KeyUsed):
        await clock.create(cronExpression=HOURLY, requestKey="all")
    with pytest.raises(KeyUsed):
        await clock.pipeline(0, requestKey="once")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"scheduleType": "cron"}, "cronExpression: is missing"),
        ({"scheduleType": "one_time"}, "scheduledAt: is missing"),
        ({"cronExpression": HOURLY, "scheduledAt": "2030-01-01T00:00:00Z"}, "scheduledAt: applies only to one_time"),
        ({"scheduleType": "one_time", "cronExpression": HOURLY}, "cronExpression: applies only to cron"),
        ({"scheduledAt": NOON.isoformat()}, f"scheduledAt: {NOON.isoformat()} is in the past"),
        ({"scheduledAt": "2030-01-01T00:00:00Z", "maxRuns": 2}, "maxRuns: applies only to cron"),
        ({"cronExpression": "0 0 31 2 *"}, "that day never occurs"),
        ({"cronExpression": HOURLY, "timezone": "Mars/Base"}, "unknown time zone 'Mars/Base'"),
        ({"cronExpression": HOURLY, "expiresAt": (NOON + HOUR).isoformat()}, "expiresAt: leaves no time to run"),
        ({"cronExpression": HOURLY, "afterSchedule": "schedule-0"}, "afterSchedule: no schedule schedule-0"),
        ({"afterSchedule": "schedule-0", "expiresAt": NOON.isoformat()}, "expiresAt: leaves no time"),
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused(clock: Clockwork, wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        await clock.create(**wanted)

    assert words in refused.value.message


async def test_the_task_of_a_schedule_is_checked_as_if_it_were_asked_for_now(clock: Clockwork) -> None:
    ended = await clock.scene.submit()
    await clock.scene.cancel(ended)

    for wanted, problem in (
        ({"agent": "nobody"}, UnknownAgent),
        ({"workingDirectory": "here"}, InvalidField),
        ({"dependsOn": ["task-1"]}, UnknownDependency),
        ({"continueFrom": ended.id}, DependencyFailed),
    ):
        with pytest.raises(problem):
            await clock.create(cronExpression=HOURLY, **wanted)


async def test_schedules_are_listed_the_newest_first_in_pages(clock: Clockwork) -> None:
    made = [await clock.create(cronExpression=HOURLY) for _ in range(3)]
    await clock.pause(made[1])

    rows = await clock.page(limit=2)
    rest = await clock.page(before=rows[-1][0], limit=2)
    paused = await clock.page(state=ScheduleState.PAUSED, limit=2)

    assert [schedule.id for _, schedule in (*rows, *rest)] == [schedule.id for schedule in reversed(made)]
    assert [schedule.id for _, schedule in paused] == [made[1].id]


async def test_a_list_of_schedules_says_how_the_last_run_of_each_has_ended(clock: Clockwork) -> None:
    await clock.create(cronExpression="59 * * * *")
    await clock.pipeline(0, 0)
    await clock.starts()
    await clock.ends()
    await clock.starts()
    running = await listed(clock)
    await clock.ends(BAD)

    assert running == [("active", None), ("completed", "completed"), ("completed", "started"), ("active", None)]
    assert await listed(clock) == [
        ("active", None),
        ("completed", "completed"),
        ("completed", "failed"),
        ("failed", None),
    ]


async def test_the_last_run_is_the_latest_time_that_was_due_also_when_it_made_no_task(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY)
    await clock.at(NOON + HOUR)
    await clock.at(NOON + 2 * HOUR)

    assert await listed(clock) == [("active", "overlapped")]
    await clock.ends()
    await clock.at(NOON + 3 * HOUR)
    await clock.ends(BAD)
    paused = await clock.pause(schedule)
    resumed = await clock.resume(schedule)
    cancelled = await clock.cancel(schedule)

    assert {one.last_outcome for one in (paused, resumed, cancelled.schedule)} == {RunOutcome.FAILED}


async def listed(clock: Clockwork) -> list[tuple[str, str | None]]:
    """The state and the last outcome of each, the oldest first."""
    with overheard() as statements:
        rows = await clock.page()
    assert sum("FROM schedule" in sql for sql, _ in statements) == 1
    return [(one.state.value, one.last_outcome) for _, one in reversed(rows)]


async def test_old_runs_and_schedules_are_forgotten_but_nothing_that_is_needed(clock: Clockwork) -> None:
    hourly = await clock.create(cronExpression=HOURLY, missedRunPolicy="catchup")
    over = await clock.create(scheduledAt=(NOON + HOUR).isoformat())
    _first, second = await clock.pipeline(360 * 86_400_000)
    await clock.tick()
    await clock.ends()
    await clock.at(NOON + HOUR)
    await clock.ends()
    await clock.ends()
    await clock.cancel(hourly)

    clock.scene.now = NOON + 200 * DAY
    await retain(clock.scene.database, Settings(), clock.scene.now)

    left = await clock.page()
    assert second.id in {schedule.id for _, schedule in left}
    assert not {over.id, hourly.id} & {schedule.id for _, schedule in left}
    (fired,) = await clock.at(NOON + 361 * DAY)
    assert fired.task is not None
    assert fired.task.continue_from is not None


def ten_thousand(connection: Connection) -> None:
    """Schedules that are due later, and runs of theirs."""
    columns = "id, state, timezone, request, next_run_at, reckoned_at, created_at, after_id"
    later = (NOON + DAY - EPOCH) // timedelta(microseconds=1)
    values = ", ".join(f"('s-{n}', 'active', 'UTC', '{{}}', {later + n}, 0, 0, 's-{n - 1}')" for n in range(10_000))
    connection.exec_driver_sql(f"INSERT INTO schedule ({columns}) VALUES {values}")
    runs = ", ".join(f"('s-{n}', {n}, 0, 'completed', 'task-{n}')" for n in range(10_000))
    connection.exec_driver_sql(
        f"INSERT INTO schedule_run (schedule_id, occurrence, at, outcome, task_id) VALUES {runs}"
    )
    if connection.dialect.name == "postgresql":  # which does that by itself, soon
        connection.exec_driver_sql("ANALYZE")


@pytest.mark.promise("P14")
async def test_a_run_costs_the_same_however_many_schedules_there_are(clock: Clockwork) -> None:
    before = await clock.create(cronExpression=HOURLY)
    await clock.create(afterSchedule=before.id)
    await clock.scene.database.write("fill", ten_thousand)

    with overheard() as statements:
        await clock.at(NOON + HOUR)
        await clock.ends()
        await expire(clock.scene.database, clock.scene.now)

    asked = [
        statement for statement in statements if "FROM schedule" in statement[0] or "UPDATE schedule" in statement[0]
    ]
    assert len(asked) >= 6
    for sql, parameters in asked:
        plan = await plan_of(clock.scene.database, (sql, parameters))
        assert not any("SCAN schedule" in step or "Seq Scan schedule" in step for step in plan), (sql, plan)
        assert not any("Sort" in step or "TEMP B-TREE" in step for step in plan), (sql, plan)
        assert "'paused'" in sql or not any("ix_schedule_state" in step for step in plan), (sql, plan)


async def test_old_runs_are_found_without_a_look_at_the_others(clock: Clockwork) -> None:
    await clock.scene.database.write("fill", ten_thousand)
    new = (NOON - EPOCH) // timedelta(microseconds=1)
    await clock.scene.database.write(
        "age", lambda c: c.exec_driver_sql(f"UPDATE schedule_run SET at = {new} WHERE occurrence > 5")
    )
    await clock.scene.database.write("analyze", lambda c: c.exec_driver_sql("ANALYZE"))

    with overheard("DELETE FROM schedule_run") as statements:
        dropped = await clock.scene.database.write("drop", partial(drop_runs_before, cutoff=NOON - DAY, limit=100))

    assert dropped == 6
    (statement,) = statements
    plan = await plan_of(clock.scene.database, statement)
    assert any("ix_schedule_run_at" in step for step in plan), plan
    assert not any("SCAN schedule_run" in step or "Seq Scan schedule_run" in step for step in plan), plan


async def test_a_leap_day_comes_every_four_years(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression="0 9 29 2 *", timezone="Europe/Berlin")

    await clock.at(datetime(2028, 2, 29, 8, tzinfo=UTC))

    assert await clock.outcomes(schedule) == ["started"]
    assert (await clock.look(schedule)).next_run_at == datetime(2032, 2, 29, 8, tzinfo=UTC)
