"""The relay's periodic chores: rescue, settle, back up, delete. A failed round does not prevent the next."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import anyio
from anyio import to_thread

from delegate.config.observed_time import ObservedClock
from delegate.config.paths import Home
from delegate.errors import DelegateError
from delegate.queue.cascade import Transition, settle_blocked
from delegate.queue.rescue import end_preferences, rescue
from delegate.relay.disk import disk_of
from delegate.relay.notify import notify
from delegate.relay.requests import Relay
from delegate.report.retention import retain
from delegate.store.backup import backup, last_backup_at

log = logging.getLogger(__name__)
OBSERVE_EVERY = timedelta(minutes=5)  # how much uptime is not counted if the relay is killed
BACKUP_CHECK_EVERY = timedelta(minutes=10)
SETTLE_EVERY = timedelta(seconds=30)  # reads all blocked tasks: about a second for 100,000 of them
TICK_MAX = timedelta(seconds=5)


async def run_housekeeping(relay: Relay) -> None:
    home = Home(relay.settings.home)
    async with anyio.create_task_group() as group:
        group.start_soon(_repeat, relay, _tick, min(TICK_MAX, relay.settings.heartbeat))
        group.start_soon(_repeat, relay, _settle, SETTLE_EVERY)
        group.start_soon(_repeat, relay, Retention(ObservedClock(home.relay_clock)).retain, OBSERVE_EVERY)
        if relay.database.is_sqlite:
            group.start_soon(_repeat, relay, _back_up, min(BACKUP_CHECK_EVERY, relay.settings.backup_every))


async def _repeat(relay: Relay, chore: Callable[[Relay], Awaitable[None]], pause: timedelta) -> None:
    while True:
        try:
            await chore(relay)
        except DelegateError as error:
            log.warning("housekeeping skipped", extra={"chore": chore.__name__, "why": error.message})
        except Exception:
            log.exception("housekeeping failed", extra={"chore": chore.__name__})
        await anyio.sleep(pause.total_seconds())


async def _tick(relay: Relay) -> None:
    await relay.clock.sync(relay.database)
    for transition in await rescue(relay.database, relay.rules, relay.now()):
        notify(relay.hub, transition)
    for freed in await end_preferences(relay.database, relay.rules, relay.now()):
        notify(relay.hub, freed)


async def _settle(relay: Relay) -> None:
    while settled := await settle_blocked(relay.database, relay.now()):
        for task in settled:
            notify(relay.hub, Transition(task=task))


@dataclass(slots=True)
class Retention:
    """Deletes what is too old, by a time that an hour of uptime has confirmed."""

    clock: ObservedClock
    retained_at: datetime | None = None  # the confirmed time of the last deletion

    async def retain(self, relay: Relay) -> None:
        confirmed = await to_thread.run_sync(self.clock.confirm, relay.now())
        if confirmed != self.retained_at:  # about once in an hour of uptime
            await retain(relay.database, relay.settings, confirmed)
            self.retained_at = confirmed


async def _back_up(relay: Relay) -> None:
    """Decide by the age of the newest backup: a relay that never runs for hours at a stretch needs backups, too."""
    every = relay.settings.backup_every
    last = last_backup_at(Home(relay.settings.home), relay.now())
    due = relay.started_at + min(BACKUP_CHECK_EVERY, every) if last is None else last + every
    if relay.now() < due:
        return
    if not disk_of(relay.settings).has_space_for(Home(relay.settings.home).database.stat().st_size):
        log.warning("backup skipped: not enough disk space")
    else:
        path = await to_thread.run_sync(backup, relay.settings, None)
        log.info("backup created", extra={"path": str(path)})
