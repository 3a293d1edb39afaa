"""Takes a snapshot of an agent's worktree as a git tree.

`git add`, `git status` and `git diff` could do this in one command, but they run git inside nested repositories, with
their configuration. So we list and classify the paths, and add them to a copy of the index from before the agent
started.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from delegate.runner.git.bare import read_small
from delegate.runner.git.fifo_guard import run_with_fifo_guard
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.classify import SkippedPath, SkipReason, classify_paths
from delegate.runner.workspaces.history import read_agent_history
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

LISTING = ("ls-files", "-z", "-t", "--deleted", "--modified", "--others", "--exclude-standard")
GITLINK = b"160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    tree: str
    head: str | None  # the agent's last commit; None when it cannot be trusted
    base: str  # the commit of the base branch that the work is compared with
    descends: bool  # the base is an ancestor of the head
    problem: str | None  # why the agent's own commits cannot be kept
    dirty: tuple[str, ...]  # uncommitted paths, for display
    skipped: tuple[SkippedPath, ...] = ()
    unfiltered: tuple[str, ...] = ()  # uncommitted paths that the agent's git would have stored through a filter
    on_base: tuple[str, ...] = ()  # commits that the agent made and the base branch has at the remote, newest first


async def take_snapshot(git: Git, workspace: Workspace) -> Snapshot:
    """Read-only for the agent's worktree; new objects go to the kept repository."""
    try:
        found = workspace.tree.lstat()
    except FileNotFoundError as gone:
        why = "the agent removed its worktree, with all that it had not committed"
        raise GitFailed(("ls-files",), None, why) from gone
    if not stat.S_ISDIR(found.st_mode):
        raise GitFailed(("ls-files",), None, "the worktree was replaced by a file or a link")
    async with scratch_repository(git, workspace) as scratch:
        history = await read_agent_history(scratch, workspace)
        await start_index(scratch, workspace, history.head)
        staged = await stage(scratch)
        tree = (await scratch.git("write-tree")).decode().strip()
    return Snapshot(
        tree=tree,
        head=history.head,
        base=workspace.base.commit,
        descends=history.descends,
        problem=history.problem,
        dirty=tuple(path.decode(errors="replace") for path in staged.paths),
        skipped=staged.skipped,
        unfiltered=tuple(path.decode(errors="replace") for path in staged.unfiltered),
    )


async def start_index(scratch: ScratchRepository, workspace: Workspace, head: str | None) -> None:
    """Starts from the index of the checkout, updated with what the agent committed."""
    base = workspace.base.commit
    try:
        # With its time: git compares the content only of files that are as new as the index.
        shutil.copy2(workspace.saved_index, scratch.index)
    except FileNotFoundError:
        await scratch.git("read-tree", head or base)
        return
    if head is not None and head != base:
        # The agent may have committed ignored files. Index only: the worktree is not compared yet.
        await scratch.git("read-tree", "-i", "-m", head)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPaths:
    paths: tuple[bytes, ...]  # staged as they are in the worktree, in order
    skipped: tuple[SkippedPath, ...]
    unstaged: tuple[bytes, ...]  # other paths that git listed, not in the index
    unfiltered: tuple[bytes, ...]  # among the staged ones, those with a filter that was not run


async def stage(scratch: ScratchRepository) -> StagedPaths:
    """Stages all changes in the worktree."""
    listed = await run_with_fifo_guard(scratch.tree, scratch.git(*LISTING, tree=True))
    found = await anyio.to_thread.run_sync(classify_paths, scratch.tree, listed)
    gitlinks = await _gitlinks_among(scratch, found.directories)
    gone = [*found.gone, *(path for path in found.directories if path not in gitlinks)]
    if gone:
        await scratch.git("update-index", "-z", "--force-remove", "--stdin", input=_join_paths(gone), tree=True)
    filters = await find_filters(scratch, found.changed)
    filtered = {path for path, name in filters.items() if STORAGE_FILTERS.fullmatch(name)}
    changed = [path for path in found.changed if path not in filtered]
    if changed:
        arguments = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        await run_with_fifo_guard(scratch.tree, scratch.git(*arguments, input=_join_paths(changed), tree=True))
    skipped = (
        *found.skipped,
        *_skipped_paths(gitlinks, SkipReason.NESTED),
        *_skipped_paths(sorted(filtered), SkipReason.FILTERED),
    )
    paths = tuple(sorted([*changed, *gone]))
    names = {entry[2:].rstrip(b"/") for entry in listed.split(b"\0") if entry}
    return StagedPaths(
        paths=paths,
        skipped=skipped,
        unstaged=tuple(sorted(names.difference(paths))),
        unfiltered=tuple(sorted(filters.keys() - filtered)),
    )


async def _gitlinks_among(scratch: ScratchRepository, directories: tuple[bytes, ...]) -> list[bytes]:
    """The submodules among tracked names that are directories; the others are files that became directories."""
    if not directories:
        return []
    links = await gitlinks(scratch)
    return [path for path in directories if path in links]


async def gitlinks(scratch: ScratchRepository) -> dict[bytes, str]:
    """The submodules in the index, each with its commit."""
    pairs = (entry.partition(b"\t") for entry in (await scratch.git("ls-files", "-z", "--stage")).split(b"\0"))
    return {path: meta.split()[1].decode() for meta, _, path in pairs if meta.startswith(GITLINK)}


def _skipped_paths(paths: Sequence[bytes], kind: SkipReason) -> list[SkippedPath]:
    return [SkippedPath(path=path.decode(errors="replace"), kind=kind) for path in paths]


def _join_paths(paths: Sequence[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


ATTRIBUTES_MAX = 1024 * 1024  # bytes of one file
NO_FILTER = frozenset({b"unspecified", b"unset", b"set"})
STORAGE_FILTERS = re.compile(rb"lfs|.*crypt.*", re.I)


async def find_filters(scratch: ScratchRepository, paths: Sequence[bytes]) -> dict[bytes, bytes]:
    """The existing paths that have a filter attribute, and its value."""
    if not await anyio.to_thread.run_sync(_mentions_filters, scratch.tree, paths):
        return {}
    asked = b"".join(path + b"\0" for path in paths)
    command = scratch.git("check-attr", "-z", "--stdin", "filter", input=asked, tree=True)
    answer = await run_with_fifo_guard(scratch.tree, command)
    return await anyio.to_thread.run_sync(_existing_filters, scratch.tree, answer)


def _existing_filters(tree: Path, answer: bytes) -> dict[bytes, bytes]:
    fields = answer.split(b"\0")  # path, attribute and value in turn
    named = {path: value for path, value in zip(fields[0::3], fields[2::3], strict=False) if value not in NO_FILTER}
    return {path: value for path, value in named.items() if os.path.lexists(os.fsencode(tree) + b"/" + path)}


def _mentions_filters(tree: Path, paths: Sequence[bytes]) -> bool:
    """Saves a process when no attribute file above a path mentions a filter."""
    directories = {b""}
    for path in paths:
        parent = path.rpartition(b"/")[0]
        while parent not in directories:
            directories.add(parent)
            parent = parent.rpartition(b"/")[0]
    files = (tree / os.fsdecode(directory) / ".gitattributes" for directory in directories)
    return any("filter" in read_small(file, ATTRIBUTES_MAX) for file in files)
