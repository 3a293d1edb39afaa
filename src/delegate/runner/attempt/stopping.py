"""Stops the steps around the agent when the task is cancelled or times out, or the runner is stopping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio

from delegate.model import Outcome
from delegate.runner.agents.base import Ending, verdict_if_stopped
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.run import AttemptContext
from delegate.states import AttemptState, Reason


class Stopped(Exception):
    """The task was cancelled or timed out, or the runner is stopping."""


def must_stop(context: AttemptContext) -> bool:
    return context.is_late or context.lease.cancel_reason is not None or context.shutdown.is_now


def stopped_outcome(context: AttemptContext, session: str | None) -> Outcome:
    if context.lease.cancel_reason is not None:
        return Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message=context.lease.cancel_reason)
    if context.shutdown.is_now:
        return outcomes.hand_back("the runner was stopped", session_id=session)
    verdict = verdict_if_stopped(Ending.TIMEOUT, timedelta(seconds=context.time_limits.total))
    assert verdict is not None
    return Outcome(state=verdict.state, reason=verdict.reason, message=verdict.message)


@asynccontextmanager
async def cancel_when_stopped(context: AttemptContext) -> AsyncIterator[None]:
    """Cancel the block and raise Stopped as soon as the attempt must stop."""
    is_done = False
    with anyio.CancelScope() as scope:

        async def watch() -> None:
            while not must_stop(context):
                with anyio.move_on_at(context.started_at + context.time_limits.total):
                    await context.shutdown.wakeup.wait()
            scope.cancel()

        async with run_in_background(watch):
            yield
            is_done = True
    if not is_done:
        raise Stopped


@asynccontextmanager
async def run_in_background(work: Callable[[], Coroutine[object, object, None]]) -> AsyncIterator[None]:
    """Run `work` while the block runs; an exception of the block is raised as it is, not in a group."""
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
