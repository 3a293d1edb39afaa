"""What the relay does without being asked: rescue, wake what came due, back up, forget."""

from __future__ import annotations

import logging
import sqlite3
from datetime import datetime, timedelta

import anyio
from anyio import to_thread

from delegate.errors import DelegateError
from delegate.queue.rescue import lanes_that_came_due, rescue
from delegate.relay.state import Relay
from delegate.report.retention import retain
from delegate.states import TaskState
from delegate.store.backup import backup

log = logging.getLogger(__name__)
RETAIN_EVERY = timedelta(hours=1)
TICK_MAX = timedelta(seconds=5)  # a parked task starts at most this long after its time


async def keep_house(relay: Relay) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_tick_forever, relay)
        group.start_soon(_retain_forever, relay)
        if relay.database.is_sqlite:
            group.start_soon(_back_up_forever, relay)


async def _tick_forever(relay: Relay) -> None:
    pause = min(TICK_MAX, relay.settings.heartbeat)
    looked = relay.now()
    while True:
        await anyio.sleep(pause.total_seconds())
        try:
            looked = await _tick(relay, looked)
        except DelegateError as error:
            log.warning("housekeeping skipped", extra={"why": error.message})


async def _tick(relay: Relay, looked: datetime) -> datetime:
    now = relay.now()
    for task in await rescue(relay.database, relay.rules, now):
        relay.hub.alert(task.id)
        if task.state is TaskState.QUEUED:
            relay.hub.wake(task.lane)
    for lane in await lanes_that_came_due(relay.database, looked, now):
        relay.hub.wake(lane)
    return now


async def _retain_forever(relay: Relay) -> None:
    while True:
        try:
            await retain(relay.database, relay.settings, relay.now())
        except DelegateError as error:
            log.warning("old tasks not dropped", extra={"why": error.message})
        await anyio.sleep(RETAIN_EVERY.total_seconds())


async def _back_up_forever(relay: Relay) -> None:
    while True:
        await anyio.sleep(relay.settings.backup_every.total_seconds())
        try:
            path = await to_thread.run_sync(backup, relay.settings, None)
            log.info("backup made", extra={"path": str(path)})
        except (DelegateError, OSError, sqlite3.Error) as error:
            log.warning("no backup made", extra={"why": str(error)})
