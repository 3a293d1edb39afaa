"""A reusable event: each send wakes all current waiters."""

from __future__ import annotations

import anyio


class Wakeup:
    """Check the condition before waiting: a send without a waiter is lost."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def send(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
