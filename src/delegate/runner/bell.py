"""Wakes whoever waits for something to change, as often as it changes."""

from __future__ import annotations

import anyio


class Bell:
    """Look first, then wait: a ring is heard by those who wait for it and kept for nobody."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def heard(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
