"""The relay's work for Linear in the background: the inbox, the reports, the outbox and the poll."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

import anyio

from delegate.errors import DelegateError
from delegate.relay.linear.inbox import Inbox
from delegate.relay.linear.link import CONNECTION_KEY, INBOX_KEY, OUTBOX_KEY, LinearLink
from delegate.relay.linear.outbox import Outbox
from delegate.relay.linear.poll import Poll
from delegate.relay.linear.watch import Watch
from delegate.relay.notify import ALL_TASKS
from delegate.report.linear import ephemeral_interval, keep_alive, report_events
from delegate.store.linear.inbox import drop_bodies
from delegate.store.linear.outbox import drop_settled
from delegate.store.linear.sessions import open_sessions

log = logging.getLogger(__name__)
LOOK_EVERY = 2.0  # seconds; another relay, or a pause that ends, does not notify
UNCONNECTED_WAIT = 30.0  # seconds between two looks for a connection that another relay may have made
RETRY_AFTER_FAILURE = 5.0  # seconds
CHORES_EVERY = timedelta(minutes=5)
BODIES_KEPT = timedelta(days=7)
POSTS_KEPT = timedelta(days=30)
Chore = Callable[[datetime], Awaitable[int]]


async def run_linear(link: LinearLink) -> None:
    """Run until the relay stops."""
    inbox, outbox = Inbox(link), Outbox(link)
    link.is_posting = True
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_repeat, link, INBOX_KEY, inbox.process_due)
            group.start_soon(_repeat, link, ALL_TASKS, partial(report, link))
            group.start_soon(_repeat, link, OUTBOX_KEY, outbox.send_due)
            group.start_soon(_repeat, link, CONNECTION_KEY, Chores(link).run)
            group.start_soon(_repeat, link, CONNECTION_KEY, Poll(link).run)
            group.start_soon(_repeat, link, CONNECTION_KEY, Watch(link).run)
    finally:
        with anyio.CancelScope(shield=True):
            await link.close()


async def _repeat(link: LinearLink, key: str, chore: Chore) -> None:
    """Run the chore while it finds work, then wait for a notification."""
    with link.relay.hub.subscribe(key) as news, link.relay.hub.subscribe(CONNECTION_KEY) as connected:
        while True:
            pause = LOOK_EVERY
            try:
                if await link.connection() is None:
                    await connected.wait(UNCONNECTED_WAIT)
                    continue
                if await chore(link.relay.now()):
                    continue
            except DelegateError as error:
                log.warning("Linear is delayed", extra={"key": key, "why": error.message})
                pause = RETRY_AFTER_FAILURE
            except Exception:
                log.exception("work for Linear failed", extra={"key": key})
                pause = RETRY_AFTER_FAILURE
            await news.wait(pause)


async def report(link: LinearLink, now: datetime) -> int:
    sessions = await link.relay.database.read(open_sessions)
    if not sessions:
        return 0
    interval = ephemeral_interval(len(sessions), link.hourly_limit)
    count = await report_events(link.relay.database, interval, now)
    if count:
        link.relay.hub.notify_key(OUTBOX_KEY)
    return count


class Chores:
    """What need not be done at once."""

    def __init__(self, link: LinearLink) -> None:
        self.link = link
        self._next_at: datetime | None = None

    async def run(self, now: datetime) -> int:
        if self._next_at is not None and now < self._next_at:
            return 0
        self._next_at = now + CHORES_EVERY
        database = self.link.relay.database
        await keep_alive(database, now)
        await database.write("linear.forget", partial(drop_bodies, before=now - BODIES_KEPT))
        await database.write("linear.forget", partial(drop_settled, before=now - POSTS_KEPT))
        self.link.relay.hub.notify_key(OUTBOX_KEY)
        return 0
