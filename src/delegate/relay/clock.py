"""The relay's clock: starts the runs of schedules that are due."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.errors import DelegateError
from delegate.intake.firing import FiringRound, expire, fire_due, recompute_next_runs
from delegate.intake.schedules import reopen_ended
from delegate.model import ScheduleId
from delegate.queue.cascade import Transition
from delegate.relay.disk import disk_of
from delegate.relay.notify import CLOCK_KEY, notify
from delegate.relay.requests import Relay
from delegate.store.database import Database

log = logging.getLogger(__name__)
# A run starts within a second of its time, even if another relay created its schedule.
TICK_EVERY = timedelta(seconds=0.5)
RETRY_AFTER_FAILURE = timedelta(seconds=5)  # do not query a failing database twice a second
EXPIRE_EVERY = timedelta(minutes=1)  # no run starts after the expiry anyway; this only updates the state


async def run_clock(relay: Relay) -> None:
    """Run until the relay stops."""
    clock = Clock(relay)
    with relay.hub.subscribe(CLOCK_KEY) as subscription:
        while True:
            pause = RETRY_AFTER_FAILURE
            try:
                pause = await clock.tick(relay.now())
            except DelegateError as error:
                log.warning("schedules not checked", extra={"why": error.message})
            except Exception:
                log.exception("schedules not checked")
            await subscription.wait(pause.total_seconds())


@dataclass(slots=True)
class Clock:
    relay: Relay
    last_tick_at: datetime | None = None  # the time of the previous tick
    has_gone_back: bool = True  # true at the start: the clock may have gone back since the last relay stopped
    next_maintenance_at: datetime | None = None  # None: now
    is_disk_low: bool = False  # logged once

    async def tick(self, now: datetime) -> timedelta:
        """Start what is due. Return how long to wait for the next tick."""
        if self._waits_for_disk_space():
            return RETRY_AFTER_FAILURE
        if self.last_tick_at is not None and now < self.last_tick_at:
            self.has_gone_back, self.next_maintenance_at = True, None
        self.last_tick_at = now
        if self.next_maintenance_at is None or now >= self.next_maintenance_at:
            await self._maintain_schedules(now)
        return self._pause(await self._start_due(now))

    async def _maintain_schedules(self, now: datetime) -> None:
        """Recompute and expire schedules. A failure does not stop due runs: one bad schedule must not block others."""
        if self.has_gone_back:
            done = [await self._run_chore(chore, now) for chore in (reopen_ended, recompute_next_runs)]
            self.has_gone_back = not all(done)
        has_expired = await self._run_chore(expire, now)
        self.next_maintenance_at = now + (
            RETRY_AFTER_FAILURE if self.has_gone_back or not has_expired else EXPIRE_EVERY
        )

    async def _run_chore(self, chore: Callable[[Database, datetime], Awaitable[None]], now: datetime) -> bool:
        try:
            await chore(self.relay.database, now)
        except Exception:
            log.exception("schedule maintenance failed", extra={"chore": chore.__name__})
            return False
        return True

    def _waits_for_disk_space(self) -> bool:
        """Start nothing while disk space is low; a run that is then late follows its missed-run policy."""
        lack = disk_of(self.relay.settings).explain_shortage()
        if lack is not None and not self.is_disk_low:
            log.warning("schedules paused: disk space is low", extra={"why": lack})
        if lack is None and self.is_disk_low:
            log.info("schedules resumed: disk space is available")
        self.is_disk_low = lack is not None
        return self.is_disk_low

    async def _start_due(self, now: datetime) -> FiringRound:
        """Fire in rounds until nothing is due. Relays that share a database share the work."""
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
