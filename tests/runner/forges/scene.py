"""A repository on the loopback GitHub with a branch that waits for its pull request."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.fakes.github import GitHub as Loopback
from tests.fakes.github_repositories import Pull

from delegate.runner.forges.base import EnsuredPullRequest, WantedPullRequest, ensure
from delegate.runner.forges.body import END_MARKER, marker
from delegate.runner.forges.github import GitHub

REPOSITORY, BRANCH = "acme/demo", "per-44-rate-limit-3f2a"


async def allowed() -> None:
    """The guard of a runner that holds its lease."""


def body_of(task_id: str, words: str = "What was done.") -> str:
    return f"{marker(task_id)}\n\n{words}\n\n{END_MARKER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    loopback: Loopback
    forge: GitHub
    wanted: WantedPullRequest

    @property
    def hub(self) -> Any:
        return self.loopback.hub

    @property
    def pulls(self) -> list[Pull]:
        return self.loopback.pulls(REPOSITORY)

    async def ensure(self, *, guard: Callable[[], Awaitable[None]] = allowed, **changes: Any) -> EnsuredPullRequest:
        return await ensure(self.forge, replace(self.wanted, **changes), guard)

    def commit(self, name: str = "more.txt") -> str:
        """Another commit on the branch."""
        return self.loopback.seed(REPOSITORY, {name: "more\n"}, branch=BRANCH)

    def person_opens(self, **fields: Any) -> Pull:
        asked = {"title": "By hand", "body": "My own words.", "base": "main", "head": BRANCH, **fields}
        return self.hub.repository(REPOSITORY).open_pull(asked, "a-person")

    def with_environ(self, **environ: str) -> Scene:
        return replace(self, forge=replace(self.forge, environ={**self.forge.environ, **environ}))

    def asked(self, what: str) -> int:
        return sum(what in request.text for request in self.hub.requests)


def scene_of(loopback: Loopback) -> Scene:
    base = loopback.seed(REPOSITORY, {"README.md": "# demo\n"})
    bare = loopback.hub.repository(REPOSITORY)
    bare.git("update-ref", f"refs/heads/{BRANCH}", base)
    commit = loopback.seed(REPOSITORY, {"limit.py": "LIMIT = 100\n"}, branch=BRANCH)
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **loopback.env}
    wanted = WantedPullRequest(
        task_id="task-1a",
        title="PER-44 · Rate limit runner endpoints",
        body=body_of("task-1a"),
        branch=BRANCH,
        base="main",
        commit=commit,
    )
    forge = GitHub(command="gh", environ=environ, host="github.com", repository=REPOSITORY)
    return Scene(loopback=loopback, forge=forge, wanted=wanted)
