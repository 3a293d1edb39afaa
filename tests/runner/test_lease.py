from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from delegate.config.observed_time import sleep_counting_clock
from delegate.runner import lease as lease_module
from delegate.runner.lease import Lease
from delegate.runner.wakeup import Wakeup
from delegate.wire.runners import Control, MessageView, RenewRequest, Timings

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

    from delegate.runner.assignment import Assignment

pytestmark = pytest.mark.anyio


async def test_a_lease_is_renewed_again_and_again(stage: Stage) -> None:
    equipment, assignment = await stage.take("exit 0")
    attention = Wakeup()
    lease = Lease(equipment.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        with anyio.fail_after(5):
            while lease.renewals < 3:
                await attention.wait()
        group.cancel_scope.cancel()

    assert lease.renewals == 3


@pytest.mark.promise("P4")
async def test_after_a_sleep_nothing_is_sent_before_a_renewal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    equipment, assignment = await stage.take("exit 0")
    lease = Lease(equipment.link, assignment, Wakeup())
    slept = stage.settings.lease.total_seconds()
    monkeypatch.setattr(lease_module, "sleep_counting_clock", lambda: sleep_counting_clock() + slept)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        with anyio.fail_after(5):
            await lease.ensure_fresh()
        group.cancel_scope.cancel()

    assert lease.renewals > 0


@pytest.mark.promise("P4")
async def test_after_a_sleep_the_pause_that_follows_news_is_cut_short(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    equipment, assignment = await stage.take("exit 0", agent="claude")
    equipment.link.timings = Timings(heartbeat=50, lease=100, reclaim_after=500)
    attention = Wakeup()
    lease = Lease(equipment.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "hello"})
        with anyio.fail_after(5):
            while not lease.take_messages():
                await attention.wait()
            monkeypatch.setattr(lease_module, "sleep_counting_clock", lambda: sleep_counting_clock() + 200)
            await lease.ensure_fresh()
        group.cancel_scope.cancel()

    assert lease.renewals == 2


async def test_a_cancel_arrives_while_a_renewal_is_held(stage: Stage) -> None:
    attention = Wakeup()
    equipment, assignment = await stage.take("exit 0")
    lease = Lease(equipment.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        await stage.client.post(f"/api/tasks/{assignment.task_id}/cancel", json={"reason": "enough"})
        with anyio.fail_after(5):
            while lease.cancel_reason is None:
                await attention.wait()
        group.cancel_scope.cancel()

    assert lease.cancel_reason == "enough"


async def test_news_are_fetched_beside_the_renewal_that_the_relay_holds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To interrupt it would close its connection, and the relay looks up who is at the end of each new one."""
    equipment, assignment = await stage.take("exit 0")
    equipment.link.timings = Timings(heartbeat=50, lease=100, reclaim_after=500)
    lease, renew, cut, holding = Lease(equipment.link, assignment, Wakeup()), equipment.link.renew, [], anyio.Event()

    async def watch(attempt: Assignment, request: RenewRequest) -> Control:
        if request.wait:
            holding.set()
        try:
            return await renew(attempt, request)
        except anyio.get_cancelled_exc_class():
            cut.append(lease.renewals)
            raise

    monkeypatch.setattr(equipment.link, "renew", watch)
    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        with anyio.fail_after(5):
            await holding.wait()
            await lease.refresh()
        was_cut = list(cut)
        group.cancel_scope.cancel()

    assert lease.renewals == 1
    assert was_cut == []


async def test_a_message_is_handed_out_once(stage: Stage) -> None:
    equipment, assignment = await stage.take("exit 0")
    lease = Lease(equipment.link, assignment, Wakeup())
    control = Control(next_seq=0, messages=[MessageView(id=4, text="hello")])

    lease.apply_control(control)
    lease.apply_control(control)

    assert [message.id for message in lease.take_messages()] == [4]
    assert lease.take_messages() == []
