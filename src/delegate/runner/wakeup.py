"""Wakes whoever waits for something to change, as often as it changes."""

from __future__ import annotations

import anyio


class Wakeup:
    """Look first, then wait: it reaches those who wait for it just then, and is kept for nobody."""

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
