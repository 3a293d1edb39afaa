"""The relay's clock: it starts what is due, also when nobody is there to ask for it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from delegate.errors import DelegateError
from delegate.intake.firing import fire_due, reckon_back
from delegate.queue.ending import Moved
from delegate.relay.live import CLOCK
from delegate.relay.news import tell
from delegate.relay.state import Relay

log = logging.getLogger(__name__)
LOOK_EVERY = timedelta(seconds=0.5)  # a run starts within a second of its time, whoever else made its schedule
AFTER_FAILURE = timedelta(seconds=5)  # a database that cannot answer is not asked twice a second


async def keep_time(relay: Relay) -> None:
    """For as long as the relay lives."""
    last: datetime | None = None
    with relay.hub.listening(CLOCK) as bell:
        while True:
            now = relay.now()
            pause = AFTER_FAILURE
            try:
                if last is None or now < last:  # nobody knows what the clock showed when the last relay stopped
                    await reckon_back(relay.database, now)
                last = now
                pause = await _start_due(relay, now)
            except DelegateError as error:
                log.warning("schedules not looked at", extra={"why": error.message})
            except Exception:
                log.exception("schedules not looked at")
            await bell.heard(pause.total_seconds())


async def _start_due(relay: Relay, now: datetime) -> timedelta:
    """Returns how long nothing else is due, as far as is known."""
    done = await fire_due(relay.database, relay.settings, now)
    for fired in done.fired:
        if fired.task is not None:
            tell(relay, Moved(task=fired.task))
    if done.has_failed:
        return AFTER_FAILURE
    return LOOK_EVERY if done.next_at is None else max(timedelta(), min(LOOK_EVERY, done.next_at - relay.now()))
