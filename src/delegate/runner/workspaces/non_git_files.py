"""Stores what no git tree can hold: nested repositories, huge and unreadable files, names that git reserves.

They are moved out of the worktree unchanged, into numbered entries of one directory with a list of their names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from delegate.runner.git.bare import bare_config, ensure_real_directory, is_directory, read_refs, read_small
from delegate.runner.git.fifo_guard import is_blocking_fifo
from delegate.runner.removal import OWNER, remove
from delegate.runner.workspaces.copying import copy_path, copy_tree

DIRECTORY = "aside"
NAMES_FILE = "names"
NAMES_MAX = 256 * 1024 * 1024
READABLE = 0o400
BESIDE = "-beside"  # ends the new name of a tree that was beside the worktree
OUTSIDE = b"/"  # begins the listed name of such a tree: no name in a tree does
NEW_GIT = "new-git"  # a repository that the agent made in place of its worktree's
# The parts of a repository that no setting is in.
REPOSITORY_PARTS = ("HEAD", "packed-refs", "refs", "logs", "index", "objects")
COPIED_TYPES = (stat.S_IFREG, stat.S_IFDIR)


def has_stored_files(root: Path) -> bool:
    return next(stored_names(root), None) is not None


def stored_names(root: Path) -> Iterator[bytes]:
    return (name.removeprefix(OUTSIDE) for _, name in _entries(root / DIRECTORY))


def move_out(root: Path, tree: Path, paths: Iterable[bytes]) -> None:
    found = ((name, _target_path(tree, name, make=False)) for name in paths)
    _store(root, ((name, target) for name, target in found if target is not None))


def move_out_trees(root: Path, tree: Path, paths: Iterable[Path]) -> None:
    """Moves other trees of the agent, each under a name that says so: they are restored, but not for the next agent."""
    for path in filter(is_directory, paths):  # one may have been in another
        make_readable(path)
        if path == tree / ".git":
            ensure_real_directory(root / NEW_GIT)
            path.rename(root / NEW_GIT / ".git")
            path = root / NEW_GIT  # noqa: PLW2901
        taken = set(stored_names(root))
        names = (os.fsencode(f"{path.name}{number}{BESIDE}") for number in ("", *range(2, len(taken) + 3)))
        _store(root, [(OUTSIDE + next(name for name in names if name not in taken), path)])


def _store(root: Path, paths: Iterable[tuple[bytes, Path]]) -> None:
    directory = root / DIRECTORY
    ensure_real_directory(directory)
    number = read_small(directory / NAMES_FILE, NAMES_MAX).count("\0")
    for name, target in paths:
        if not os.path.lexists(target):
            continue
        # Name first: an entry without a name would be lost; a name without an entry is skipped.
        with (directory / NAMES_FILE).open("ab") as listed:
            listed.write(name + b"\0")
        entry = directory / str(number)
        number += 1
        target.rename(entry)


def move_back(root: Path, tree: Path) -> None:
    """Moves everything back into the tree, except what was not in it."""
    for entry, name in _entries(root / DIRECTORY):
        target = None if name.startswith(OUTSIDE) else _clear_target(tree, name)
        if target is not None:
            entry.rename(target)
    if not has_stored_files(root):
        remove(root, DIRECTORY)


def copy_back(root: Path, tree: Path) -> None:
    """Copies everything into the user's tree except the settings and hooks in `.git`, which could run a program."""
    # Last those that were beside: they get names that the tree does not have.
    for entry, name in sorted(_entries(root / DIRECTORY), key=lambda found: found[1].startswith(OUTSIDE)):
        target = _free_target(tree, name) if name.startswith(OUTSIDE) else _clear_target(tree, name)
        if target is not None:
            copy_tree(entry, target, without=".git")
            _copy_repositories(entry, target, tree / ".git")


def _copy_repositories(source: Path, target: Path, restored: Path) -> None:
    """Copies each `.git` without settings and hooks. One that borrowed objects gets those of the restored work."""
    for directory, names, _ in os.walk(source):
        if ".git" not in names:
            continue
        names.remove(".git")
        old = Path(directory, ".git")
        if not is_directory(old):
            continue
        new = target / old.relative_to(source)
        new.mkdir()
        for part in REPOSITORY_PARTS:
            if stat.S_IFMT((old / part).lstat().st_mode if os.path.lexists(old / part) else 0) in COPIED_TYPES:
                copy_tree(old / part, new / part, without="info" if part == "objects" else None)
        known = next(iter(read_refs(old).values()), "")
        (new / "config").write_text(bare_config(known).replace("bare = true", "bare = false"))
        if os.path.lexists(old / "objects" / "info" / "alternates"):
            (new / "objects" / "info").mkdir(parents=True)
            lender = os.path.relpath(restored / "objects", new / "objects")
            (new / "objects" / "info" / "alternates").write_bytes(os.fsencode(lender) + b"\n")
            copy_path(str(restored / "shallow"), str(new / "shallow"))


def make_readable(tree: Path) -> None:
    """Makes everything readable for its owner: what cannot be listed cannot be saved.

    Removes a pipe where git expects a settings file: git would wait for it forever.
    """
    tree.chmod(stat.S_IMODE(tree.lstat().st_mode) | OWNER)
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


def _free_target(tree: Path, name: bytes) -> Path:
    """A path that the tree does not have, for a tree that was beside it."""
    wanted = os.fsdecode(name.removeprefix(OUTSIDE))
    names = (f"{wanted}{number}" for number in ("", *range(2, len(os.listdir(tree)) + 3)))  # noqa: PTH208
    return next(tree / name for name in names if not os.path.lexists(tree / name))


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
