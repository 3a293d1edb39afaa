from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from delegate.runner import lease as lease_module
from delegate.runner.bell import Bell
from delegate.runner.lease import Lease, sleep_counting_clock
from delegate.wire import Control, Message

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio


async def test_a_lease_is_renewed_again_and_again(stage: Stage) -> None:
    bench, assignment = await stage.take("exit 0")
    attention = Bell()
    lease = Lease(bench.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep)
        with anyio.fail_after(5):
            while lease.answers < 3:
                await attention.heard()
        group.cancel_scope.cancel()

    assert lease.answers == 3


@pytest.mark.promise("P4")
async def test_after_a_sleep_nothing_is_sent_before_a_renewal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, assignment = await stage.take("exit 0")
    lease = Lease(bench.link, assignment, Bell())
    slept = stage.settings.lease.total_seconds()
    monkeypatch.setattr(lease_module, "sleep_counting_clock", lambda: sleep_counting_clock() + slept)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep)
        with anyio.fail_after(5):
            await lease.fresh()
        group.cancel_scope.cancel()

    assert lease.answers > 0


async def test_a_cancel_is_heard_while_a_renewal_is_held(stage: Stage) -> None:
    attention = Bell()
    bench, assignment = await stage.take("exit 0")
    lease = Lease(bench.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep)
        await stage.client.post(f"/api/tasks/{assignment.task_id}/cancel", json={"reason": "enough"})
        with anyio.fail_after(5):
            while lease.cancel_reason is None:
                await attention.heard()
        group.cancel_scope.cancel()

    assert lease.cancel_reason == "enough"


async def test_a_message_is_handed_out_once(stage: Stage) -> None:
    bench, assignment = await stage.take("exit 0")
    lease = Lease(bench.link, assignment, Bell())
    control = Control(next_seq=0, messages=[Message(id=4, text="hello")])

    lease.heed(control)
    lease.heed(control)

    assert [message.id for message in lease.take_messages()] == [4]
    assert lease.take_messages() == []
