"""The relay's clock: it starts what is due, also when nobody is there to ask for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.errors import DelegateError
from delegate.intake.firing import FiringRound, expire, fire_due, recompute_next_runs
from delegate.model import ScheduleId
from delegate.queue.ending import Transition
from delegate.relay.disk import disk_of
from delegate.relay.notify import CLOCK_KEY, notify
from delegate.relay.requests import Relay
from delegate.store.database import Database

log = logging.getLogger(__name__)
TICK_EVERY = timedelta(seconds=0.5)  # a run starts within a second of its time, whoever else made its schedule
RETRY_AFTER_FAILURE = timedelta(seconds=5)  # a database that cannot answer is not asked twice a second
EXPIRE_EVERY = timedelta(minutes=1)  # nothing runs after its expiry anyway; this only says so


async def run_clock(relay: Relay) -> None:
    """For as long as the relay lives."""
    clock = Clock(relay)
    with relay.hub.subscribe(CLOCK_KEY) as subscription:
        while True:
            pause = RETRY_AFTER_FAILURE
            try:
                pause = await clock.tick(relay.now())
            except DelegateError as error:
                log.warning("schedules not looked at", extra={"why": error.message})
            except Exception:
                log.exception("schedules not looked at")
            await subscription.wait(pause.total_seconds())


@dataclass(slots=True)
class Clock:
    relay: Relay
    last_tick_at: datetime | None = None  # what it showed when it was looked at before
    has_gone_back: bool = True  # nobody knows what the clock showed when the last relay stopped
    next_maintenance_at: datetime | None = None  # when to put the schedules in order again; none: now
    is_disk_low: bool = False  # of disk; told once

    async def tick(self, now: datetime) -> timedelta:
        """Start what is due. Returns how long nothing else is, as far as is known."""
        if self._waits_for_disk_space():
            return RETRY_AFTER_FAILURE
        if self.last_tick_at is not None and now < self.last_tick_at:
            self.has_gone_back, self.next_maintenance_at = True, None
        self.last_tick_at = now
        if self.next_maintenance_at is None or now >= self.next_maintenance_at:
            await self._maintain_schedules(now)
        return self._pause(await self._start_due(now))

    async def _maintain_schedules(self, now: datetime) -> None:
        """What is due starts also when this fails: one schedule with a defect must not stop all the others."""
        if self.has_gone_back:
            self.has_gone_back = not await self._run_chore(recompute_next_runs, now)
        has_expired = await self._run_chore(expire, now)
        self.next_maintenance_at = now + (
            RETRY_AFTER_FAILURE if self.has_gone_back or not has_expired else EXPIRE_EVERY
        )

    async def _run_chore(self, chore: Callable[[Database, datetime], Awaitable[None]], now: datetime) -> bool:
        try:
            await chore(self.relay.database, now)
        except Exception:
            log.exception("schedules not put in order", extra={"chore": chore.__name__})
            return False
        return True

    def _waits_for_disk_space(self) -> bool:
        """Below the floor nothing new is started: what is due then is late, and goes by its policy."""
        lack = disk_of(self.relay.settings).explain_shortage()
        if lack is not None and not self.is_disk_low:
            log.warning("schedules wait for room on the disk", extra={"why": lack})
        if lack is None and self.is_disk_low:
            log.info("schedules go on: there is room on the disk")
        self.is_disk_low = lack is not None
        return self.is_disk_low

    async def _start_due(self, now: datetime) -> FiringRound:
        """Round after round, while those that are due are a crowd. Relays that share a database share the work."""
        done = await self._fire(now, frozenset())
        while done.may_have_more and not done.has_failed:
            done = await self._fire(now, done.skipped)
        return done

    async def _fire(self, now: datetime, skipped: frozenset[ScheduleId]) -> FiringRound:
        done = await fire_due(self.relay.database, self.relay.settings, now, skipped)
        for fired in done.fired:
            if fired.task is not None:
                notify(self.relay.hub, Transition(task=fired.task))
        return done

    def _pause(self, done: FiringRound) -> timedelta:
        longest = RETRY_AFTER_FAILURE if done.has_failed else TICK_EVERY
        return longest if done.next_at is None else max(timedelta(), min(longest, done.next_at - self.relay.now()))
