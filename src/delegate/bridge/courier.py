"""Takes errands to the relay in their order, and again when the relay was not there or broke off."""

from __future__ import annotations

import os
import select
import time

from delegate.bridge import rpc
from delegate.bridge.dialing import connect
from delegate.bridge.ear import Ear
from delegate.bridge.endpoint import Unreachable, Way
from delegate.bridge.errands import Call, Cancelling, Desk, Errand, Farewell, Listening, Note, Opening
from delegate.bridge.exchange import BUSY, FAULT, NOT_FOUND, Exchange, percent, request_bytes
from delegate.client.http_response import NotHttp, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from delegate.bridge.client import Output
    from delegate.bridge.connection import Connection

AT_ONCE = 32  # calls; more wait here
QUEUE_MAX = 256  # messages that wait here; after that the client waits
QUEUE_BYTES = 8 * 1024 * 1024  # of the messages that wait, and once more of the calls on their way
PATIENCE = 75.0  # seconds a call waits for a relay; longer than its start may take
RESENDS = 5  # a call that broke off so often is the reason
SILENCE = 120.0  # seconds; the relay sends a sign of life every 15, and a call that says nothing ends within 60
FIRST_PAUSE, MOST_PAUSE = 0.05, 1.0  # seconds between two tries
FAREWELL = 0.4  # seconds for the relay to hear that the session is over


class Courier:
    def __init__(self, environ: Mapping[str, str], output: Output, log: Callable[..., None]) -> None:
        self._desk = Desk(output, log)
        self._way = Way(environ)
        self._ear = Ear(self._desk, self._way)
        self._own = own_headers(environ)
        self._barrier: Errand | None = None
        self._exchanges: dict[int, Exchange] = {}
        self._idle: dict[int, Connection] = {}
        self._pause, self._try_at = FIRST_PAUSE, 0.0
        self._trouble: tuple[float, str] | None = None  # since when, and what
        self._was_deaf = False  # because the client does not read

    # what the client wants

    def take(self, message: rpc.Message) -> None:
        """A message of the client, to be delivered after those before it."""
        errand = self._errand(message)
        if errand is not None:
            errand.since = time.monotonic()
            self._desk.waiting.append(errand)

    def _errand(self, message: rpc.Message) -> Errand | None:
        if message.method == rpc.CANCELLED:
            return self._cancel(message)
        if message.kind != rpc.CALL:
            return Note(message)
        if message.id in self._desk.calls:
            said = f"the id {rpc.dumped(message.id).decode()[:80]} is that of a request that is not answered yet"
            raise rpc.Refusal(rpc.INVALID_REQUEST, said)
        call = Opening(message) if message.method == rpc.INITIALIZE else Call(message)
        self._desk.calls[message.id] = call
        return call

    def _cancel(self, message: rpc.Message) -> Errand | None:
        """What still waits here never leaves; a request that belongs to no session is cancelled by hanging up."""
        call = None if message.cancels is None else self._desk.calls.get(message.cancels)
        if call is None or isinstance(call, Opening):
            return None
        call.is_cancelled = True
        if call not in self._desk.waiting and call.message.version is None:
            return Cancelling(message, call)
        self._drop(call)
        return None

    def _drop(self, call: Call) -> None:
        """Nobody waits for its answer any more."""
        self._desk.forget(call)
        if call in self._desk.waiting:
            self._desk.waiting.remove(call)
        for exchange in [found for found in self._exchanges.values() if found.errand is call]:
            self._close(exchange)

    @property
    def is_full(self) -> bool:
        waiting = self._desk.waiting
        return len(waiting) >= QUEUE_MAX or sum(len(errand.body) for errand in waiting) >= QUEUE_BYTES

    @property
    def owes_nothing(self) -> bool:
        return not self._desk.waiting and not self._desk.calls and self._barrier is None

    # what the loop asks

    def masks(self) -> dict[int, int]:
        """The descriptors to wait for, and what for."""
        found = {exchange.connection.number: exchange.connection.mask for exchange in self._exchanges.values()}
        found.update(dict.fromkeys(self._idle, select.POLLIN))
        if self._way.pipe >= 0:
            found[self._way.pipe] = select.POLLIN
        return found

    @property
    def due(self) -> float:
        """When to come again if nothing happens before."""
        moments = [exchange.heard_at + SILENCE for exchange in self._exchanges.values()]
        if self._desk.first or (self._desk.waiting and self._trouble is not None):
            moments.append(self._try_at)
        return min([*moments, self._ear.due])

    def react(self, descriptor: int) -> None:
        if descriptor == self._way.pipe:
            self._hear_way()
        elif descriptor in self._idle:
            self._idle.pop(descriptor).close()  # it has nothing to say: it was closed
        elif descriptor in self._exchanges:
            self._work(self._exchanges[descriptor])

    def advance(self, now: float, *, may_start: bool) -> None:
        """Send what may be sent. All connections are made here: `poll` must not tell of one what it saw of another."""
        self._check_bounds(now)
        while self._barrier is None and now >= self._try_at and (errand := self._next()) is not None:
            if not self._send(errand, now, may_start=may_start):
                break
        if self._desk.has_new_session:
            self._listen()
        if may_start and now >= self._ear.due and self._barrier is None:
            connection = self._ear.connect(now)
            if connection is not None:
                self._begin(self._ear.listening(), connection, now, is_second=False)

    def _check_bounds(self, now: float) -> None:
        if self._was_deaf:
            for exchange in self._exchanges.values():
                exchange.heard_at = now
        self._was_deaf = self._desk.output.is_full
        for exchange in [found for found in self._exchanges.values() if now - found.heard_at > SILENCE]:
            self._broken(exchange, "it was silent for too long")
        try:
            self._way.check(now)
        except Unreachable as problem:
            self._give_up(problem)
        if self._trouble is None:
            return
        began, why = self._trouble
        for errand in [found for found in self._desk.waiting if now - max(began, found.since) > PATIENCE]:
            self._desk.waiting.remove(errand)
            errand.give_up(self._desk, unreachable(f"the relay does not answer: {why}"))

    # sending

    def _next(self) -> Errand | None:
        waiting = self._desk.waiting
        if self._desk.session.is_lost and waiting and waiting[0].needs_session:
            self._desk.renew()
        queue = self._desk.first or waiting
        if not queue:
            return None
        return None if isinstance(queue[0], Call) and self._is_busy else queue[0]

    @property
    def _is_busy(self) -> bool:
        sizes = [len(found.errand.body) for found in self._exchanges.values() if isinstance(found.errand, Call)]
        return len(sizes) >= AT_ONCE or sum(sizes) >= QUEUE_BYTES

    def _send(self, errand: Errand, now: float, *, may_start: bool) -> bool:
        """Whether it left; if not, everything waits until there is a way."""
        start = may_start and any(isinstance(found, Call) for found in self._desk.waiting)
        try:
            connection = self._idle.popitem()[1] if self._idle else None
            is_second = connection is not None
            if connection is None:
                endpoint = self._way.find(now, start=start)
                connection = connect(endpoint) if endpoint else None
        except OSError as error:
            self._troubled(now, reason(error))
            return False
        if connection is None:
            self._troubled(now, "it is not up yet")
            return False
        self._desk.take(errand)
        self._barrier = errand if errand.is_barrier else None
        self._begin(errand, connection, now, is_second=is_second)
        return True

    def _begin(self, errand: Errand, connection: Connection, now: float, *, is_second: bool) -> None:
        exchange = Exchange(connection, errand, is_second=is_second, now=now)
        self._exchanges[connection.number] = exchange
        errand.used = self._desk.session.id if errand.needs_session else None
        try:
            connection.send(request_bytes(errand, connection.endpoint, self._desk.session, self._own))
        except OSError as error:
            self._broken(exchange, reason(error))

    def _listen(self) -> None:
        """Hear what the relay says by itself, in the session that there is now."""
        self._desk.has_new_session = False
        for exchange in [found for found in self._exchanges.values() if isinstance(found.errand, Listening)]:
            self._close(exchange)
        self._ear.begin()

    def _troubled(self, now: float, why: str) -> None:
        self._desk.log("relay not reached", why=why)
        self._trouble = (self._trouble[0] if self._trouble else now, why)
        if now >= self._try_at:  # many that break off together are one trouble
            self._try_at = now + self._pause
            self._pause = min(self._pause * 2, MOST_PAUSE)

    def _give_up(self, problem: Unreachable) -> None:
        self._at_ease()
        self._desk.give_up(problem)

    def _at_ease(self) -> None:
        self._trouble, self._pause, self._try_at = None, FIRST_PAUSE, 0.0

    def _hear_way(self) -> None:
        try:
            if self._way.hear():
                self._try_at = 0.0
        except Unreachable as problem:
            self._give_up(problem)

    # answers

    def _work(self, exchange: Exchange) -> None:
        try:
            exchange.work(self._desk, time.monotonic())
        except (OSError, NotHttp) as error:
            self._broken(exchange, reason(error))
            return
        except Unreachable as problem:
            self._hopeless(exchange, problem)
            return
        if self._trouble is not None and exchange.answer.status not in {0, FAULT, *BUSY}:
            self._at_ease()
        if exchange.answer.is_complete:
            self._settle(exchange)

    def _settle(self, exchange: Exchange) -> None:
        errand, answer = exchange.errand, exchange.answer
        if answer.leaves_open:
            del self._exchanges[exchange.connection.number]
            self._idle[exchange.connection.number] = exchange.connection
        else:
            self._close(exchange)
        if self._barrier is errand:
            self._barrier = None
        if errand is None:
            return
        if isinstance(errand, Listening):
            self._ear.ended(exchange)
        elif answer.status == NOT_FOUND and errand.used is not None:
            self._forgotten(errand)
        elif answer.status in BUSY:
            self._desk.put_back(errand)
            self._troubled(time.monotonic(), f"it answered {answer.status}")
        elif answer.status == FAULT and errand.resent < RESENDS:
            self._resend(errand, "it answered 500")
        else:
            self._end(errand, exchange)

    def _end(self, errand: Errand, exchange: Exchange) -> None:
        owed = isinstance(errand, Call) and not errand.is_answered and not errand.is_cancelled
        if owed and exchange.answer.is_stream and exchange.answer.status < 300:
            self._resend(errand, "its answer broke off")
        else:
            errand.end(self._desk, exchange.answer, exchange.body)
        if isinstance(errand, Cancelling):
            self._drop(errand.call)
        elif isinstance(errand, Call) and errand.is_cancelled:
            self._desk.forget(errand)

    def _forgotten(self, errand: Errand) -> None:
        """The relay knows the session no more; whoever sees it first renews it."""
        self._desk.session.lose(errand.used)
        errand.resent += 1
        if errand.resent > RESENDS:
            errand.give_up(self._desk, unreachable("the relay forgets every session"))
            return
        self._desk.put_back(errand)

    def _resend(self, errand: Errand, why: str) -> None:
        errand.resent += 1
        if errand.resent > RESENDS:
            said = f"the relay broke off {errand.resent} times while it answered: {why}"
            errand.give_up(self._desk, unreachable(said))
            return
        self._desk.put_back(errand)
        self._troubled(time.monotonic(), why)

    def _broken(self, exchange: Exchange, why: str) -> None:
        errand = exchange.errand
        is_stale = exchange.is_second and not exchange.answer.status
        had_sent = exchange.connection.has_sent
        self._close(exchange)
        if self._barrier is errand:
            self._barrier = None
        if errand is None or (isinstance(errand, Call) and errand.is_answered):
            return
        if isinstance(errand, Listening):
            self._ear.ended(exchange)
        elif is_stale:
            self._desk.put_back(errand)  # the relay closes connections that nobody used for a while
        elif had_sent:
            self._resend(errand, why)
        else:
            self._way.lost()
            self._desk.put_back(errand)
            self._troubled(time.monotonic(), why)

    def _hopeless(self, exchange: Exchange, problem: Unreachable) -> None:
        self._close(exchange)
        if self._barrier is exchange.errand:
            self._barrier = None
        if exchange.errand is not None:
            exchange.errand.give_up(self._desk, problem)
        self._give_up(problem)

    def _close(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange.connection.number, None)
        exchange.connection.close()

    # the end

    def bid_farewell(self) -> None:
        """Tell the relay that the session is over, if it listens at once."""
        if self._desk.session.id is None:
            return
        now = time.monotonic()
        try:
            endpoint = self._way.known()
            if endpoint is None:
                return
            connection = connect(endpoint)
            goodbye = Exchange(connection, Farewell(), is_second=False, now=now)
            connection.send(request_bytes(Farewell(), connection.endpoint, self._desk.session, self._own))
            while not goodbye.answer.is_complete and (left := now + FAREWELL - time.monotonic()) > 0:
                waiting = select.poll()
                waiting.register(connection.number, connection.mask)
                if waiting.poll(left * 1000):
                    goodbye.work(self._desk, time.monotonic())
        except (OSError, NotHttp, Unreachable) as error:
            self._desk.log("no farewell", why=reason(error))


def own_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Where the client is, and the agent it wants for tasks that name none."""
    agent = os.fsencode(environ.get("DELEGATE_DEFAULT_AGENT", ""))
    told = {"delegate-directory": own_directory(), "delegate-default-agent": percent(agent)}
    return {name: value for name, value in told.items() if value}


def own_directory() -> str:
    """As the relay is told it; empty when the directory is gone."""
    try:
        return percent(os.fsencode(os.getcwd()))
    except OSError:
        return ""


def unreachable(said: str) -> Unreachable:
    return Unreachable("relay_unreachable", said, "`delegate info` shows what it does")
