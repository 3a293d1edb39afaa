"""Sends requests to the relay in order, and again if the relay was not running or the connection broke."""

from __future__ import annotations

import os
import select
import time

from delegate.client.http_response import NotHttp, describe_error
from delegate.mcp_bridge import rpc
from delegate.mcp_bridge.endpoint import RelayLocator, Unreachable
from delegate.mcp_bridge.exchange import (
    NOT_FOUND,
    RETRYABLE_STATUSES,
    SERVER_ERROR,
    RelayExchange,
    connect,
    percent_encode,
    request_bytes,
)
from delegate.mcp_bridge.listener import EventListener
from delegate.mcp_bridge.requests import (
    CancelNotification,
    ClientCall,
    EventStreamRequest,
    Initialize,
    Notification,
    PendingRequest,
    RequestQueue,
    SessionDelete,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from delegate.mcp_bridge.connection import Connection
    from delegate.mcp_bridge.stdio import Output

CONCURRENT_CALLS_MAX = 32  # calls; more wait in the queue
QUEUE_MAX = 256  # messages in the queue; above that the bridge stops reading from the client
QUEUE_BYTES = 8 * 1024 * 1024  # of the queued messages, and the same again for the calls that were sent
RELAY_TIMEOUT = 75.0  # seconds a call waits for a relay; longer than a relay takes to start
RESENDS_MAX = 5  # a call that failed this often is probably the cause
IDLE_TIMEOUT = 120.0  # seconds; streams get a ping every 15, and a call without a stream ends within 60
RETRY_DELAY_MIN, RETRY_DELAY_MAX = 0.05, 1.0  # seconds between two tries
SESSION_DELETE_TIMEOUT = 0.4  # seconds to delete the session at exit


class Dispatcher:
    def __init__(self, environ: Mapping[str, str], output: Output, log: Callable[..., None]) -> None:
        self._queue = RequestQueue(output, log)
        self._locator = RelayLocator(environ)
        self._listener = EventListener(self._queue, self._locator)
        self._client_headers = client_headers(environ)
        self._barrier: PendingRequest | None = None
        self._exchanges: dict[int, RelayExchange] = {}
        self._idle: dict[int, Connection] = {}
        self._retry_delay, self._retry_at = RETRY_DELAY_MIN, 0.0
        self._outage: tuple[float, str] | None = None  # since when, and why
        self._was_output_full = False  # because the client does not read

    # messages from the client

    def enqueue(self, message: rpc.ClientMessage) -> None:
        """Queue a message of the client."""
        request = self._build_request(message)
        if request is not None:
            request.enqueued_at = time.monotonic()
            self._queue.waiting.append(request)

    def _build_request(self, message: rpc.ClientMessage) -> PendingRequest | None:
        if message.method == rpc.CANCELLED:
            return self._cancel(message)
        if message.kind != rpc.CALL:
            return Notification(message)
        if message.id in self._queue.calls:
            text = f"the id {rpc.dump(message.id).decode()[:80]} belongs to a request that has no response yet"
            raise rpc.Refusal(rpc.INVALID_REQUEST, text)
        call = Initialize(message) if message.method == rpc.INITIALIZE else ClientCall(message)
        self._queue.calls[message.id] = call
        return call

    def _cancel(self, message: rpc.ClientMessage) -> PendingRequest | None:
        """Drop a queued call; cancel a call without a session by closing its connection, others by a notification."""
        call = None if message.cancels is None else self._queue.calls.get(message.cancels)
        if call is None or isinstance(call, Initialize):
            return None
        call.is_cancelled = True
        if call not in self._queue.waiting and call.message.version is None:
            return CancelNotification(message, call)
        self._drop(call)
        return None

    def _drop(self, call: ClientCall) -> None:
        """Forget a call whose response is no longer wanted."""
        self._queue.forget(call)
        if call in self._queue.waiting:
            self._queue.waiting.remove(call)
        for exchange in [found for found in self._exchanges.values() if found.request is call]:
            self._close(exchange)

    @property
    def is_full(self) -> bool:
        waiting = self._queue.waiting
        return len(waiting) >= QUEUE_MAX or sum(len(request.body) for request in waiting) >= QUEUE_BYTES

    @property
    def is_idle(self) -> bool:
        return not self._queue.waiting and not self._queue.calls and self._barrier is None

    @property
    def open_calls(self) -> int:
        """How many calls have no response yet."""
        return len(self._queue.calls)

    @property
    def has_failed_calls(self) -> bool:
        return self._queue.has_failed_calls

    # called by the event loop

    def poll_masks(self) -> dict[int, int]:
        """Return the descriptors to wait for, with their events."""
        found = {exchange.connection.descriptor: exchange.connection.mask for exchange in self._exchanges.values()}
        found.update(dict.fromkeys(self._idle, select.POLLIN))
        if self._locator.pipe >= 0:
            found[self._locator.pipe] = select.POLLIN
        return found

    @property
    def due(self) -> float:
        """When to call `advance` if nothing happens before."""
        deadlines = [exchange.received_at + IDLE_TIMEOUT for exchange in self._exchanges.values()]
        if self._queue.priority or (self._queue.waiting and self._outage is not None):
            deadlines.append(self._retry_at)
        return min([*deadlines, self._listener.due])

    def react(self, descriptor: int) -> None:
        if descriptor == self._locator.pipe:
            self._read_locator()
        elif descriptor in self._idle:
            self._idle.pop(descriptor).close()  # an idle connection becomes readable only when the relay closes it
        elif descriptor in self._exchanges:
            self._advance_exchange(self._exchanges[descriptor])

    def advance(self, now: float, *, may_listen: bool) -> None:
        """Send what may be sent. Opens connections only here, so that no `poll` result refers to a reused number."""
        self._check_timeouts(now)
        while self._barrier is None and now >= self._retry_at and (request := self._next()) is not None:
            if not self._send(request, now):
                break
        if self._queue.has_new_session:
            self._listen()
        if may_listen and now >= self._listener.due and self._barrier is None:
            connection = self._listener.connect(now)
            if connection is not None:
                self._start_exchange(self._listener.open_request(), connection, now, is_second=False)

    def _check_timeouts(self, now: float) -> None:
        if self._was_output_full:
            for exchange in self._exchanges.values():
                exchange.received_at = now
        self._was_output_full = self._queue.output.is_full
        for exchange in [found for found in self._exchanges.values() if now - found.received_at > IDLE_TIMEOUT]:
            self._handle_broken_exchange(exchange, "it sent nothing for too long")
        try:
            self._locator.check(now)
        except Unreachable as problem:
            self._give_up(problem)
        if self._outage is None:
            return
        began, why = self._outage
        for request in [found for found in self._queue.waiting if now - max(began, found.enqueued_at) > RELAY_TIMEOUT]:
            self._queue.waiting.remove(request)
            request.fail(self._queue, relay_unreachable(f"the relay does not respond: {why}"))

    # sending

    def _next(self) -> PendingRequest | None:
        waiting = self._queue.waiting
        if self._queue.session.is_lost and waiting and waiting[0].needs_session:
            self._queue.renew_session()
        queue = self._queue.priority or waiting
        if not queue:
            return None
        return None if isinstance(queue[0], ClientCall) and self._is_busy else queue[0]

    @property
    def _is_busy(self) -> bool:
        sizes = [len(found.request.body) for found in self._exchanges.values() if isinstance(found.request, ClientCall)]
        return len(sizes) >= CONCURRENT_CALLS_MAX or sum(sizes) >= QUEUE_BYTES

    def _send(self, request: PendingRequest, now: float) -> bool:
        """Return whether the request was sent; if not, the queue waits for the relay."""
        start = any(isinstance(found, ClientCall) for found in self._queue.waiting)
        try:
            connection = self._idle.popitem()[1] if self._idle else None
            is_second = connection is not None
            if connection is None:
                endpoint = self._locator.find(now, start=start)
                connection = connect(endpoint) if endpoint else None
        except OSError as error:
            self._record_outage(now, describe_error(error))
            return False
        if connection is None:
            self._record_outage(now, "it is not running yet")
            return False
        self._queue.pop(request)
        self._barrier = request if request.is_barrier else None
        self._start_exchange(request, connection, now, is_second=is_second)
        return True

    def _start_exchange(self, request: PendingRequest, connection: Connection, now: float, *, is_second: bool) -> None:
        exchange = RelayExchange(connection, request, is_reused=is_second, now=now)
        self._exchanges[connection.descriptor] = exchange
        request.sent_session_id = self._queue.session.id if request.needs_session else None
        try:
            connection.send(request_bytes(request, connection.endpoint, self._queue.session, self._client_headers))
        except OSError as error:
            self._handle_broken_exchange(exchange, describe_error(error))

    def _listen(self) -> None:
        """Open the event stream of the current session."""
        self._queue.has_new_session = False
        for exchange in [found for found in self._exchanges.values() if isinstance(found.request, EventStreamRequest)]:
            self._close(exchange)
        self._listener.reset()

    def _record_outage(self, now: float, why: str) -> None:
        self._queue.log("relay not reachable", why=why)
        self._outage = (self._outage[0] if self._outage else now, why)
        if now >= self._retry_at:  # requests that fail together count as one outage
            self._retry_at = now + self._retry_delay
            self._retry_delay = min(self._retry_delay * 2, RETRY_DELAY_MAX)

    def _give_up(self, problem: Unreachable) -> None:
        self._clear_outage()
        self._queue.fail_all(problem)

    def _clear_outage(self) -> None:
        self._outage, self._retry_delay, self._retry_at = None, RETRY_DELAY_MIN, 0.0

    def _read_locator(self) -> None:
        try:
            if self._locator.read_child():
                self._retry_at = 0.0
        except Unreachable as problem:
            self._give_up(problem)

    # responses

    def _advance_exchange(self, exchange: RelayExchange) -> None:
        try:
            exchange.advance(self._queue, time.monotonic())
        except (OSError, NotHttp) as error:
            self._handle_broken_exchange(exchange, describe_error(error))
            return
        except Unreachable as problem:
            self._abandon_exchange(exchange, problem)
            return
        if self._outage is not None and exchange.response.status not in {0, SERVER_ERROR, *RETRYABLE_STATUSES}:
            self._clear_outage()
        if exchange.response.is_complete:
            self._complete_exchange(exchange)

    def _complete_exchange(self, exchange: RelayExchange) -> None:
        request, response = exchange.request, exchange.response
        if response.keeps_connection_open:
            del self._exchanges[exchange.connection.descriptor]
            self._idle[exchange.connection.descriptor] = exchange.connection
        else:
            self._close(exchange)
        if self._barrier is request:
            self._barrier = None
        if request is None:
            return
        if isinstance(request, EventStreamRequest):
            self._listener.handle_close(exchange)
        elif response.status == NOT_FOUND and request.sent_session_id is not None:
            self._handle_lost_session(request)
        elif response.status in RETRYABLE_STATUSES:
            self._queue.requeue(request)
            self._record_outage(time.monotonic(), f"it responded with status {response.status}")
        elif response.status == SERVER_ERROR and request.resent < RESENDS_MAX:
            self._resend(request, "it responded with status 500")
        else:
            self._finish_request(request, exchange)

    def _finish_request(self, request: PendingRequest, exchange: RelayExchange) -> None:
        owed = isinstance(request, ClientCall) and not request.is_answered and not request.is_cancelled
        if owed and exchange.response.is_stream and exchange.response.status < 300:
            self._resend(request, "its response was incomplete")
        else:
            request.on_complete(self._queue, exchange.response, exchange.body)
        if isinstance(request, CancelNotification):
            self._drop(request.call)
        elif isinstance(request, ClientCall) and request.is_cancelled:
            self._queue.forget(request)

    def _handle_lost_session(self, request: PendingRequest) -> None:
        """Queue the request again; the session is renewed before it is sent."""
        self._queue.session.lose(request.sent_session_id)
        request.resent += 1
        if request.resent > RESENDS_MAX:
            request.fail(self._queue, relay_unreachable("the relay loses every session"))
            return
        self._queue.requeue(request)

    def _resend(self, request: PendingRequest, why: str) -> None:
        request.resent += 1
        if request.resent > RESENDS_MAX:
            text = f"the relay failed to handle this request {request.resent} times: {why}"
            request.fail(self._queue, relay_unreachable(text))
            return
        self._queue.requeue(request)
        self._record_outage(time.monotonic(), why)

    def _handle_broken_exchange(self, exchange: RelayExchange, why: str) -> None:
        request = exchange.request
        is_stale = exchange.is_reused and not exchange.response.status
        had_sent = exchange.connection.has_sent
        self._close(exchange)
        if self._barrier is request:
            self._barrier = None
        if request is None or (isinstance(request, ClientCall) and request.is_answered):
            return
        if isinstance(request, EventStreamRequest):
            self._listener.handle_close(exchange)
        elif is_stale:
            self._queue.requeue(request)  # the relay closes idle connections
        elif had_sent:
            self._resend(request, why)
        else:
            self._locator.forget()
            self._queue.requeue(request)
            self._record_outage(time.monotonic(), why)

    def _abandon_exchange(self, exchange: RelayExchange, problem: Unreachable) -> None:
        self._close(exchange)
        if self._barrier is exchange.request:
            self._barrier = None
        if exchange.request is not None:
            exchange.request.fail(self._queue, problem)
        self._give_up(problem)

    def _close(self, exchange: RelayExchange) -> None:
        self._exchanges.pop(exchange.connection.descriptor, None)
        exchange.connection.close()

    # exit

    def fail_open_calls(self) -> None:
        """Respond to the calls that the relay has not answered."""
        why = f"the relay does not respond: {self._outage[1]}" if self._outage else "the relay was still working on it"
        problem = relay_unreachable(f"the bridge stopped before this call had a response; {why}")
        for call in [found for found in self._queue.calls.values() if not found.is_cancelled]:
            call.fail(self._queue, problem)

    def delete_session(self) -> None:
        """Delete the session, unless the relay is slow to respond."""
        if self._queue.session.id is None:
            return
        now = time.monotonic()
        try:
            endpoint = self._locator.current()
            if endpoint is None:
                return
            connection = connect(endpoint)
            exchange = RelayExchange(connection, SessionDelete(), is_reused=False, now=now)
            connection.send(
                request_bytes(SessionDelete(), connection.endpoint, self._queue.session, self._client_headers)
            )
            while not exchange.response.is_complete and (left := now + SESSION_DELETE_TIMEOUT - time.monotonic()) > 0:
                waiting = select.poll()
                waiting.register(connection.descriptor, connection.mask)
                if waiting.poll(left * 1000):
                    exchange.advance(self._queue, time.monotonic())
        except (OSError, NotHttp, Unreachable) as error:
            self._queue.log("session not deleted", why=describe_error(error))


def client_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the client's directory and default agent."""
    agent = os.fsencode(environ.get("DELEGATE_DEFAULT_AGENT", ""))
    headers = {"delegate-directory": client_directory(), "delegate-default-agent": percent_encode(agent)}
    return {name: value for name, value in headers.items() if value}


def client_directory() -> str:
    """Return the percent-encoded current directory; empty if it no longer exists."""
    try:
        return percent_encode(os.fsencode(os.getcwd()))
    except OSError:
        return ""


def relay_unreachable(text: str) -> Unreachable:
    return Unreachable("relay_unreachable", text, "run `delegate info` to see its state")
