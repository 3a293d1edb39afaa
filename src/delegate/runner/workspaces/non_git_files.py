"""Stores what no git tree can hold: nested repositories, huge and unreadable files, names that git reserves.

They are moved out of the worktree unchanged, into numbered entries of one directory with a list of their names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from delegate.runner.git.bare import ensure_real_directory, is_directory, read_small
from delegate.runner.git.fifo_guard import is_blocking_fifo
from delegate.runner.removal import OWNER, remove
from delegate.runner.workspaces.copying import copy_tree

DIRECTORY = "aside"
NAMES_FILE = "names"
NAMES_MAX = 256 * 1024 * 1024
READABLE = 0o400


def has_stored_files(root: Path) -> bool:
    return next(stored_names(root), None) is not None


def stored_names(root: Path) -> Iterator[bytes]:
    return (name for _, name in _entries(root / DIRECTORY))


def move_out(root: Path, tree: Path, paths: Iterable[bytes]) -> None:
    directory = root / DIRECTORY
    ensure_real_directory(directory)
    number = read_small(directory / NAMES_FILE, NAMES_MAX).count("\0")
    for name in paths:
        target = _target_path(tree, name, make=False)
        if target is None or not os.path.lexists(target):
            continue
        # Name first: an entry without a name would be lost; a name without an entry is skipped.
        with (directory / NAMES_FILE).open("ab") as listed:
            listed.write(name + b"\0")
        entry = directory / str(number)
        number += 1
        target.rename(entry)


def move_back(root: Path, tree: Path) -> None:
    """Moves everything back into the tree."""
    for entry, name in _entries(root / DIRECTORY):
        target = _clear_target(tree, name)
        if target is not None:
            entry.rename(target)
    if not has_stored_files(root):
        remove(root, DIRECTORY)


def copy_back(root: Path, tree: Path) -> None:
    """Copies everything into the user's tree except `.git`, whose settings could run a program."""
    for entry, name in _entries(root / DIRECTORY):
        target = _clear_target(tree, name)
        if target is not None:
            copy_tree(entry, target, without=".git")


def make_readable(tree: Path) -> None:
    """Makes everything readable for its owner: what cannot be listed cannot be saved.

    Removes a pipe where git expects a settings file: git would wait for it forever.
    """
    pending = [os.fspath(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if is_blocking_fifo(os.fsencode(entry.path)):
                    os.unlink(entry.path)  # noqa: PTH108  # a name of arbitrary bytes
                    continue
                needed = OWNER if entry.is_dir(follow_symlinks=False) else READABLE
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if needed & ~mode:
                    os.chmod(entry.path, mode | needed, follow_symlinks=False)  # noqa: PTH101  # pathlib's follows links
                if needed is OWNER:
                    pending.append(entry.path)


def _entries(directory: Path) -> Iterator[tuple[Path, bytes]]:
    listed = read_small(directory / NAMES_FILE, NAMES_MAX).encode(errors="surrogateescape").split(b"\0")
    for number, name in enumerate(listed[:-1]):
        entry = directory / str(number)
        if os.path.lexists(entry):
            yield entry, name


def _clear_target(tree: Path, name: bytes) -> Path | None:
    """The path of that name in the tree, after removing what is there."""
    target = _target_path(tree, name, make=True)
    if target is not None:
        remove(target.parent, target.name)
    return target


def _target_path(tree: Path, name: bytes, *, make: bool) -> Path | None:
    """The path of that name; None when it leaves the tree, or a parent is not a directory."""
    *parents, last = (os.fsdecode(part) for part in name.split(b"/"))
    if {"", ".", "..", ".git"} & {*parents, last}:
        return None
    directory = tree
    for part in parents:
        directory = directory / part
        if make and not os.path.lexists(directory):
            directory.mkdir()
        if not is_directory(directory):
            return None
    return directory / last
