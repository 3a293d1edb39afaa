"""A disk that runs full stops new work while the ends of old work can still be written.

Below the floor nothing new is taken: tasks, claims. Below the size of the ballast no more output either. The ballast is
a file whose only use is to be removed: when the database finds no room, it makes way for the ends of attempts.
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
BALLAST = 8 * 1024 * 1024  # bytes; the end of an attempt takes some ten thousand
BALLAST_SHARE = 8  # of a small floor, at most one part in eight
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
        """Why this request cannot be served now; None when it can, and always for the ends of attempts."""
        if method != "POST":
            return None
        if NEW_WORK.fullmatch(path):
            return self.explain_shortage()
        if OUTPUT.fullmatch(path):
            return describe_shortage([self.directory], self.ballast_size)
        return None

    def explain_shortage(self) -> str | None:
        """Why nothing new can be started now."""
        return describe_shortage([self.directory], self.min_free)

    def create_ballast(self) -> None:
        """Only where there is room for it and for what may still come."""
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
        except OSError:  # it was dropped before, and did not help
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
    """PostgreSQL looks after its own disk, which is somebody else's: then there is no floor, and no ballast."""
    return RelayDisk(
        directory=settings.home, min_free=0 if is_postgres(settings.database_url) else settings.relay_min_free
    )


def reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    while size > 0:  # macOS; not zeros, which a file system may store without room
        size -= os.write(descriptor, os.urandom(min(size, 1024 * 1024)))


async def watch_disk(disk: RelayDisk) -> None:
    """Drop the ballast before the database must find out, and lay it again when there is room."""
    while True:
        try:
            await to_thread.run_sync(disk.check_ballast)
        except OSError as error:
            log.warning("no ballast", extra={"why": error.strerror})
        await anyio.sleep(CHECK_EVERY)


class DiskSpaceGuard:
    """Before the routes: what there is no room for is refused. Behind them: when the database had none, the ballast
    makes room, so that the same request made again can be served."""

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
