"""What the keeper lets this runner do, and what it hears from it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio

from delegate.runner.keeper_protocol import News, Order, line, words_of
from delegate.runner.shutdown import Shutdown
from delegate.runner.wakeup import Wakeup

log = logging.getLogger(__name__)

STDIN = 0
FIRST_WORD = 5.0  # seconds for the keeper to say whether we may claim; one that is silent so long would say yes


class Orders:
    """Without a keeper, nobody holds the runner back and nobody hears it."""

    def __init__(self, report_fd: int | None = None) -> None:
        self._report_fd = report_fd
        self._is_told = report_fd is None
        self._changed = Wakeup()
        self._claiming: anyio.CancelScope | None = None
        self.hold: str | None = None  # why the runner may take no work just now
        if report_fd is not None:
            os.set_inheritable(report_fd, False)  # noqa: FBT003

    async def first_word(self) -> None:
        """Returns when the keeper has said what to do; it does so as soon as it has started us."""
        with anyio.move_on_after(FIRST_WORD):
            while not self._is_told:
                await self._changed.wait()
        self._is_told = True

    async def change(self, patience: float) -> None:
        with anyio.move_on_after(patience):
            await self._changed.wait()

    @contextmanager
    def may_be_held(self) -> Iterator[None]:
        """What stands inside is broken off when the keeper holds the runner back."""
        with anyio.CancelScope() as scope:
            self._claiming = scope
            try:
                yield
            finally:
                self._claiming = None

    def say_busy(self, attempt_id: str, agent: str) -> None:
        self._say({News.BUSY: attempt_id, News.AGENT: agent})

    def say_idle(self) -> None:
        self._say({News.IDLE: True})

    def say_trouble(self) -> None:
        self._say({News.TROUBLE: True})

    def _say(self, news: dict[str, object]) -> None:
        if self._report_fd is not None:
            with suppress(BrokenPipeError):  # `heed` finds out, too, and ends the runner
                os.write(self._report_fd, line(news))

    async def heed(self, shutdown: Shutdown) -> None:
        """The keeper holds the other end of our standard input: its end is the keeper's end."""
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(STDIN).st_mode)
        except OSError:
            return
        if not is_pipe:
            return
        unread = b""
        while piece := await _read():
            *lines, unread = (unread + piece).split(b"\n")
            for said in lines:
                self.take(said)
        log.warning("keeper is gone")
        shutdown.stop_now()

    def take(self, said: bytes) -> None:
        match words_of(said):
            case {Order.HOLD: str(why)}:
                self.hold = why
                if self._claiming is not None:
                    self._claiming.cancel()
            case {Order.OPEN: True}:
                self.hold = None
            case unknown:
                log.warning("order not understood", extra={"order": unknown})
        self._is_told = True
        self._changed.send()


async def _read() -> bytes:
    await anyio.wait_readable(STDIN)
    return os.read(STDIN, 4096)
