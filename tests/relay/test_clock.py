"""The relay's own clock, looked at from inside."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.relay.peers import relay_in_process, task

from delegate.intake import schedules
from delegate.intake.firing import AT_ONCE
from delegate.intake.wishes import schedule_wish
from delegate.relay.clock import AFTER_FAILURE, LOOK_EVERY, Clock
from delegate.relay.state import Relay
from delegate.schedule import Schedule
from delegate.wire.schedules import ScheduleRequest

pytestmark = pytest.mark.anyio
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


async def made(relay: Relay, at: datetime, **wanted: Any) -> Schedule:
    body = {**task(), "scheduleType": "one_time", "scheduledAt": at.isoformat(), **wanted}
    wish = schedule_wish(ScheduleRequest.model_validate(body))
    return (await schedules.create(relay.database, wish, relay.settings, relay.now())).schedule


async def states(relay: Relay) -> set[str]:
    found = await schedules.page(relay.database, state=None, before=None, limit=1000)
    return {schedule.state.value for _, schedule in found}


async def test_a_crowd_that_is_due_is_started_in_one_look(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        due = relay.now() + DAY
        for _ in range(2 * AT_ONCE + 1):
            await made(relay, due)

        pause = await Clock(relay).look(due)

        assert await states(relay) == {"completed"}
        assert pause == LOOK_EVERY


@pytest.mark.promise("P13")
async def test_without_room_on_the_disk_nothing_is_started_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with relay_in_process(tmp_path, relay_min_free=2**60) as relay:
        due = relay.now() + DAY
        await made(relay, due)
        clock = Clock(relay)

        pauses = [await clock.look(due + number * SECOND) for number in range(3)]
        short = await states(relay)
        clock.relay = replace(relay, settings=replace(relay.settings, relay_min_free=0))
        await clock.look(due + 3 * SECOND)

        assert pauses == [AFTER_FAILURE] * 3
        assert (short, await states(relay)) == ({"active"}, {"completed"})
    told = [record.levelname for record in caplog.records if "on the disk" in record.msg]
    assert told == ["WARNING", "INFO"]


async def test_what_expires_while_it_waits_is_ended_by_the_clock(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        now = relay.now()
        before = await made(relay, now + 9 * DAY)
        body = {"afterSchedule": before.id, "expiresAt": (now + DAY).isoformat()}
        await made(relay, now + SECOND, **body)
        clock = Clock(relay)

        await clock.look(now)
        assert await states(relay) == {"active"}
        await clock.look(now + DAY)

        assert await states(relay) == {"active", "expired"}
