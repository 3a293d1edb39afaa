"""Keeps git from hanging on a tree whose .gitignore or .gitattributes is a named pipe."""

from __future__ import annotations

import os
import stat
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio

from delegate.errors import excerpt
from delegate.runner.git.program import GitFailed

FIFO_CHECK_DELAY = 10.0  # seconds; a faster command does not need a walk through the tree
READ_BY_GIT = frozenset({b".gitignore", b".gitattributes"})


async def run_with_fifo_guard(tree: Path, command: Coroutine[Any, Any, bytes]) -> bytes:  # Any: nothing is sent to it
    """Returns the output of `command`; raises GitFailed with the pipe's name when one blocks it."""
    outcome: list[bytes | GitFailed] = []

    async def read() -> None:
        try:
            outcome.append(await command)
        except GitFailed as failed:
            outcome.append(failed)
        group.cancel_scope.cancel()

    async def watch() -> None:
        await anyio.sleep(FIFO_CHECK_DELAY)
        fifo = await anyio.to_thread.run_sync(lambda: next(_find_fifos(os.fsencode(tree)), None))
        if fifo is not None and not outcome:
            outcome.append(GitFailed(("ls-files",), None, f"{excerpt(fifo)} is a named pipe, which git cannot read"))
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(watch)
    match outcome[0]:
        case GitFailed() as failed:
            raise failed
        case output:
            return output


def _find_fifos(tree: bytes) -> Iterator[str]:
    for directory, _, names in os.walk(tree):
        for name in READ_BY_GIT.intersection(names):
            path = directory + b"/" + name
            if is_blocking_fifo(path):
                yield path.removeprefix(tree + b"/").decode(errors="replace")


def is_blocking_fifo(path: bytes) -> bool:
    """Whether git would open the path and block."""
    try:
        return path.rpartition(b"/")[2] in READ_BY_GIT and stat.S_ISFIFO(os.lstat(path).st_mode)
    except OSError:  # the agent may have removed it meanwhile
        return False
