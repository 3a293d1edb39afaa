"""Keeps an event stream open for messages that the relay sends on its own, and reopens it when it ends."""

from __future__ import annotations

import time

from delegate.client.http_response import describe_error
from delegate.mcp_bridge.exchange import NOT_FOUND, RETRYABLE_STATUSES, SERVER_ERROR, connect
from delegate.mcp_bridge.requests import EventStreamRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.mcp_bridge.connection import Connection
    from delegate.mcp_bridge.endpoint import RelayLocator
    from delegate.mcp_bridge.exchange import RelayExchange
    from delegate.mcp_bridge.requests import RequestQueue

RETRY_DELAY_MIN, RETRY_DELAY_MAX = 0.5, 15.0  # seconds between two tries; no call waits for the stream
NO_STATUS, OK = 0, 200
# After any other status the relay has no event stream.
RETRIED_STATUSES = {NO_STATUS, OK, NOT_FOUND, SERVER_ERROR, *RETRYABLE_STATUSES}
NEVER = float("inf")


class EventListener:
    """Reopens the event stream. Never starts a relay: a user who stopped it did so on purpose."""

    def __init__(self, queue: RequestQueue, locator: RelayLocator) -> None:
        self._queue, self._locator = queue, locator
        self._retry_delay = RETRY_DELAY_MIN
        self._last_event = ""
        self.due = NEVER  # when to open the stream; NEVER while it is open, or while there is no session

    def reset(self) -> None:
        self._retry_delay, self._last_event, self.due = RETRY_DELAY_MIN, "", 0.0

    def connect(self, now: float) -> Connection | None:
        """Return a connection for the stream; None while there is no relay or no session."""
        self._retry_delay = min(self._retry_delay * 2, RETRY_DELAY_MAX)
        self.due = now + self._retry_delay
        if self._queue.session.is_lost:
            self._queue.renew_session()
            return None
        try:
            endpoint = self._locator.find(now, start=False)
            return connect(endpoint) if endpoint else None
        except OSError as error:
            self._queue.log("event stream not opened", why=describe_error(error))
            return None

    def open_request(self) -> EventStreamRequest:
        self.due = NEVER
        return EventStreamRequest(self._last_event)

    def handle_close(self, exchange: RelayExchange) -> None:
        """Schedule the next try after the stream has ended."""
        status = exchange.response.status
        if status in {OK, NOT_FOUND}:
            self._retry_delay = RETRY_DELAY_MIN
        if status == NOT_FOUND and exchange.request is not None:
            self._queue.session.lose(exchange.request.sent_session_id)
        self._last_event = exchange.last_event_id or self._last_event
        self.due = time.monotonic() + self._retry_delay if status in RETRIED_STATUSES else NEVER
