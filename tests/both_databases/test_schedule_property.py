"""Random schedules in three zones, across both clock changes of a year, against a simulation minute by minute."""

from __future__ import annotations

import itertools
import os
from datetime import datetime, timedelta
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.both_databases.almanac import CHANGES, DAY, EXPRESSIONS, MINUTE, Almanac, Keeper
from tests.both_databases.clockwork import Clockwork
from tests.both_databases.scene import Scene, runner

from delegate.schedule.cron import times_after
from delegate.store.database import Database

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P14")]
EXAMPLES = int(os.environ.get("DELEGATE_SCHEDULE_EXAMPLES", "25"))
SLACK = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
machines = itertools.count()
Look = tuple[int, bool]  # minutes since the last one, and whether what ran has ended meanwhile


@settings(max_examples=5 * EXAMPLES, deadline=None)
@given(
    expression=EXPRESSIONS, change=st.sampled_from(CHANGES), minutes=st.integers(0, 40 * 60), seconds=st.integers(0, 59)
)
async def test_times_are_those_that_the_clocks_on_the_wall_show(
    expression: str, change: tuple[str, datetime], minutes: int, seconds: int
) -> None:
    zone, moment = change
    start = moment - minutes * MINUTE + timedelta(seconds=seconds)
    end = moment + DAY

    found = list(takewhile(lambda time: time <= end, times_after(expression, zone, start)))

    assert found == list(Almanac(expression, zone).times(start, end))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLACK)
@given(
    expression=EXPRESSIONS,
    change=st.sampled_from(CHANGES),
    before=st.integers(1, 20 * 60),
    policy=st.sampled_from(["skip", "catchup", "fail"]),
    max_runs=st.none() | st.integers(1, 4),
    lifetime=st.none() | st.integers(60, 30 * 60),
    looks=st.lists(
        st.tuples(st.one_of(st.integers(1, 8), st.integers(30, 130), st.integers(1, 900)), st.booleans()),
        min_size=3,
        max_size=20,
    ),
)
async def test_what_comes_of_every_time_is_what_a_simulation_says(
    database: Database,
    expression: str,
    change: tuple[str, datetime],
    before: int,
    policy: str,
    max_runs: int | None,
    lifetime: int | None,
    looks: list[Look],
) -> None:
    zone, moment = change
    start = moment - before * MINUTE
    almanac = Almanac(expression, zone)
    first = next(almanac.times(start, start + 3 * DAY), None)
    expires_at = None if lifetime is None else start + lifetime * MINUTE
    if first is None or (expires_at is not None and first >= expires_at):
        return
    keeper = Keeper(policy=policy, max_runs=max_runs, expires_at=expires_at)
    machine = f"desk-{next(machines)}"
    clock = Clockwork(Scene(database, now=start))
    limits = {"maxRuns": max_runs, "expiresAt": expires_at and expires_at.isoformat()}
    wanted = {"cronExpression": expression, "timezone": zone, "missedRunPolicy": policy, "machine": machine}
    schedule = await clock.create(**wanted, **{name: value for name, value in limits.items() if value})

    for gap, has_ended in looks:
        now = clock.scene.now + gap * MINUTE
        due = almanac.times(clock.scene.now, now)
        keeper.due += [time for time in due if expires_at is None or time < expires_at]
        clock.scene.now = now
        if has_ended and keeper.is_open:
            held = await clock.scene.claim(runner(machine=machine))
            assert held is not None
            await clock.scene.finish(held)
            keeper.is_open = False
        keeper.look(now)
        while await clock.tick():
            pass
        if keeper.is_over:
            break

    history = await clock.history(schedule)
    names = {"completed": "started"}  # the keeper does not say how a run ended
    kept = [(run.occurrence, run.at, names.get(run.outcome, run.outcome.value), run.missed) for run in history]
    assert kept == keeper.rows
    found = await clock.look(schedule)
    assert found.runs == keeper.runs
    if not keeper.is_over and found.ended_at is None:
        await clock.cancel(schedule)
