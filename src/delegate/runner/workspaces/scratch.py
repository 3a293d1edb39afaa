"""Creates scratch repositories for reading an agent's work: nothing that the agent writes configures them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from delegate.runner.git.bare import bare_config
from delegate.runner.git.program import Git, GitFailed

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

PREFIX = "publish-"
NOT_AN_ANCESTOR = 1  # git's exit code for "no"; others are failures
# No git runs in the repositories that objects are borrowed from, to list their refs. The last three: git trusts its
# object caches without checking them, and an agent can write them.
SAFE_CONFIG = f"""\
[core]
\thooksPath = {os.devnull}
\talternateRefsCommand = :
\tcommitGraph = false
\tmultiPackIndex = false
[pack]
\tuseBitmaps = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchRepository:
    program: Git
    directory: Path
    tree: Path
    env: Mapping[str, str]

    @property
    def index(self) -> Path:
        return self.directory / "index"

    async def git(
        self, *arguments: str, input: bytes = b"", tree: bool = False, extra: Mapping[str, str] | None = None
    ) -> bytes:
        """Runs a local command; with `tree`, on the agent's files."""
        env = {**self.env, **(extra or {})}
        if not tree:
            return await self.program.run(*arguments, cwd=self.directory, input=input, extra=env)
        seen = {**env, "GIT_WORK_TREE": str(self.tree)}
        return await self.program.run(*arguments, cwd=self.tree, input=input, extra=seen)

    async def run_remote(self, *arguments: str, timeout: timedelta) -> bytes:
        """Runs a command that contacts a remote."""
        return await self.program.run_remote(*arguments, cwd=self.directory, timeout=timeout, extra=self.env)

    async def is_ancestor(self, older: str, newer: str) -> bool | None:
        """None: one of the two is missing or is not a commit."""
        try:
            await self.git("merge-base", "--is-ancestor", older, newer)
        except GitFailed as failed:
            if failed.done is not None and failed.done.code == NOT_AN_ANCESTOR:
                return False
            return None
        return True


@asynccontextmanager
async def scratch_repository(git: Git, workspace: Workspace) -> AsyncIterator[ScratchRepository]:
    """New objects go to the kept repository, those of the base are borrowed from the mirror."""
    with bare_repository(workspace.root, workspace.base.commit) as directory:
        if workspace.carried_excludes.exists():
            (directory / "info").mkdir()
            shutil.copy(workspace.carried_excludes, directory / "info" / "exclude")
        env = {
            "GIT_DIR": str(directory),
            "GIT_INDEX_FILE": str(directory / "index"),
            "GIT_OBJECT_DIRECTORY": str(workspace.kept_repository / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(workspace.mirror / "objects"),
        }
        yield ScratchRepository(program=git, directory=directory, tree=workspace.tree, env=env)


@contextmanager
def bare_repository(parent: Path | None, object_id: str) -> Iterator[Path]:
    """A minimal temporary repository for objects such as this one."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        for part in ("refs", "objects"):
            (directory / part).mkdir()
        (directory / "HEAD").write_text("ref: refs/heads/unborn\n")
        (directory / "config").write_text(bare_config(object_id) + SAFE_CONFIG)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def format_alternates(*objects: Path) -> str:
    """A list of object directories for git, quoted because a path may contain a colon."""
    escaped = (str(path).replace("\\", "\\\\").replace('"', '\\"') for path in objects)
    return os.pathsep.join(f'"{path}"' for path in escaped)
