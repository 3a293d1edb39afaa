"""Reads and caches the `.delegate.toml` of base commits, which never change."""

from __future__ import annotations

from pathlib import Path

from delegate.errors import BadRepoFile
from delegate.preferences.repofile import FILE_NAME, RepoFile, parse
from delegate.runner.git.program import Git
from delegate.runner.workspaces.mirrors import Mirror
from delegate.runner.workspaces.repositories import Base, SetupProblem
from delegate.runner.workspaces.scratch import scratch_mirror

CACHE_SIZE = 32
LINK_MODE = b"120000 "


class RepositoryFiles:
    def __init__(self) -> None:
        self._cache: dict[tuple[Path, str], RepoFile] = {}

    async def get(self, git: Git, mirror: Mirror, base: Base) -> RepoFile:
        """Never reads the agent's tree. Raises SetupProblem when the file is invalid."""
        key = (mirror.path, base.commit)
        if key not in self._cache:
            found = await _read(git, mirror, base)
            self._cache = {**dict(list(self._cache.items())[-CACHE_SIZE:]), key: found}
        return self._cache[key]


async def _read(git: Git, mirror: Mirror, base: Base) -> RepoFile:
    with scratch_mirror(git, mirror.path) as scratch:
        found = await scratch.git("cat-file", "--batch", input=f"{base.commit}:{FILE_NAME}\n".encode())
    header, _, content = found.partition(b"\n")
    if header.endswith(b" missing"):
        return RepoFile()
    if b" blob " not in header:
        raise SetupProblem(f"{FILE_NAME} in the repository is not a file")
    try:
        return parse(content[:-1])  # git adds a newline
    except BadRepoFile as problem:
        entry = await git.run("ls-tree", base.commit, "--", FILE_NAME, cwd=mirror.path)
        if entry.startswith(LINK_MODE):  # its content is the path of its target
            raise SetupProblem(f"{FILE_NAME} in the repository is a symbolic link; commit the file itself") from None
        raise SetupProblem(problem.message) from problem
