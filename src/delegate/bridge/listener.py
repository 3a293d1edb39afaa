"""Keeps one request open for what the relay says by itself, and opens it again whenever it ends."""

from __future__ import annotations

import time

from delegate.bridge.dialing import connect
from delegate.bridge.exchange import NOT_FOUND, RETRYABLE_STATUSES, SERVER_ERROR
from delegate.bridge.requests import EventStreamRequest
from delegate.client.http_response import describe_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.bridge.connection import Connection
    from delegate.bridge.endpoint import RelayLocator
    from delegate.bridge.exchange import RelayExchange
    from delegate.bridge.requests import RequestQueue

RETRY_DELAY_MIN, RETRY_DELAY_MAX = 0.5, 15.0  # seconds between two tries; nobody waits for it
NO_STATUS, OK = 0, 200
RETRIED_STATUSES = {
    NO_STATUS,
    OK,
    NOT_FOUND,
    SERVER_ERROR,
    *RETRYABLE_STATUSES,
}  # others say that there is nothing to hear
NEVER = float("inf")


class EventListener:
    """It never starts a relay: who stopped the last one meant it."""

    def __init__(self, queue: RequestQueue, locator: RelayLocator) -> None:
        self._queue, self._locator = queue, locator
        self._retry_delay = RETRY_DELAY_MIN
        self._last_event = ""
        self.due = NEVER  # when to open it; never while it is open, or while there is no session

    def reset(self) -> None:
        self._retry_delay, self._last_event, self.due = RETRY_DELAY_MIN, "", 0.0

    def connect(self, now: float) -> Connection | None:
        """A connection to listen on; None while there is no relay, or no session."""
        self._retry_delay = min(self._retry_delay * 2, RETRY_DELAY_MAX)
        self.due = now + self._retry_delay
        if self._queue.session.is_lost:
            self._queue.renew_session()
            return None
        try:
            endpoint = self._locator.find(now, start=False)
            return connect(endpoint) if endpoint else None
        except OSError as error:
            self._queue.log("not listening", why=describe_error(error))
            return None

    def open_request(self) -> EventStreamRequest:
        self.due = NEVER
        return EventStreamRequest(self._last_event)

    def handle_close(self, exchange: RelayExchange) -> None:
        """The relay, or the way to it, has closed the request."""
        status = exchange.response.status
        if status in {OK, NOT_FOUND}:
            self._retry_delay = RETRY_DELAY_MIN
        if status == NOT_FOUND and exchange.request is not None:
            self._queue.session.lose(exchange.request.sent_session_id)
        self._last_event = exchange.last_event_id or self._last_event
        self.due = time.monotonic() + self._retry_delay if status in RETRIED_STATUSES else NEVER
