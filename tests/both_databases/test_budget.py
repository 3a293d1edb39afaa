from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.both_databases.scene import DONE, GONE, NOON, Scene, fact, parked_until

from delegate.errors import StaleFence
from delegate.model import EventKind, Outcome, Usage
from delegate.queue.claim import budget_left
from delegate.queue.limits import start_of_day
from delegate.queue.questions import ask
from delegate.report.follow import relay_state
from delegate.states import AttemptState, Reason, TaskState

pytestmark = pytest.mark.anyio


def spent(usd: float) -> Usage:
    return Usage(cost_usd=usd)


async def left(scene: Scene) -> float | None:
    return await scene.database.read(lambda c: budget_left(c, scene.rules, scene.now))


async def test_without_a_daily_budget_a_task_has_only_its_own(scene: Scene) -> None:
    limited = await scene.take(agent="claude", max_budget_usd=3.0)
    unlimited = await scene.take(agent="claude")

    assert (limited.attempt.budget_usd, unlimited.attempt.budget_usd) == (3.0, None)
    assert await left(scene) is None


async def test_a_paid_attempt_reserves_what_it_may_spend(scene: Scene) -> None:
    scene.with_budget(10.0)

    limited = await scene.take(agent="claude", max_budget_usd=3.0)
    assert await left(scene) == 7.0
    unlimited = await scene.take(agent="claude")

    assert (limited.attempt.budget_usd, unlimited.attempt.budget_usd) == (3.0, 7.0)
    assert await left(scene) == 0.0


async def test_a_promised_budget_stops_paid_agents_and_no_others(scene: Scene) -> None:
    scene.with_budget(10.0)
    await scene.take(agent="claude")
    await scene.submit("paid", agent="claude")
    await scene.submit("free", agent="shell")

    held = await scene.claim()

    assert held is not None
    assert held.task.prompt == "free"
    assert await scene.claim() is None


async def test_what_an_attempt_did_not_spend_is_free_again(scene: Scene) -> None:
    scene.with_budget(10.0)
    held = await scene.take(agent="claude")
    await scene.submit(agent="claude")
    assert await scene.claim() is None

    await scene.finish(held, replace(DONE, usage=spent(4.0)))

    after = await scene.claim()
    assert after is not None
    assert after.attempt.budget_usd == 6.0


@pytest.mark.parametrize("ends", ["finished", "parked"])
async def test_a_spent_budget_stops_paid_agents_until_the_next_day(scene: Scene, ends: str) -> None:
    scene.with_budget(1.0)
    held = await scene.take(agent="claude")
    outcome = replace(DONE, usage=spent(1.2)) if ends == "finished" else parked_until(NOON, usage=spent(1.2))
    await scene.finish(held, outcome)
    await scene.submit(agent="claude")

    scene.now = NOON.replace(hour=23, minute=59, second=59)
    assert await scene.claim() is None
    scene.now += timedelta(seconds=1)

    assert await scene.claim() is not None
    assert (await relay_state(scene.database, None, NOON)).spent_today_usd == 1.2
    assert (await relay_state(scene.database, None, scene.now)).spent_today_usd == 0.0


async def test_a_command_costs_nothing_of_the_daily_budget(scene: Scene) -> None:
    scene.with_budget(10.0)

    held = await scene.take(agent="shell")

    assert held.attempt.budget_usd is None
    assert await left(scene) == 10.0


async def test_claims_at_once_never_promise_more_than_the_budget(scene: Scene) -> None:
    scene.with_budget(10.0)
    for _ in range(16):
        await scene.submit(agent="claude", max_budget_usd=2.0)

    taken = await scene.claim_at_once(16)

    assert [held.attempt.budget_usd for held in taken] == [2.0] * 5
    assert await left(scene) == 0.0


async def test_what_was_spent_before_a_park_is_taken_off_the_tasks_own_budget(scene: Scene) -> None:
    held = await scene.take(agent="claude", max_budget_usd=5.0)
    await scene.finish(held, parked_until(scene.now, usage=Usage(cost_usd=4.0)))

    again = await scene.claim()

    assert again is not None
    assert again.attempt.budget_usd == 1.0


async def test_the_reported_cost_of_a_lost_attempt_counts(scene: Scene) -> None:
    scene.with_budget(10.0)
    held = await scene.take(agent="claude")
    await scene.record(held, fact(0, kind=EventKind.USAGE, costUsd=4.0, outputTokens=7))

    lost = await scene.release(held, GONE)

    assert (lost.usage.cost_usd, lost.usage.output_tokens) == (4.0, 7)
    assert await left(scene) == 6.0


async def test_a_task_stopped_by_the_days_budget_waits_for_the_next_day(scene: Scene) -> None:
    scene.with_budget(1.0)
    held = await scene.take(agent="claude", max_budget_usd=5.0)
    broke = Outcome(state=AttemptState.FAILED, reason=Reason.BUDGET, message="spent", usage=Usage(cost_usd=1.0))

    waiting = await scene.finish(held, broke)
    again = await scene.finish(held, broke)

    assert (waiting.state, waiting.not_before) == (TaskState.QUEUED, start_of_day(scene.now) + timedelta(days=1))
    assert (again.id, again.state) == (waiting.id, TaskState.QUEUED)


@pytest.mark.parametrize("has_asked", [False, True])
async def test_an_end_by_the_daily_budget_that_is_reported_twice_is_one_end(scene: Scene, has_asked: bool) -> None:
    """Its cost is already recorded when the end is reported again."""
    scene.with_budget(3.0)
    held = await scene.take(agent="claude", max_budget_usd=5.0)
    broke = Outcome(state=AttemptState.FAILED, reason=Reason.BUDGET, message="", exit_code=1, usage=spent(3.0))
    if has_asked:
        await ask(scene.database, held.attempt.id, "Red or blue?", [], scene.now)

    first = await scene.finish(held, broke)
    again = await scene.finish(held, broke)

    assert first.state is (TaskState.WAITING if has_asked else TaskState.QUEUED)
    assert again == first
    with pytest.raises(StaleFence):
        await scene.finish(held, replace(broke, reason=Reason.TIMEOUT))


async def test_a_task_stopped_by_its_own_budget_has_failed(scene: Scene) -> None:
    scene.with_budget(10.0)
    held = await scene.take(agent="claude", max_budget_usd=1.0)
    broke = Outcome(state=AttemptState.FAILED, reason=Reason.BUDGET, message="spent", usage=Usage(cost_usd=1.0))

    ended = await scene.finish(held, broke)

    assert (ended.state, ended.reason) == (TaskState.FAILED, Reason.BUDGET)
