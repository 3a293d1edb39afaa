"""Refuses new work when the disk is nearly full, so that running attempts can still be finished.

Below the minimum of free space the relay refuses new tasks and claims; below the size of the ballast, output as well.
The ballast is a file that is deleted when the database runs out of space, to free space for the ends of attempts.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delegate.config.disk import describe_shortage, free_bytes
from delegate.config.home_files import PRIVATE_FILE
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import DiskFull
from delegate.relay.problems import problem_response
from delegate.store.database import is_postgres

log = logging.getLogger(__name__)
BALLAST = 8 * 1024 * 1024  # bytes; the end of an attempt needs about ten thousand
BALLAST_SHARE = 8  # at most an eighth of the minimum of free space
CHECK_EVERY = 5.0  # seconds
NEW_WORK = re.compile(r"/api/(tasks|tasks/batch|tasks/[^/]+/(retry|resume|messages)|schedules|pipelines|runners/claim)")
OUTPUT = re.compile(r"/api/runners/attempts/[^/]+/record")
RETRY_AFTER = 5.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDisk:
    directory: Path
    min_free: int

    @property
    def ballast(self) -> Path:
        return Home(self.directory).ballast

    @property
    def ballast_size(self) -> int:
        return min(BALLAST, self.min_free // BALLAST_SHARE)

    def explain_refusal(self, method: str, path: str) -> str | None:
        """Return why this request must be refused now, or None; the end of an attempt is never refused."""
        if method != "POST":
            return None
        if NEW_WORK.fullmatch(path):
            return self.explain_shortage()
        if OUTPUT.fullmatch(path):
            return describe_shortage([self.directory], self.ballast_size)
        return None

    def explain_shortage(self) -> str | None:
        """Return why no new work can be started now, or None."""
        return describe_shortage([self.directory], self.min_free)

    def create_ballast(self) -> None:
        """Create the ballast if that leaves the minimum of free space."""
        if self.ballast.exists() or not self.has_space_for(self.ballast_size):
            return
        descriptor = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            reserve(descriptor, self.ballast_size)
        except OSError:
            self.ballast.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def drop_ballast(self) -> None:
        try:
            self.ballast.unlink()
        except OSError:  # already dropped
            return
        log.warning("disk full: ballast dropped", extra={"path": str(self.ballast), "bytes": self.ballast_size})

    def has_space_for(self, size: int) -> bool:
        free = free_bytes(self.directory)
        return free is None or free >= self.min_free + size

    def check_ballast(self) -> None:
        if self.ballast_size == 0:
            return
        free = free_bytes(self.directory)
        if free is not None and free < self.ballast_size:
            self.drop_ballast()
        else:
            self.create_ballast()


def disk_of(settings: Settings) -> RelayDisk:
    """Return the disk to watch. With PostgreSQL the database is not on it: no minimum and no ballast."""
    return RelayDisk(
        directory=settings.home, min_free=0 if is_postgres(settings.database_url) else settings.relay_min_free
    )


def reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    while size > 0:  # macOS; random, because a file system may store zeros without using space
        size -= os.write(descriptor, os.urandom(min(size, 1024 * 1024)))


async def watch_disk(disk: RelayDisk) -> None:
    """Drop the ballast before the database runs out of space, and create it again when there is space."""
    while True:
        try:
            await to_thread.run_sync(disk.check_ballast)
        except OSError as error:
            log.warning("ballast not created", extra={"why": error.strerror})
        await anyio.sleep(CHECK_EVERY)


class DiskSpaceGuard:
    """Refuses requests for which there is no space. When the database ran out of space, drops the ballast, so that
    the same request succeeds when it is sent again."""

    def __init__(self, app: ASGIApp, disk: RelayDisk) -> None:
        self.app = app
        self.disk = disk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        why = self.disk.explain_refusal(scope["method"], scope["path"])
        if why is not None:
            error = DiskFull(why=why, retry_after=RETRY_AFTER)
            await problem_response(error, scope["state"]["request_id"])(scope, receive, send)
            return

        async def send_and_free_ballast(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == DiskFull.status:
                self.disk.drop_ballast()
            await send(message)

        await self.app(scope, receive, send_and_free_ballast)
