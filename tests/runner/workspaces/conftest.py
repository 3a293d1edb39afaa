"""A user with a checkout and a remote of their own, and the home of a runner beside them."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from tests.git import run_git

from delegate.config.paths import Home
from delegate.runner.assignment import Assignment, assignment_of
from delegate.runner.git.program import Git, read_git
from delegate.runner.workspaces.kept import restore
from delegate.runner.workspaces.mirrors import base_of, fetch_mirror
from delegate.runner.workspaces.prepare import prepare
from delegate.runner.workspaces.repositories import locate
from delegate.runner.workspaces.sweep import SalvageLimits, sweep
from delegate.runner.workspaces.worktrees import Workspace
from delegate.wire.runners import AssignmentView

BRANCH = "delegate/fix-it-3f2a"
LINEAGE = "task-0000000001"


def assignment(**given: object) -> Assignment:
    plain = {
        "attempt_id": "att-1",
        "task_id": LINEAGE,
        "lineage": LINEAGE,
        "fence": 1,
        "number": 1,
        "agent": "shell",
        "prompt": "fix it",
        "timeout_ms": 60_000,
        "max_output": 1024,
    }
    return assignment_of(AssignmentView.model_validate({**plain, **given}))


def never(lineage: str) -> bool:
    """Nothing is to be done for any lineage."""
    return False


LIMITS = SalvageLimits(age=timedelta(days=14), size=1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    place: Path
    home: Home
    git: Git
    env: Mapping[str, str]

    @property
    def remote(self) -> Path:
        return self.place / "remote.git"

    @property
    def checkout(self) -> Path:
        return self.place / "checkout"

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """Git, as the user or an agent would run it."""
        return run_git(*arguments, cwd=cwd or self.checkout, env=self.env)

    def push(self, name: str, content: str, branch: str = "main") -> str:
        """A commit of the user's on the remote."""
        (self.checkout / name).write_text(content)
        self.run("add", "-A")
        self.run("commit", "-qm", f"change {name}")
        self.run("push", "-q", "origin", f"HEAD:{branch}")
        return self.run("rev-parse", "HEAD")

    async def swept(self, is_live: Callable[[str], bool] = never) -> list[str]:
        """What is left of workspaces after a runner's start."""
        await sweep(self.git, self.home, is_live, limits=LIMITS, now=datetime.now(UTC))
        return sorted(path.name for path in self.home.workspaces.glob("*"))

    async def restored(self, name: str = LINEAGE) -> Path:
        """What is kept, as a person gets it back."""
        target = self.place / f"restored-{secrets.token_hex(3)}"
        await restore(self.git, self.home, name, target)
        return target

    async def workspace(self, **given: object) -> Workspace:
        """A workspace as an attempt gets it."""
        task = assignment(**{"working_directory": str(self.checkout), **given})
        mirror = await fetch_mirror(
            self.git, self.home, await locate(self.git, task.repository, task.working_directory)
        )
        base = await base_of(self.git, mirror, task.base)
        return await prepare(self.git, self.home, task, mirror, base, BRANCH)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return await make_scene(tmp_path)


async def make_scene(place: Path) -> Scene:
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_GLOBAL": str(place / "gitconfig"), "LC_ALL": "C"}
    shutil.copytree(original(), place, symlinks=True, dirs_exist_ok=True)
    config = place / "checkout" / ".git" / "config"
    config.write_text(config.read_text().replace(str(original()), str(place)))
    git = await read_git(env, place / "runner")
    return Scene(place=place, home=Home(place / "home"), git=git, env=env)


@cache
def original() -> Path:
    """A remote, a clone of it and the user's settings, made once: each test works in a copy."""
    directory = tempfile.TemporaryDirectory(prefix="delegate-scene-")
    atexit.register(directory.cleanup)
    place = Path(directory.name)
    (place / "gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
    )
    checkout = place / "checkout"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": str(place / "gitconfig")}
    run_git("init", "-q", "--bare", "remote.git", cwd=place, env=env)
    run_git("clone", "-q", place / "remote.git", checkout, cwd=place, env=env)
    (checkout / "src").mkdir()
    (checkout / "src" / "app.py").write_text("print('hello')\n")
    (checkout / ".gitignore").write_text(".env\nbuild/\n")
    (checkout / "README.md").write_text("read me\n")
    run_git("add", "-A", cwd=checkout, env=env)
    run_git("commit", "-qm", "begin", cwd=checkout, env=env)
    run_git("push", "-q", "origin", "main", cwd=checkout, env=env)
    return place
