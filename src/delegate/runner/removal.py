"""Removes files and directories below a given directory without following symbolic links."""

from __future__ import annotations

import logging
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delegate.failpoints import failpoint

log = logging.getLogger(__name__)

OWNER = 0o700
REST = ".rest-"
CLEAR_TIMEOUT = 2.0  # seconds


def remove(parent: Path, name: str, deadline: float = math.inf) -> None:
    """Remove an entry of the directory recursively; of a link, only the link itself. A missing entry is not an error.

    `parent` must be a directory, not a link to one. Raises TimeoutError at the deadline, on the monotonic clock.
    """
    assert name not in {"", ".", ".."}
    assert "/" not in name
    try:
        with open_directory(parent) as directory:
            _remove_in(directory, name, deadline)
    except FileNotFoundError:
        return


def clear(root: Path, keep: frozenset[str]) -> None:
    """Empty a workspace except for the entries in `keep`.

    An entry that cannot be removed, for example a file that a container created as another user, is moved to a
    directory beside the workspace, which each sweep tries to remove again. So is what takes long: the task's end must
    not wait for a large tree.
    """
    deadline = time.monotonic() + CLEAR_TIMEOUT
    for entry in sorted(path.name for path in root.iterdir()):
        if entry not in keep:
            _remove_or_move_away(root, entry, deadline)
            failpoint("workspace.entry_removed")


def _remove_or_move_away(root: Path, name: str, deadline: float) -> None:
    try:
        remove(root, name, deadline)
    except OSError as problem:
        rest = rest_path(root)
        log.log(
            logging.INFO if isinstance(problem, TimeoutError) else logging.WARNING,
            "workspace entry not removed",
            extra={"path": str(root / name), "rest": rest.name, "why": str(problem)},
        )
        try:
            (root / name).rename(rest)
        except OSError as move_problem:
            log.warning("workspace entry not moved away", extra={"path": str(root / name), "why": str(move_problem)})


def rest_path(root: Path) -> Path:
    """A new path beside the workspace, for an entry that is still to be removed."""
    return root.with_name(f"{root.name}{REST}{secrets.token_hex(4)}")


def is_rest(path: Path) -> bool:
    return REST in path.name


def _remove_in(directory: int, name: str, deadline: float) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    _make_writable(directory, name)
    with open_directory(name, directory) as top:
        pending = _empty_directory(top, top, deadline)
        while pending:
            inner = pending.pop()
            with open_directory(inner, top) as below:
                pending += _empty_directory(below, top, deadline)
            os.rmdir(inner, dir_fd=top)
    os.rmdir(name, dir_fd=directory)


def _empty_directory(directory: int, top: int, deadline: float) -> list[str]:
    """Remove the files and move the directories to the top, so that depth has no limit; returns their new names."""
    moved = []
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if time.monotonic() > deadline:
            raise TimeoutError("the rest is removed later")
        if not is_directory:
            os.unlink(name, dir_fd=directory)
            continue
        _make_writable(directory, name)
        moved.append(secrets.token_hex(8))
        os.rename(name, moved[-1], src_dir_fd=directory, dst_dir_fd=top)
    return moved


def _make_writable(directory: int, name: str) -> None:
    """Some build tools create read-only directories; the owner can make them writable again."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if mode & OWNER != OWNER:
        os.chmod(name, stat.S_IMODE(mode) | OWNER, dir_fd=directory, follow_symlinks=False)


@contextmanager
def open_directory(path: Path | str, directory: int | None = None) -> Iterator[int]:
    """Open a directory, but never through a symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
