"""Work that is no agent's, and must stop all the same when its task is cancelled or the runner has to go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio

from delegate.model import Outcome
from delegate.runner.agents.base import Ending, stopped_by_runner
from delegate.runner.attempt import outcome
from delegate.runner.attempt.run import Workbench
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment, ReleaseRequest


class Stopped(Exception):
    """It was broken off: somebody cancelled the task, its time was over, or the runner must go."""


def must_stop(around: Workbench) -> bool:
    is_late = anyio.current_time() >= around.started_at + around.patience.total
    return is_late or around.lease.cancel_reason is not None or around.shutdown.is_now


def end_of_stopped(assignment: Assignment, around: Workbench, session: str | None) -> Outcome | ReleaseRequest:
    if around.lease.cancel_reason is not None:
        return Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message=around.lease.cancel_reason)
    if around.shutdown.is_now:
        return outcome.hand_back(assignment, "the runner was stopped", session)
    verdict = stopped_by_runner(Ending.TIMEOUT, timedelta(seconds=around.patience.total))
    assert verdict is not None
    return Outcome(state=verdict.state, reason=verdict.reason, message=verdict.message)


@asynccontextmanager
async def unless_stopped(around: Workbench) -> AsyncIterator[None]:
    """The block is broken off, and Stopped raised, as soon as it must stop."""
    is_done = False
    with anyio.CancelScope() as scope:

        async def watch() -> None:
            while not must_stop(around):
                with anyio.move_on_at(around.started_at + around.patience.total):
                    await around.shutdown.attention.wait()
            scope.cancel()

        async with beside(watch):
            yield
            is_done = True
    if not is_done:
        raise Stopped


@asynccontextmanager
async def beside(work: Callable[[], Coroutine[object, object, None]]) -> AsyncIterator[None]:
    """`work` goes on for as long as the block lasts; what the block raises comes out as it is, not in a group."""
    problem: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield
        except Exception as raised:  # noqa: BLE001  raised again below
            problem = raised
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
