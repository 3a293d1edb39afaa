"""Handles submodules that a setup command or an agent checked out."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import anyio

from delegate.runner.git.bare import is_directory, read_refs, read_small, write_new_file
from delegate.runner.git.fifo_guard import run_with_fifo_guard
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.removal import remove
from delegate.runner.workspaces.history import COPY_TIMEOUT
from delegate.runner.workspaces.saving import reset_kept_repository
from delegate.runner.workspaces.scratch import ScratchRepository, format_alternates, scratch_repository
from delegate.runner.workspaces.snapshot import LISTING, gitlinks
from delegate.runner.workspaces.worktrees import Workspace

POINTER = "gitdir: "
CONFIG_MAX = 1024 * 1024
# The setting with the path of the files, relative to the repository's old location.
WORKTREE = re.compile(rb"^\s*worktree\s*=.*\n", re.MULTILINE)


async def embed_submodules(git: Git, workspace: Workspace) -> bool:
    """Empties unchanged submodules; moves the repositories of the others into their directories.

    A restored directory that pointed to a removed repository would break every git command there.
    Returns True when no submodule was changed.
    """
    if not _may_have_any(workspace):
        return True
    is_untouched = True
    reset_kept_repository(workspace)
    async with scratch_repository(git, workspace) as scratch:
        await scratch.git("read-tree", workspace.base.commit)
        for name, commit in (await gitlinks(scratch)).items():
            directory = workspace.tree / os.fsdecode(name)
            if not is_directory(directory) or not directory.resolve().is_relative_to(workspace.tree):
                continue
            if await _is_untouched(scratch, workspace, directory, commit):
                await anyio.to_thread.run_sync(remove, directory.parent, directory.name)
                directory.mkdir()
            else:
                await anyio.to_thread.run_sync(_embed_repositories, workspace, directory)
                is_untouched = is_untouched and not any(directory.iterdir())
    return is_untouched


def _may_have_any(workspace: Workspace) -> bool:
    return any(os.path.lexists(path) for path in (*_modules(workspace), workspace.tree / ".gitmodules"))


def _modules(workspace: Workspace) -> tuple[Path, Path]:
    """The directories where git puts the repositories of submodules: of the worktree, and shared."""
    return workspace.index.parent / "modules", workspace.git_dir / "modules"


async def _is_untouched(scratch: ScratchRepository, workspace: Workspace, directory: Path, commit: str) -> bool:
    """Whether it has only the files of that commit, and no commits that its remote lacks."""
    repository = _repository_of(workspace, directory)
    if repository is None or not _has_nothing_else(repository, commit):
        return False
    seen = {
        "GIT_INDEX_FILE": str(scratch.directory / f"index-{commit}"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(repository / "objects"),
    }
    inner = replace(scratch, tree=directory, env={**scratch.env, **seen})
    try:
        with anyio.fail_after(COPY_TIMEOUT.total_seconds()):  # a pipe among its objects would block forever
            await inner.git("read-tree", commit)
            if await run_with_fifo_guard(directory, inner.git(*LISTING, tree=True)):
                return False
            below = await gitlinks(inner)
    except (GitFailed, TimeoutError):
        return False
    found = {directory / os.fsdecode(name): inner_commit for name, inner_commit in below.items()}
    checked_out = {path: of for path, of in found.items() if is_directory(path) and any(path.iterdir())}
    return all([await _is_untouched(scratch, workspace, path, of) for path, of in checked_out.items()])


def _has_nothing_else(repository: Path, commit: str) -> bool:
    """Whether it is at the commit, and its remote had all branches and the stash at the last fetch."""
    refs = read_refs(repository)
    known = {commit, *(target for name, target in refs.items() if name.startswith(("refs/remotes/", "refs/tags/")))}
    is_there = read_small(repository / "HEAD").strip() == commit
    borrows = os.path.lexists(repository / "objects" / "info" / "alternates")
    return is_there and not borrows and known.issuperset(refs.values())


def _repository_of(workspace: Workspace, directory: Path) -> Path | None:
    """The repository that the submodule's `.git` file points to, if it is one of git's own locations."""
    if is_directory(directory / ".git"):
        return None  # embedded before
    text = read_small(directory / ".git").strip()
    if not text.startswith(POINTER):
        return None
    path = Path(os.path.normpath(directory / text.removeprefix(POINTER)))
    is_below = any(place in path.parents for place in _modules(workspace)) and path.resolve() == path
    return path if is_below and is_directory(path / "objects") else None


def _embed_repositories(workspace: Workspace, directory: Path) -> None:
    """Moves each repository into its submodule, as old versions of git did, so that they stay together."""
    for parent, _, names in os.walk(directory, topdown=False):
        if ".git" in names:
            inner = Path(parent)
            repository = _repository_of(workspace, inner)
            if repository is not None:
                config = read_small(repository / "config", CONFIG_MAX).encode(errors="surrogateescape")
                write_new_file(repository / "config", WORKTREE.sub(b"", config))
                remove(inner, ".git")
                repository.rename(inner / ".git")
