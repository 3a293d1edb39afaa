"""Keeps one request open for what the relay says by itself, and opens it again whenever it ends."""

from __future__ import annotations

import time

from delegate.bridge.dialing import connect
from delegate.bridge.errands import Listening
from delegate.bridge.exchange import BUSY, FAULT, NOT_FOUND
from delegate.client.http_response import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.bridge.connection import Connection
    from delegate.bridge.endpoint import Way
    from delegate.bridge.errands import Desk
    from delegate.bridge.exchange import Exchange

FIRST_PAUSE, MOST_PAUSE = 0.5, 15.0  # seconds between two tries; nobody waits for it
BROKEN_OFF, OK = 0, 200
WORTH_ANOTHER = {BROKEN_OFF, OK, NOT_FOUND, FAULT, *BUSY}  # others say that there is nothing to hear
NEVER = float("inf")


class Ear:
    """It never starts a relay: who stopped the last one meant it."""

    def __init__(self, desk: Desk, way: Way) -> None:
        self._desk, self._way = desk, way
        self._pause = FIRST_PAUSE
        self._last_event = ""
        self.due = NEVER  # when to open it; never while it is open, or while there is no session

    def begin(self) -> None:
        self._pause, self._last_event, self.due = FIRST_PAUSE, "", 0.0

    def connect(self, now: float) -> Connection | None:
        """A connection to listen on; None while there is no relay, or no session."""
        self._pause = min(self._pause * 2, MOST_PAUSE)
        self.due = now + self._pause
        if self._desk.session.is_lost:
            self._desk.renew()
            return None
        try:
            endpoint = self._way.find(now, start=False)
            return connect(endpoint) if endpoint else None
        except OSError as error:
            self._desk.log("not listening", why=reason(error))
            return None

    def listening(self) -> Listening:
        self.due = NEVER
        return Listening(self._last_event)

    def ended(self, exchange: Exchange) -> None:
        """The relay, or the way to it, has closed the request."""
        status = exchange.answer.status
        if status in {OK, NOT_FOUND}:
            self._pause = FIRST_PAUSE
        if status == NOT_FOUND and exchange.errand is not None:
            self._desk.session.lose(exchange.errand.used)
        self._last_event = exchange.last_event_id or self._last_event
        self.due = time.monotonic() + self._pause if status in WORTH_ANOTHER else NEVER
