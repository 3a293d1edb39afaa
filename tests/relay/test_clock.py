"""The relay's own clock, looked at from inside."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.both_databases.scene import Scene, runner
from tests.relay.peers import WAIT, client, relay_in_process, runner_of, running_relay, task

from delegate.config.observed_time import ObservedClock
from delegate.intake import schedules
from delegate.intake.firing import BATCH_SIZE
from delegate.intake.from_wire import parse_schedule
from delegate.relay.clock import RETRY_AFTER_FAILURE, TICK_EVERY, Clock
from delegate.relay.housekeeping import Retention
from delegate.relay.requests import Relay
from delegate.schedule.model import Schedule
from delegate.store.runners import all_slots
from delegate.store.schedules import page_of_schedules
from delegate.wire.schedules import ScheduleRequest

pytestmark = pytest.mark.anyio
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


async def made(relay: Relay, at: datetime, **wanted: Any) -> Schedule:
    body = {**task(), "scheduleType": "one_time", "scheduledAt": at.isoformat(), **wanted}
    parsed = parse_schedule(ScheduleRequest.model_validate(body))
    return (await schedules.create(relay.database, parsed, relay.settings, relay.now())).schedule


async def states(relay: Relay) -> set[str]:
    found = await relay.database.read(partial(page_of_schedules, state=None, before=None, limit=1000))
    return {schedule.state.value for _, schedule in found}


async def state_of(relay: Relay, schedule: Schedule) -> str:
    return (await schedules.read_full_schedule(relay.database, schedule.id, 1)).schedule.state.value


async def test_a_crowd_that_is_due_is_started_in_one_look(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        due = relay.now() + DAY
        for _ in range(2 * BATCH_SIZE + 1):
            await made(relay, due)

        pause = await Clock(relay).tick(due)

        assert await states(relay) == {"completed"}
        assert pause == TICK_EVERY


@pytest.mark.promise("P13")
async def test_without_disk_space_nothing_is_started_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with relay_in_process(tmp_path, relay_min_free=2**60) as relay:
        due = relay.now() + DAY
        await made(relay, due)
        clock = Clock(relay)

        pauses = [await clock.tick(due + number * SECOND) for number in range(3)]
        short = await states(relay)
        clock.relay = replace(relay, settings=replace(relay.settings, relay_min_free=0))
        await clock.tick(due + 3 * SECOND)

        assert pauses == [RETRY_AFTER_FAILURE] * 3
        assert (short, await states(relay)) == ({"active"}, {"completed"})
    levels = [record.levelname for record in caplog.records if "disk space is" in record.msg]
    assert levels == ["WARNING", "INFO"]


async def test_what_expires_while_it_waits_is_ended_by_the_clock(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        now = relay.now()
        before = await made(relay, now + 9 * DAY)
        body = {"afterSchedule": before.id, "expiresAt": (now + DAY).isoformat()}
        await made(relay, now + SECOND, **body)
        clock = Clock(relay)

        await clock.tick(now)
        assert await states(relay) == {"active"}
        await clock.tick(now + DAY)

        assert await states(relay) == {"active", "expired"}


async def test_two_that_expire_one_after_the_other_delay_no_other(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        now = relay.now()
        before = await made(relay, now + 9 * DAY)
        expiring = {"expiresAt": (now + DAY).isoformat()}
        waiting = await made(relay, now + SECOND, afterSchedule=before.id, **expiring)
        last = await made(relay, now + SECOND, afterSchedule=waiting.id, **expiring)
        due = await made(relay, now + DAY)

        await Clock(relay).tick(now + DAY)

        assert await state_of(relay, due) == "completed"
        assert await state_of(relay, waiting) == "expired"
        assert await state_of(relay, last) != "active"


async def test_an_unreadable_schedule_does_not_delay_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with relay_in_process(tmp_path) as relay:
        now = relay.now()
        before = await made(relay, now + 9 * DAY)
        await made(relay, now + SECOND, afterSchedule=before.id, expiresAt=(now + DAY).isoformat())
        await made(relay, now + DAY)
        await relay.database.write("damage", lambda c: c.execute(text("UPDATE schedule SET request = '{'")))
        due = [await made(relay, now + DAY), await made(relay, now + DAY + 2 * RETRY_AFTER_FAILURE)]
        clock = Clock(relay)

        for moment in (now + DAY, now + DAY + SECOND, now + DAY + 2 * RETRY_AFTER_FAILURE, now):
            await clock.tick(moment)

        assert [await state_of(relay, one) for one in due] == ["completed", "completed"]
    failures = [vars(record)["chore"] for record in caplog.records if record.msg == "schedule maintenance failed"]
    assert failures == ["expire", "expire", "recompute_next_runs"]
    assert all(record.exc_info for record in caplog.records if record.levelname == "ERROR")


@pytest.mark.promise("P23")
async def test_history_is_dropped_only_after_an_hour_with_the_clock_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [timedelta(), 365 * DAY, timedelta(), 365 * DAY, 365 * DAY, 365 * DAY]
    uptime = itertools.count(0, 1800)
    async with relay_in_process(tmp_path) as relay:
        now = relay.now()
        scene = Scene(relay.database, now=now)
        await scene.finish(await scene.take())
        await scene.register(replace(runner(), seen_at=now))
        kept = []

        for moment in times:
            monkeypatch.setattr(Relay, "now", lambda _, moment=moment: now + moment)
            # Each time a new relay that lives for half an hour
            retention = Retention(ObservedClock(tmp_path / "clock.json", uptime.__next__))
            await retention.retain(relay)
            await retention.retain(relay)
            kept.append((len(await scene.page()), len(await relay.database.read(all_slots))))

        assert kept == [(1, 1)] * 5 + [(0, 0)]


@pytest.mark.real
async def test_with_a_database_elsewhere_the_disk_of_the_home_stops_nothing(tmp_path: Path, postgres_url: str) -> None:
    low = {"DELEGATE_DATABASE_URL": postgres_url, "DELEGATE_RELAY_MIN_FREE": str(1 << 49)}
    with running_relay(tmp_path, **low) as relay:
        async with client(relay.url) as owner, runner_of(owner) as runner:
            soon = (datetime.now(UTC) + 0.3 * SECOND).isoformat()
            body = task(scheduleType="one_time", scheduledAt=soon, machine=runner.machine)
            assert (await owner.post("/api/schedules", json=body)).status_code == 201

            assert await runner.ask(wait=WAIT) is not None
            assert (await owner.post("/api/tasks", json=task())).status_code == 201
        assert not (tmp_path / "ballast").exists()
