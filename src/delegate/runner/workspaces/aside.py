"""What no tree of git can hold: nested repositories, huge and unreadable files, names that git keeps for itself.

They are moved out of the worktree as they are, into numbered entries of one directory with a list of their names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from delegate.runner.git.bare import is_directory, make_real, read_small
from delegate.runner.git.fifo_guard import is_trap
from delegate.runner.removal import OWNER, remove
from delegate.runner.workspaces.copying import copy_tree

DIRECTORY = "aside"
NAMES = "names"
NAMES_MAX = 256 * 1024 * 1024
READABLE = 0o400


def has_aside(root: Path) -> bool:
    return next(names(root), None) is not None


def names(root: Path) -> Iterator[bytes]:
    """What lies aside."""
    return (name for _, name in _entries(root / DIRECTORY))


def put_aside(root: Path, tree: Path, odd: Iterable[bytes]) -> None:
    """Move them out of the tree."""
    directory = root / DIRECTORY
    make_real(directory)
    number = read_small(directory / NAMES, NAMES_MAX).count("\0")
    for name in odd:
        place = _place(tree, name, make=False)
        if place is None or not os.path.lexists(place):
            continue
        # Named first: an entry without a name would be lost, a name without an entry is passed over.
        with (directory / NAMES).open("ab") as listed:
            listed.write(name + b"\0")
        entry = directory / str(number)
        number += 1
        place.rename(entry)


def take_back(root: Path, tree: Path) -> None:
    """Move everything into the tree again."""
    for entry, name in _entries(root / DIRECTORY):
        place = _cleared(tree, name)
        if place is not None:
            entry.rename(place)
    if not has_aside(root):
        remove(root, DIRECTORY)


def copy_back(root: Path, tree: Path) -> None:
    """Copy everything into a tree of the user's, but no `.git`: its settings could run a program."""
    for entry, name in _entries(root / DIRECTORY):
        place = _cleared(tree, name)
        if place is not None:
            copy_tree(entry, place, without=".git")


def open_up(tree: Path) -> None:
    """Make everything readable for its owner, who is us: what cannot be listed cannot be saved.

    A pipe in which git would look for its own settings is removed: there is nothing in it, and git would wait for ever.
    """
    pending = [os.fspath(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if is_trap(os.fsencode(entry.path)):
                    os.unlink(entry.path)  # noqa: PTH108  # any name, as the system gave it
                    continue
                needed = OWNER if entry.is_dir(follow_symlinks=False) else READABLE
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if needed & ~mode:
                    os.chmod(entry.path, mode | needed, follow_symlinks=False)  # noqa: PTH101  # pathlib's follows links
                if needed is OWNER:
                    pending.append(entry.path)


def _entries(directory: Path) -> Iterator[tuple[Path, bytes]]:
    listed = read_small(directory / NAMES, NAMES_MAX).encode(errors="surrogateescape").split(b"\0")
    for number, name in enumerate(listed[:-1]):
        entry = directory / str(number)
        if os.path.lexists(entry):
            yield entry, name


def _cleared(tree: Path, name: bytes) -> Path | None:
    """The place of that name in the tree, with nothing there any more."""
    place = _place(tree, name, make=True)
    if place is not None:
        remove(place.parent, place.name)
    return place


def _place(tree: Path, name: bytes, *, make: bool) -> Path | None:
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
