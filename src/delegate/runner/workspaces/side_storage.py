"""What no tree of git can hold: nested repositories, huge and unreadable files, names that git keeps for itself.

They are moved out of the worktree as they are, into numbered entries of one directory with a list of their names.
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
    """What lies aside."""
    return (name for _, name in _entries(root / DIRECTORY))


def move_out(root: Path, tree: Path, paths: Iterable[bytes]) -> None:
    """Move them out of the tree."""
    directory = root / DIRECTORY
    ensure_real_directory(directory)
    number = read_small(directory / NAMES_FILE, NAMES_MAX).count("\0")
    for name in paths:
        target = _target_path(tree, name, make=False)
        if target is None or not os.path.lexists(target):
            continue
        # Named first: an entry without a name would be lost, a name without an entry is passed over.
        with (directory / NAMES_FILE).open("ab") as listed:
            listed.write(name + b"\0")
        entry = directory / str(number)
        number += 1
        target.rename(entry)


def move_back(root: Path, tree: Path) -> None:
    """Move everything into the tree again."""
    for entry, name in _entries(root / DIRECTORY):
        target = _clear_target(tree, name)
        if target is not None:
            entry.rename(target)
    if not has_stored_files(root):
        remove(root, DIRECTORY)


def copy_back(root: Path, tree: Path) -> None:
    """Copy everything into a tree of the user's, but no `.git`: its settings could run a program."""
    for entry, name in _entries(root / DIRECTORY):
        target = _clear_target(tree, name)
        if target is not None:
            copy_tree(entry, target, without=".git")


def make_readable(tree: Path) -> None:
    """Make everything readable for its owner, who is us: what cannot be listed cannot be saved.

    A pipe in which git would look for its own settings is removed: there is nothing in it, and git would wait for ever.
    """
    pending = [os.fspath(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if is_blocking_fifo(os.fsencode(entry.path)):
                    os.unlink(entry.path)  # noqa: PTH108  # any name, as the system gave it
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
    """The place of that name in the tree, with nothing there any more."""
    target = _target_path(tree, name, make=True)
    if target is not None:
        remove(target.parent, target.name)
    return target


def _target_path(tree: Path, name: bytes, *, make: bool) -> Path | None:
    """The path of that name; None when it would lead out of the tree, or through something that is no directory."""
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
