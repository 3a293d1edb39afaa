"""The stand-in itself, where other tests lean on it: the real git pushes to it, and its faults are what they say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.fakes.github import GitHub
from tests.git import run_git, try_git

pytestmark = pytest.mark.real


class Clone:
    def __init__(self, github: GitHub, path: Path) -> None:
        self.path = path
        self.env = {**os.environ, **github.env}
        github.seed("acme/demo", {"README.md": "# demo\n", "src/a.py": "A = 1\n"})
        run_git("clone", "-q", github.url("acme/demo"), path, cwd=path.parent, env=self.env)

    def git(self, *arguments: str) -> str:
        return run_git(*arguments, cwd=self.path, env=self.env)

    def push(self, branch: str) -> subprocess.CompletedProcess[bytes]:
        self.git("commit", "-q", "--allow-empty", "-m", branch)
        return try_git("push", "-q", "origin", f"HEAD:refs/heads/{branch}", cwd=self.path, env=self.env)


@pytest.fixture
def clone(github: GitHub, tmp_path: Path) -> Clone:
    return Clone(github, tmp_path / "clone")


def test_a_clone_and_a_push_are_real(github: GitHub, clone: Clone) -> None:
    pushed = clone.push("feature")

    assert pushed.returncode == 0, pushed.stderr
    assert (clone.path / "src" / "a.py").read_text() == "A = 1\n"
    assert clone.git("rev-parse", "HEAD") == github.head("acme/demo", "feature")
    assert clone.git("remote", "get-url", "origin") == "http://github.com/acme/demo.git"
    assert clone.git("config", "remote.origin.url") == "https://github.com/acme/demo.git"


def test_a_push_whose_answer_is_lost_has_arrived(github: GitHub, clone: Clone) -> None:
    github.hub.drop("POST .*git-receive-pack", after_acting=True)

    assert clone.push("feature").returncode != 0
    assert github.branches("acme/demo") == ["feature", "main"]


def test_a_push_that_is_refused_has_not_arrived(github: GitHub, clone: Clone) -> None:
    github.hub.fail("git-receive-pack", status=500)

    assert clone.push("feature").returncode != 0
    assert github.branches("acme/demo") == ["main"]
    assert clone.push("feature").returncode == 0


def test_a_password_is_asked_for_when_there_is_one(github: GitHub, clone: Clone) -> None:
    github.hub.git_password = "secret"

    without = clone.push("feature")
    clone.git("config", "credential.helper", "!f() { echo username=a; echo password=secret; }; f")

    assert b"could not read Username" in without.stderr
    assert clone.push("feature").returncode == 0


def test_a_held_request_has_not_acted_until_its_gate_opens(github: GitHub, clone: Clone) -> None:
    gate = github.hub.hold("POST .*git-receive-pack")
    clone.git("commit", "-q", "--allow-empty", "-m", "x")
    push = subprocess.Popen(["git", "push", "-q", "origin", "HEAD:refs/heads/feature"], cwd=clone.path, env=clone.env)

    assert gate.reached.wait(30)
    assert github.branches("acme/demo") == ["main"]
    gate.open()
    assert push.wait(30) == 0
    assert github.branches("acme/demo") == ["feature", "main"]


def test_deleting_a_branch_closes_its_pull_request(github: GitHub, clone: Clone) -> None:
    clone.push("feature")
    asked = {"title": "T", "body": "", "base": "main", "head": "feature"}
    github.hub.repository("acme/demo").open_pull(asked, "a-person")

    clone.git("push", "-q", "origin", ":refs/heads/feature")

    assert [pull.state for pull in github.pulls("acme/demo")] == ["CLOSED"]
