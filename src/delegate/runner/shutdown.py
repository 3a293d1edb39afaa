"""How the runner is asked to go: finish what it has (drain), or stop now and hand back."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import anyio

from delegate.runner.wakeup import Wakeup

log = logging.getLogger(__name__)

HAND_BACK_GRACE = timedelta(seconds=2)  # from TERM to KILL: the relay may be about to stop, too
HAND_BACK_TIME = 10.0  # seconds in which the task is handed back; whoever stops us now will not wait longer


class Shutdown:
    def __init__(self) -> None:
        self.attention = Wakeup()
        self.is_draining = False
        self.is_now = False
        self._now = anyio.Event()
        self._idle: anyio.CancelScope | None = None

    @property
    def grace(self) -> timedelta:
        return HAND_BACK_GRACE if self.is_now else timedelta.max

    @contextmanager
    def ends_idling(self) -> Iterator[None]:
        """What stands inside is broken off when the runner is asked to go."""
        with anyio.CancelScope() as scope:
            self._idle = scope
            if self.is_draining:
                scope.cancel()
            try:
                yield
            finally:
                self._idle = None

    def drain(self) -> None:
        self.is_draining = True
        if self._idle is not None:
            self._idle.cancel()

    def stop_now(self) -> None:
        self.drain()
        self.is_now = True
        self._now.set()
        self.attention.send()

    async def out_of_time(self) -> None:
        """Returns when the time for handing back is over."""
        await self._now.wait()
        await anyio.sleep(HAND_BACK_TIME)

    async def heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("signal received", extra={"signal": number.name})
                if self.is_draining:
                    self.stop_now()
                else:
                    self.drain()
