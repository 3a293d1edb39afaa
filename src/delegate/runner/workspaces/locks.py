"""Locks that all runners of a home share, kept by the kernel: they end with their holder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from delegate.config.home_files import LOCK_POLL, acquire_lock, is_same_file
from delegate.runner.workspaces.repositories import SetupProblem

LOCK_NAME = "lock"
BUSY_POLL = 0.1  # seconds; a look at all processes takes some milliseconds


@asynccontextmanager
async def hold_lock(path: Path, timeout: float, message: str) -> AsyncIterator[None]:
    """SetupProblem with the words `otherwise` when somebody else keeps it for `patience` seconds."""
    descriptor = None
    with anyio.move_on_after(timeout):
        while (descriptor := acquire_lock(path, 0)) is None:  # noqa: ASYNC110
            await anyio.sleep(LOCK_POLL)  # the kernel tells nobody who could be awaited
    if descriptor is None:
        raise SetupProblem(message)
    try:
        yield
    finally:
        os.close(descriptor)


class DirectoryLock:
    """A directory that nobody else may use, until it is let go or this process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """A second time does nothing: the number may be another file's by then."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_directory(directory: Path) -> DirectoryLock | None:
    """Make the directory if it is missing and lock it; None when somebody else has it, or has just removed it."""
    descriptor = acquire_lock(directory / LOCK_NAME, 0)
    if descriptor is None:
        return None
    if not is_same_file(descriptor, directory / LOCK_NAME):
        os.close(descriptor)
        return None
    return DirectoryLock(descriptor)


async def wait_until_idle(root: Path, timeout: float) -> bool:
    """Wait until no process works in the directory.

    A killed runner's git goes on without it, and what its agent started may take a moment to be gone.
    """
    with anyio.move_on_after(timeout):
        while await anyio.to_thread.run_sync(is_busy, root):  # noqa: ASYNC110
            await anyio.sleep(BUSY_POLL)
        return True
    return False


def is_busy(root: Path) -> bool:
    """Whether a process works in the directory, as far as the system tells."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if (process / "cwd").readlink().is_relative_to(root):
                return True
    return False
