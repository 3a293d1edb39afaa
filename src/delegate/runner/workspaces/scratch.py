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

from delegate.runner.git.bare import (
    SHA256_CONFIG,
    SHA256_LENGTH,
    bare_config,
    ensure_real_directory,
    format_packed_refs,
    is_directory,
    read_refs,
    read_small,
    replace_file,
    write_new_file,
)
from delegate.runner.git.program import SCRATCH_PREFIX, Git, GitFailed

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

SHALLOW_MAX = 64 * 1024 * 1024
NOT_AN_ANCESTOR = 1  # git's exit code for "no"; others are failures


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
    reset_alternates(workspace.kept_repository, workspace.alternates)
    reset_alternates(workspace.mirror)
    with bare_repository(git, workspace.base.commit, workspace.root) as directory:
        if workspace.carried_excludes.exists():
            with (directory / "info" / "exclude").open("ab") as excludes:
                excludes.write(workspace.carried_excludes.read_bytes())
        env = {
            "GIT_DIR": str(directory),
            "GIT_INDEX_FILE": str(directory / "index"),
            "GIT_OBJECT_DIRECTORY": str(workspace.kept_repository / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(workspace.mirror / "objects"),
        }
        yield ScratchRepository(program=git, directory=directory, tree=workspace.tree, env=env)


@contextmanager
def scratch_mirror(git: Git, mirror: Path) -> Iterator[ScratchRepository]:
    """The mirror's objects and refs without its configuration, which an agent can write."""
    reset_alternates(mirror)
    refs = read_refs(mirror)
    # A mirror without refs is new: no agent has seen it.
    is_sha256 = not refs and read_small(mirror / "config") == SHA256_CONFIG
    object_id = "0" * SHA256_LENGTH if is_sha256 else next(iter(refs.values()), "")
    with bare_repository(git, object_id) as directory:
        (directory / "packed-refs").write_bytes(format_packed_refs(refs))
        copy_shallow(mirror, directory)
        env = {"GIT_DIR": str(directory), "GIT_OBJECT_DIRECTORY": str(mirror / "objects")}
        yield ScratchRepository(program=git, directory=directory, tree=directory, env=env)


def reset_alternates(repository: Path, content: bytes = b"") -> None:
    """Git must borrow objects only from where we say: an agent can write this file, or put a pipe in its place."""
    if not is_directory(repository / "objects"):
        return
    ensure_real_directory(repository / "objects" / "info")
    file = repository / "objects" / "info" / "alternates"
    if os.path.lexists(file) and not (content and read_small(file).encode(errors="surrogateescape") == content):
        write_new_file(file, content)


def copy_shallow(source: Path, target: Path) -> None:
    """Copies git's list of commits whose parents are missing."""
    shallow = read_small(source / "shallow", SHALLOW_MAX)
    if shallow != read_small(target / "shallow", SHALLOW_MAX):
        replace_file(target / "shallow", shallow.encode(errors="surrogateescape"))


@contextmanager
def bare_repository(git: Git, object_id: str, parent: Path | None = None) -> Iterator[Path]:
    """A minimal temporary repository for objects such as this one."""
    directory = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent or git.scratch))
    try:
        for part in ("refs", "objects", "info"):
            (directory / part).mkdir()
        (directory / "HEAD").write_text("ref: refs/heads/unborn\n")
        (directory / "config").write_text(bare_config(object_id))
        excludes = git.excludes if git.excludes.endswith("\n") else f"{git.excludes}\n"
        (directory / "info" / "exclude").write_text(excludes, errors="surrogateescape")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def format_alternates(*objects: Path) -> str:
    """A list of object directories for git, quoted because a path may contain a colon."""
    escaped = (str(path).replace("\\", "\\\\").replace('"', '\\"') for path in objects)
    return os.pathsep.join(f'"{path}"' for path in escaped)
