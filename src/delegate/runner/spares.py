"""One supervisor is always started ahead, because starting it takes longer than everything else before an agent."""

from __future__ import annotations

import logging

import anyio

from delegate.runner.process import Spare, start_spare

log = logging.getLogger(__name__)


class Spares:
    def __init__(self) -> None:
        self._spare: Spare | None = None
        self._starting = anyio.Lock()

    async def refill(self) -> None:
        async with self._starting:
            if self._spare is None:
                try:
                    self._spare = await start_spare()
                except OSError as error:  # whoever takes one tries again, and tells
                    log.warning("no spare supervisor", extra={"why": error.strerror})

    async def take(self) -> Spare:
        async with self._starting:
            spare, self._spare = self._spare, None
        return spare if spare is not None else await start_spare()

    async def discard(self) -> None:
        if self._spare is not None:
            await self._spare.discard()
            self._spare = None
