"""Stops the runner: after its current task (drain), or now, handing the task back."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import anyio

from delegate.runner.wakeup import Wakeup

log = logging.getLogger(__name__)

HAND_BACK_GRACE = timedelta(seconds=2)  # from TERM to KILL; short, because the relay may be stopping too
HAND_BACK_TIMEOUT = 10.0  # seconds to hand the task back; the process that stops the runner does not wait longer


class Shutdown:
    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self.is_draining = False
        self.is_now = False
        self._draining, self._now = anyio.Event(), anyio.Event()
        self._idle_scope: anyio.CancelScope | None = None

    @property
    def grace(self) -> timedelta:
        return HAND_BACK_GRACE if self.is_now else timedelta.max

    @contextmanager
    def cancel_on_drain(self) -> Iterator[None]:
        """The block is cancelled when the runner is asked to drain."""
        with anyio.CancelScope() as scope:
            self._idle_scope = scope
            if self.is_draining:
                scope.cancel()
            try:
                yield
            finally:
                self._idle_scope = None

    def drain(self) -> None:
        self.is_draining = True
        self._draining.set()
        if self._idle_scope is not None:
            self._idle_scope.cancel()

    def stop_now(self) -> None:
        self.drain()
        self.is_now = True
        self._now.set()
        self.wakeup.send()

    async def comes_within(self, seconds: float) -> bool:
        """Whether the runner is asked to drain, now or in this time."""
        with anyio.move_on_after(seconds):
            await self._draining.wait()
        return self.is_draining

    async def wait_for_deadline(self) -> None:
        """Returns when the time to hand the task back is over."""
        await self._now.wait()
        await anyio.sleep(HAND_BACK_TIMEOUT)

    async def handle_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("signal received", extra={"signal": number.name})
                if self.is_draining:
                    self.stop_now()
                else:
                    self.drain()
