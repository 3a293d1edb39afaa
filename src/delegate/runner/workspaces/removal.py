"""Removes what lies under one of our own directories, and nothing else: no link is followed, whatever it leads to."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = 0o700


def remove(parent: Path, name: str) -> None:
    """Remove an entry of the directory, however deep; a link is removed itself. Missing is fine.

    `parent` must be a directory, not a link to one.
    """
    assert name not in {"", ".", ".."}
    assert "/" not in name
    try:
        with opened(parent) as directory:
            _remove_in(directory, name)
    except FileNotFoundError:
        return


def _remove_in(directory: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    _open_up(directory, name)
    with opened(name, directory) as top:
        pending = _emptied(top, top)
        while pending:
            inner = pending.pop()
            with opened(inner, top) as below:
                pending += _emptied(below, top)
            os.rmdir(inner, dir_fd=top)
    os.rmdir(name, dir_fd=directory)


def _emptied(directory: int, top: int) -> list[str]:
    """Remove the files and move the directories up to the top, so that depth has no limit; their new names."""
    moved = []
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
            continue
        _open_up(directory, name)
        moved.append(secrets.token_hex(8))
        os.rename(name, moved[-1], src_dir_fd=directory, dst_dir_fd=top)
    return moved


def _open_up(directory: int, name: str) -> None:
    """Build tools make directories that nobody may change; their owner may."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if mode & OWNER != OWNER:
        os.chmod(name, stat.S_IMODE(mode) | OWNER, dir_fd=directory, follow_symlinks=False)


@contextmanager
def opened(path: Path | str, directory: int | None = None) -> Iterator[int]:
    """A directory itself, never what a link leads to."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
