"""Locks that all runners of a home share; the kernel releases them when their holder ends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from delegate.config.home_files import LOCK_POLL, acquire_lock, is_same_file
from delegate.runner.workspaces.repositories import SetupProblem

LOCK_NAME = "lock"
BUSY_POLL = 0.1  # seconds; scanning all processes takes a few milliseconds


@asynccontextmanager
async def hold_lock(path: Path, timeout: float, message: str) -> AsyncIterator[None]:
    """Raises SetupProblem with `message` when the lock is not free within `timeout` seconds."""
    descriptor = None
    with anyio.move_on_after(timeout):
        while (descriptor := acquire_lock(path, 0)) is None:  # noqa: ASYNC110
            await anyio.sleep(LOCK_POLL)  # the kernel offers no event to wait for
    if descriptor is None:
        raise SetupProblem(message)
    try:
        yield
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Exclusive use of a directory, until it is released or this process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Safe to call twice: the descriptor may belong to another file by then."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_directory(directory: Path) -> DirectoryLock | None:
    """Creates the directory if needed and locks it; None when another process holds or has just removed it."""
    descriptor = acquire_lock(directory / LOCK_NAME, 0)
    if descriptor is None:
        return None
    if not is_same_file(descriptor, directory / LOCK_NAME):
        os.close(descriptor)
        return None
    return DirectoryLock(descriptor)


async def wait_until_idle(root: Path, timeout: float) -> bool:
    """Waits until no process runs in the directory.

    The git of a killed runner keeps running, and processes of its agent may take a moment to end.
    """
    with anyio.move_on_after(timeout):
        while await anyio.to_thread.run_sync(is_busy, root):  # noqa: ASYNC110
            await anyio.sleep(BUSY_POLL)
        return True
    return False


def is_busy(root: Path) -> bool:
    """Whether a process runs in the directory; False where the system has no /proc."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if (process / "cwd").readlink().is_relative_to(root):
                return True
    return False
