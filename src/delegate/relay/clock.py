"""The relay's clock: it starts what is due, also when nobody is there to ask for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.errors import DelegateError
from delegate.intake.firing import Round, expire, fire_due, reckon_back
from delegate.model import ScheduleId
from delegate.queue.ending import Moved
from delegate.relay.disk import disk_of
from delegate.relay.notify import CLOCK, tell
from delegate.relay.requests import Relay
from delegate.store.database import Database

log = logging.getLogger(__name__)
LOOK_EVERY = timedelta(seconds=0.5)  # a run starts within a second of its time, whoever else made its schedule
AFTER_FAILURE = timedelta(seconds=5)  # a database that cannot answer is not asked twice a second
EXPIRE_EVERY = timedelta(minutes=1)  # nothing runs after its expiry anyway; this only says so


async def keep_time(relay: Relay) -> None:
    """For as long as the relay lives."""
    clock = Clock(relay)
    with relay.hub.listening(CLOCK) as bell:
        while True:
            pause = AFTER_FAILURE
            try:
                pause = await clock.look(relay.now())
            except DelegateError as error:
                log.warning("schedules not looked at", extra={"why": error.message})
            except Exception:
                log.exception("schedules not looked at")
            await bell.heard(pause.total_seconds())


@dataclass(slots=True)
class Clock:
    relay: Relay
    last: datetime | None = None  # what it showed when it was looked at before
    is_back: bool = True  # nobody knows what the clock showed when the last relay stopped
    order_at: datetime | None = None  # when to put the schedules in order again; none: now
    is_short: bool = False  # of disk; told once

    async def look(self, now: datetime) -> timedelta:
        """Start what is due. Returns how long nothing else is, as far as is known."""
        if self._waits_for_room():
            return AFTER_FAILURE
        if self.last is not None and now < self.last:
            self.is_back, self.order_at = True, None
        self.last = now
        if self.order_at is None or now >= self.order_at:
            await self._put_in_order(now)
        return self._pause(await self._start_due(now))

    async def _put_in_order(self, now: datetime) -> None:
        """What is due starts also when this fails: one schedule with a defect must not stop all the others."""
        if self.is_back:
            self.is_back = not await self._is_done(reckon_back, now)
        has_expired = await self._is_done(expire, now)
        self.order_at = now + (AFTER_FAILURE if self.is_back or not has_expired else EXPIRE_EVERY)

    async def _is_done(self, chore: Callable[[Database, datetime], Awaitable[None]], now: datetime) -> bool:
        try:
            await chore(self.relay.database, now)
        except Exception:
            log.exception("schedules not put in order", extra={"chore": chore.__name__})
            return False
        return True

    def _waits_for_room(self) -> bool:
        """Below the floor nothing new is started: what is due then is late, and goes by its policy."""
        lack = disk_of(self.relay.settings).lacks_floor()
        if lack is not None and not self.is_short:
            log.warning("schedules wait for room on the disk", extra={"why": lack})
        if lack is None and self.is_short:
            log.info("schedules go on: there is room on the disk")
        self.is_short = lack is not None
        return self.is_short

    async def _start_due(self, now: datetime) -> Round:
        """Round after round, while those that are due are a crowd. Relays that share a database share the work."""
        done = await self._fire(now, frozenset())
        while done.is_crowd and not done.has_failed:
            done = await self._fire(now, done.passed)
        return done

    async def _fire(self, now: datetime, passed: frozenset[ScheduleId]) -> Round:
        done = await fire_due(self.relay.database, self.relay.settings, now, passed)
        for fired in done.fired:
            if fired.task is not None:
                tell(self.relay.hub, Moved(task=fired.task))
        return done

    def _pause(self, done: Round) -> timedelta:
        longest = AFTER_FAILURE if done.has_failed else LOOK_EVERY
        return longest if done.next_at is None else max(timedelta(), min(longest, done.next_at - self.relay.now()))
