"""The stored task of a schedule, as older and newer relays have written it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import insert, select
from tests.both_databases.clockwork import DAY, HOUR, HOURLY, Clockwork
from tests.both_databases.scene import NOON

from delegate.config.settings import Settings
from delegate.model import ScheduleId
from delegate.relay.schedules import schedule_view
from delegate.report.retention import retain
from delegate.schedule.model import Schedule, ScheduleState
from delegate.store.schedules import get_schedule
from delegate.store.tables import schedule as table

pytestmark = pytest.mark.anyio

# From before the version: one schedule of the command line, one of an MCP client.
OLD_COMMAND = """{"prompt": "back up", "priority": "P1", "agent": "shell", "workingDirectory": "/", "machine": "desk",
 "timeout": 5000}"""
OLD_TOOL = """{"prompt": "back up", "priority": "P1", "agent": "shell", "defaultAgent": null, "workingDirectory": "/",
 "machine": "desk", "timeout": 5000, "dependsOn": []}"""
NEWER = """{"version": 2, "instructions": {"text": "back up"}, "agents": ["shell"]}"""


async def store(clock: Clockwork, request: str, **timing: Any) -> Schedule:
    """Insert the row of a schedule that is due in an hour."""
    row = {
        "id": "sched-01",
        "state": "active",
        "timezone": "UTC",
        "request": json.loads(request),
        "next_run_at": NOON + HOUR,
        "reckoned_at": NOON,
        "created_at": NOON,
        **timing,
    }
    await clock.scene.database.write("stored", lambda c: c.execute(insert(table).values(row)))
    found = await clock.scene.database.read(lambda c: get_schedule(c, ScheduleId("sched-01")))
    assert found is not None
    return found


@pytest.mark.parametrize("request_text", [OLD_COMMAND, OLD_TOOL], ids=["command", "tool"])
async def test_a_schedule_stored_without_a_version_is_shown_and_runs(clock: Clockwork, request_text: str) -> None:
    schedule = await store(clock, request_text, cron=HOURLY)

    view = schedule_view(schedule)
    assert (view.prompt, view.task, view.next_run_at) == ("back up", json.loads(request_text), NOON + HOUR)

    (fired,) = await clock.at(NOON + HOUR)
    await clock.ends()
    assert fired.task is not None
    assert (fired.task.prompt, fired.task.priority.name, fired.task.machine) == ("back up", "P1", "desk")
    assert fired.task.limits.timeout.total_seconds() == 5
    assert await clock.outcomes(schedule) == ["completed"]
    assert (await clock.look(schedule)).next_run_at == NOON + 2 * HOUR


async def test_a_schedule_stored_without_a_version_keeps_the_tasks_that_it_names(clock: Clockwork) -> None:
    before = await clock.scene.submit()
    await clock.ends()
    request = {**json.loads(OLD_COMMAND), "dependsOn": [before.id]}
    await store(clock, json.dumps(request), cron=HOURLY)

    assert await retain(clock.scene.database, Settings(), NOON + 400 * DAY) == 0


async def test_a_new_schedule_is_stored_with_its_version_and_shown_without(clock: Clockwork) -> None:
    schedule = await clock.create(cronExpression=HOURLY, prompt="back up")

    stored = await clock.scene.database.read(lambda c: c.execute(select(table.c.request)).scalar_one())

    assert stored["version"] == 1
    assert schedule_view(await clock.look(schedule)).task == {
        name: value for name, value in stored.items() if name != "version"
    }


async def test_a_run_in_a_newer_version_is_refused_and_says_why(clock: Clockwork) -> None:
    schedule = await store(clock, NEWER, cron=HOURLY)
    other = await clock.create(cronExpression=HOURLY)

    await clock.at(NOON + HOUR)

    (run,) = await clock.history(schedule)
    found = await clock.look(schedule)
    assert (run.outcome, run.task_id) == ("refused", None)
    assert "stored in version 2, and this relay reads only version 1; upgrade the relay" in (run.message or "")
    assert (found.state, found.next_run_at) == (ScheduleState.ACTIVE, NOON + 2 * HOUR)
    assert await clock.outcomes(other) == ["started"]


async def test_a_one_time_schedule_in_a_newer_version_fails_and_says_why(clock: Clockwork) -> None:
    schedule = await store(clock, NEWER, at=NOON + HOUR)

    await clock.at(NOON + HOUR)

    found = await clock.look(schedule)
    assert found.state is ScheduleState.FAILED
    assert "stored in version 2" in (found.message or "")


async def test_a_schedule_in_a_newer_version_can_be_listed_paused_and_cancelled(clock: Clockwork) -> None:
    schedule = await store(clock, NEWER, cron=HOURLY)

    await clock.pause(schedule)
    await clock.resume(schedule)
    await clock.cancel(schedule)

    ((_, listed),) = await clock.page()
    view = schedule_view(listed)
    assert (view.status, view.prompt) == ("cancelled", "")
    assert view.task == {"instructions": {"text": "back up"}, "agents": ["shell"]}
