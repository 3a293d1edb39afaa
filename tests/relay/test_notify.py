"""Who is woken by what."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from tests.both_databases.scene import runner

from delegate.placement import Placement, lane_of
from delegate.queue.placement import LaneScope, scope_of
from delegate.relay.notify import ALL_TASKS, Hub, holder_key

pytestmark = pytest.mark.anyio


def scope(*agents: str) -> LaneScope:
    return scope_of(runner().runner, agents)


def lane(agent: str, runner: str | None = None) -> str:
    return lane_of(Placement(agent=agent, machine="desk", runner=runner))


async def test_one_wake_up_wakes_the_one_that_waits_longest() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a")) as first, hub.add_waiter(scope("a")) as second:
        hub.wake(lane("a"))
        assert (first.woken.is_set(), second.woken.is_set()) == (True, False)

        hub.wake(lane("a"))
        assert second.woken.is_set()


async def test_a_wake_up_of_another_lane_wakes_no_waiter() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a")) as waiter:
        hub.wake(lane("b"))

        assert not waiter.woken.is_set()


async def test_a_wake_up_passes_by_a_runner_that_may_not_take_the_task() -> None:
    hub = Hub()
    attic = replace(runner().runner, name="attic")
    with hub.add_waiter(scope("a")) as first, hub.add_waiter(scope_of(attic, ["a"])) as second:
        hub.wake(lane("a", runner="attic"))

        assert (first.woken.is_set(), second.woken.is_set()) == (False, True)


async def test_whoever_leaves_with_a_wake_up_passes_it_on() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a", "b")) as second:
        with hub.add_waiter(scope("a")):
            hub.wake(lane("a"))  # the one that waits longest
            hub.wake(lane("a"))
            assert second.lane == lane("a")
            second.consume_wakeup()

        assert second.lane == lane("a")


async def test_whoever_has_looked_can_be_woken_again() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a", "b")) as waiter:
        hub.wake(lane("a"))
        looked_for = waiter.consume_wakeup()
        hub.wake(lane("b"))

        assert (looked_for, waiter.lane) == (lane("a"), lane("b"))


async def test_a_lane_named_twice_is_one_lane() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a", "a")) as twice, hub.add_waiter(scope("a")) as once:
        hub.wake(lane("a"))
        first = (twice.woken.is_set(), once.woken.is_set())
        hub.wake(lane("a"))

        assert first == (True, False)
        assert once.woken.is_set()


async def test_a_ring_reaches_the_followers_of_the_task_and_of_all() -> None:
    hub = Hub()
    with hub.subscribe("t1") as one, hub.subscribe("t2") as other, hub.subscribe(ALL_TASKS) as everything:
        hub.notify("t1")

        assert await one.wait(5)
        assert await everything.wait(5)
        assert not other.notified.is_set()


async def test_the_holder_of_a_task_hears_alerts_and_not_its_own_reports() -> None:
    hub = Hub()
    with hub.subscribe(holder_key("t1")) as holder, hub.subscribe("t1") as follower:
        hub.notify("t1")
        assert not holder.notified.is_set()

        hub.notify_with_holder("t1")
        assert await holder.wait(5)
        assert await follower.wait(5)


async def test_a_ring_before_the_wait_is_not_lost() -> None:
    hub = Hub()
    with hub.subscribe("t1") as subscription:
        hub.notify("t1")

        with anyio.fail_after(5):
            assert await subscription.wait(60)
        assert not subscription.notified.is_set()


async def test_closing_ends_every_wait() -> None:
    hub = Hub()
    with hub.add_waiter(scope("a")) as waiter, hub.subscribe("t1") as subscription:
        hub.close()

        assert waiter.woken.is_set()
        assert await subscription.wait(5)
        assert hub.closing.is_set()
