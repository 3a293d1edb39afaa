"""Creates an agent's worktree from a throw-away repository that shares no configuration with any other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delegate.failpoints import failpoint
from delegate.preferences.repofile import RepoFile
from delegate.runner.agents.base import Agent
from delegate.runner.assignment import Assignment
from delegate.runner.git.bare import remote_config, write_bare
from delegate.runner.git.program import Git
from delegate.runner.workspaces.locks import DirectoryLock
from delegate.runner.workspaces.repositories import Base, Repository

# No background maintenance may run while the repository is removed.
NO_MAINTENANCE_CONFIG = "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The directories of an attempt. An agent can write to all of them."""

    lineage: str
    root: Path
    repository: Repository
    mirror: Path  # the bare repository that lends its objects
    base: Base
    branch: str
    lock: DirectoryLock  # keeps other runners away, until `close` or `release_workspace`

    @property
    def tree(self) -> Path:
        """The agent's worktree, at a path that stays the same for the lineage."""
        return self.root / "tree"

    @property
    def git_dir(self) -> Path:
        """The throw-away repository that the worktree belongs to."""
        return self.root / "git"

    @property
    def index(self) -> Path:
        """The worktree's own index, which the agent's git commands change."""
        return self.git_dir / "worktrees" / self.tree.name / "index"

    @property
    def kept_repository(self) -> Path:
        """Our bare repository: saved work, and the objects of every snapshot and published commit."""
        return self.root / "kept.git"

    @property
    def saved_index(self) -> Path:
        """The index as it was right after the checkout, out of the agent's way."""
        return self.root / "saved.index"

    @property
    def carried_excludes(self) -> Path:
        """Ignore lines for the files copied from the user's checkout: no snapshot may contain them.

        A snapshot uses the file as `info/exclude` of its own repository; it is missing when no file was copied.
        """
        return self.root / "carried"

    @property
    def alternates(self) -> bytes:
        """The content that we wrote to `git_dir/objects/info/alternates`."""
        return os.fsencode(self.mirror / "objects") + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWorkspace:
    assignment: Assignment  # with the preferences of `.delegate.toml` applied
    repofile: RepoFile
    agent: Agent
    workspace: Workspace


def write_repository(workspace: Workspace, start: str, refs: Mapping[str, str]) -> None:
    """Writes the throw-away repository, with the branch at `start` and further refs for the agent."""
    write_bare(
        workspace.git_dir,
        branch=workspace.branch,
        alternates=workspace.alternates,
        object_id=start,
        refs={**refs, f"refs/heads/{workspace.branch}": start},
        config=NO_MAINTENANCE_CONFIG + remote_config(workspace.repository.url, workspace.repository.push_url),
    )
    remote_head = workspace.git_dir / "refs" / "remotes" / "origin" / "HEAD"
    remote_head.parent.mkdir(parents=True, exist_ok=True)
    remote_head.write_text(f"ref: refs/remotes/origin/{workspace.base.branch}\n")
    failpoint("workspace.repository_made")


async def check_out(git: Git, workspace: Workspace) -> None:
    """Does what `git worktree add` does, without its child processes."""
    entry = workspace.git_dir / "worktrees" / workspace.tree.name
    entry.mkdir(parents=True)
    (entry / "HEAD").write_text(f"ref: refs/heads/{workspace.branch}\n")
    (entry / "commondir").write_text("../..\n")
    (entry / "gitdir").write_text(f"{workspace.tree / '.git'}\n")
    workspace.tree.mkdir()
    (workspace.tree / ".git").write_text(f"gitdir: {entry}\n")
    await git.run("read-tree", "-u", "--reset", "HEAD", cwd=workspace.tree)
    failpoint("workspace.tree_made")


def save_index(workspace: Workspace) -> None:
    """Saves the index of the checkout with its time: git re-reads files that are as new as their index."""
    scratch = workspace.saved_index.with_suffix(".new")
    shutil.copy2(workspace.index, scratch)
    scratch.replace(workspace.saved_index)
    failpoint("workspace.index_kept")


def release_workspace(workspace: Workspace) -> None:
    """Releases a workspace unchanged; another attempt of its lineage takes it over, or a sweep removes it."""
    workspace.lock.release()
