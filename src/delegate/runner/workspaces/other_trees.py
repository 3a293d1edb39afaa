"""Finds files of the agent outside of its worktree: other worktrees and clones, and a new `.git`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio

from delegate.runner.git.bare import COMMIT, is_directory, read_refs, read_small
from delegate.runner.git.fifo_guard import run_with_fifo_guard
from delegate.runner.git.program import SCRATCH_PREFIX, Git, GitFailed
from delegate.runner.workspaces.history import COPY_TIMEOUT, copy_commits, read_head
from delegate.runner.workspaces.non_git_files import DIRECTORY
from delegate.runner.workspaces.saving import UNREADABLE, worktree_entries
from delegate.runner.workspaces.scratch import ScratchRepository
from delegate.runner.workspaces.snapshot import LISTING
from delegate.runner.workspaces.worktrees import Workspace


async def find_other_trees(scratch: ScratchRepository, workspace: Workspace) -> list[Path]:
    """Worktrees of the agent's repository with uncommitted changes, and repositories beside the agent's worktree."""
    registered = await anyio.to_thread.run_sync(_registered_worktrees, workspace)
    found = [path for path, name in registered.items() if not await _is_clean(scratch, workspace, path, name)]
    return [*found, *(path for path in await anyio.to_thread.run_sync(_clones, workspace) if path not in registered)]


def is_ours(git: Git, workspace: Workspace, path: Path) -> bool:
    """Whether the path is removed with the workspace or with the attempt's TMPDIR, in the runner's directory."""
    return workspace.root in path.parents or Path(os.path.realpath(git.scratch.parent)) in path.parents


def _registered_worktrees(workspace: Workspace) -> dict[Path, str]:
    """The worktrees of the agent's repository besides its own, each with its name there."""
    found = {}
    for entry in worktree_entries(workspace):
        path = Path(os.path.normpath(entry / read_small(entry / "gitdir").strip())).parent
        if path != workspace.tree and path.resolve() == path and is_directory(path) and _belongs_to(entry, path):
            found[path] = entry.name
    return {path: name for path, name in found.items() if not _is_delegates(workspace, path)}


def _belongs_to(entry: Path, path: Path) -> bool:
    """Both sides must say so: an agent can write any path into its own, such as that of another task."""
    return Path(os.path.normpath(path / read_small(path / ".git").strip().removeprefix("gitdir: "))) == entry


def _is_delegates(workspace: Workspace, path: Path) -> bool:
    own = {workspace.git_dir, workspace.kept_repository, *(workspace.root / name for name in (DIRECTORY, UNREADABLE))}
    return path == workspace.root or not own.isdisjoint((path, *path.parents))


def _clones(workspace: Workspace) -> list[Path]:
    """Repositories beside the worktree, and a new `.git` in it that has commits."""
    others = (path for path in sorted(workspace.root.iterdir()) if path != workspace.tree)
    beside = [path for path in others if _is_repository(path) and not _is_delegates(workspace, path)]
    new = workspace.tree / ".git"
    has_commits = is_directory(new) and (read_refs(new) or COMMIT.fullmatch(read_small(new / "HEAD").strip()))
    return [*beside, new] if has_commits else beside


def _is_repository(path: Path) -> bool:
    is_bare = is_directory(path / "objects") and os.path.lexists(path / "HEAD")
    is_scratch = path.name.startswith(SCRATCH_PREFIX)
    return is_directory(path) and (os.path.lexists(path / ".git") or (is_bare and not is_scratch))


async def _is_clean(scratch: ScratchRepository, workspace: Workspace, path: Path, name: str) -> bool:
    """Whether the worktree has only the files of its last commit, which is saved with the agent's other commits."""
    head = read_head(workspace.git_dir, name)
    if head is None or (head != workspace.base.commit and await copy_commits(scratch, workspace, [head]) is not None):
        return False
    own_index = {"GIT_INDEX_FILE": str(scratch.directory / f"index-{head}")}
    inner = replace(scratch, tree=path, env={**scratch.env, **own_index})
    try:
        with anyio.fail_after(COPY_TIMEOUT.total_seconds()):
            await inner.git("read-tree", head)
            return not await run_with_fifo_guard(path, inner.git(*LISTING, tree=True))
    except (GitFailed, TimeoutError):
        return False
