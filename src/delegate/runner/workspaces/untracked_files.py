"""Copies untracked files such as `.env` from the user's checkout into a worktree."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio

from delegate.runner.git.bare import read_small
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.copying import copy_path
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.runner.workspaces.worktrees import Workspace

INCLUDE_FILE = ".worktreeinclude"
INCLUDE_MAX = 1024 * 1024
LIST_TIMEOUT = timedelta(minutes=5)
SPECIAL = "\\*?[!# "  # characters with a meaning in an ignore line


async def carry_in(git: Git, workspace: Workspace, patterns: Sequence[str]) -> list[str]:
    """Copy the files that the patterns, written as in `.gitignore`, or the checkout's `.worktreeinclude` name.

    Copies only untracked files, and never over an existing one. Returns their names for display.
    """
    source = workspace.repository.source
    if source is None:
        return []
    lines = [*patterns, *read_small(source / INCLUDE_FILE, INCLUDE_MAX).splitlines()]
    if not lines:
        return []
    names = await _list_files(git, workspace, source, lines)
    carried = await anyio.to_thread.run_sync(_copy_files, workspace, source, names)
    return [name.decode(errors="replace") for name in carried]


async def _list_files(git: Git, workspace: Workspace, source: Path, lines: list[str]) -> list[bytes]:
    patterns = workspace.root / "carry"
    await anyio.Path(patterns).write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
    arguments = ("-c", "core.fsmonitor=false", "ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    quiet = {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        listed = await git.run_remote(*arguments, cwd=source, timeout=LIST_TIMEOUT, extra=quiet)
    except GitFailed as failed:
        raise SetupProblem(f"the files to copy from {source} could not be listed: {failed.why}") from failed
    # An ignore line cannot contain a line break, and a file that cannot be ignored could be published.
    return [name for name in listed.split(b"\0") if name and not name.endswith(b"/") and b"\n" not in name]


def _copy_files(workspace: Workspace, source: Path, names: list[bytes]) -> list[bytes]:
    carried = [name for name in names if _copy_file(source, workspace.tree, name)]
    if carried:
        before = workspace.carried_excludes.read_bytes() if workspace.carried_excludes.exists() else b""
        new = (line for line in map(_ignore_line, carried) if line not in before.splitlines(keepends=True))
        lines = before + b"".join(new)
        workspace.carried_excludes.write_bytes(lines)
        exclude = workspace.git_dir / "info" / "exclude"
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_bytes(lines)
    return carried


def _ignore_line(name: bytes) -> bytes:
    """An ignore line that matches only this file."""
    text = os.fsdecode(name)
    return os.fsencode("/" + "".join(f"\\{c}" if c in SPECIAL else c for c in text) + "\n")


def _copy_file(source: Path, tree: Path, name: bytes) -> bool:
    *parents, last = os.fsdecode(name).split("/")
    if not _are_directories(source, parents, make=False) or not _are_directories(tree, parents, make=True):
        return False
    origin, target = source.joinpath(*parents, last), tree.joinpath(*parents, last)
    if os.path.lexists(target):
        return False
    mode = origin.lstat().st_mode
    if stat.S_ISLNK(mode):
        if not _stays_inside(source, origin):
            return False
        target.symlink_to(origin.readlink())
    elif stat.S_ISREG(mode):
        copy_path(str(origin), str(target))
    return stat.S_ISLNK(mode) or stat.S_ISREG(mode)


def _are_directories(top: Path, parents: list[str], *, make: bool) -> bool:
    """Whether all parents are real directories: a link could lead anywhere."""
    path = top
    for part in parents:
        path = path / part
        if make and not os.path.lexists(path):
            path.mkdir()
        if path.is_symlink() or not path.is_dir():
            return False
    return True


def _stays_inside(source: Path, link: Path) -> bool:
    """Whether a link is relative and stays in the checkout, so that it also works in the worktree."""
    target = link.readlink()
    return not target.is_absolute() and Path(os.path.realpath(link)).is_relative_to(os.path.realpath(source))
