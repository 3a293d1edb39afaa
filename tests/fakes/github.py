"""A loopback GitHub for tests that push and open pull requests with the real git and gh.

    from tests.fakes.github import github as github      # in a conftest.py: now tests can ask for it

    def test_...(github: GitHub) -> None:
        github.seed("acme/demo", {"README.md": "# demo\\n"})          # made by the first seed
        subprocess.run(["git", "clone", "https://github.com/acme/demo.git", "x"], env={**os.environ, **github.env})
        ...
        assert [pull.title for pull in github.pulls("acme/demo")] == [...]

`env` is to be laid over the environment of whatever runs gh and git: a runner, a World. `hub` is the server itself,
with its faults and gates (tests/fakes/github_standin.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.github_graphql import GraphQLProblem
from tests.fakes.github_repositories import Pull, Repository
from tests.fakes.github_standin import GitHubStandin


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    hub: GitHubStandin
    env: dict[str, str]

    def seed(
        self, repository: str, files: Mapping[str, str | bytes], *, branch: str = "main", message: str = "Seed"
    ) -> str:
        """A commit with these files on the branch; its id. The repository is made when it is not there yet."""
        return self._made(repository).seed(files, branch, message)

    def fork(self, repository: str, owner: str) -> str:
        """A fork of the repository, with its branches; its name."""
        parent = self.hub.repository(repository)
        made = self.hub.add(f"{owner}/{parent.name}")
        made.git("fetch", "-q", str(parent.bare), "refs/heads/*:refs/heads/*")
        parent.forks[owner] = made
        return made.full_name

    def pulls(self, repository: str) -> list[Pull]:
        """All of them, in all states, oldest first."""
        found = self.hub.repository(repository)
        with self.hub.lock:
            found.refresh()
            return list(found.pulls.values())

    def head(self, repository: str, branch: str) -> str | None:
        """The commit that the branch is at."""
        return self.hub.repository(repository).head_of(branch)

    def branches(self, repository: str) -> list[str]:
        return self.hub.repository(repository).branches()

    def bare(self, repository: str) -> Path:
        """The bare repository itself: a hook in it can refuse a push."""
        return self.hub.repository(repository).bare

    def url(self, repository: str) -> str:
        return f"https://github.com/{repository}.git"

    def _made(self, repository: str) -> Repository:
        try:
            return self.hub.repository(repository)
        except GraphQLProblem:
            return self.hub.add(repository)


@contextmanager
def living_github(directory: Path) -> Iterator[GitHub]:
    with GitHubStandin(directory / "repositories") as hub:
        yield GitHub(hub=hub, env=hub.environment(directory / "configuration"))


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHub]:
    if shutil.which("gh") is None:
        pytest.skip("gh is not installed")
    with living_github(tmp_path / "github") as made:
        yield made
