from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.git import run_git

from delegate.preferences.repofile import RepoFile
from delegate.runner.agents.shell import Shell
from delegate.runner.assignment import assignment_of
from delegate.runner.git.bare import write_bare
from delegate.runner.git.program import Git, read_git
from delegate.runner.publishing.commits import commit_to_push
from delegate.runner.publishing.publication import Publication
from delegate.runner.publishing.push import PushResult, push
from delegate.runner.secrets.redaction import Redactor
from delegate.runner.upload.local_record import LocalRecord
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Spool
from delegate.runner.wakeup import Wakeup
from delegate.runner.workspaces.repositories import Base, Repository
from delegate.runner.workspaces.snapshot import Snapshot, take_snapshot
from delegate.runner.workspaces.worktrees import PreparedWorkspace, Workspace
from delegate.wire.runners import AssignmentView

KNOWN = "canary-env-Yk3vQ9zR5tLw"  # of no shape that would be known without knowing the value
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
MESSAGE = "Do what was asked\n\nDelegate-Task: task-1\n"
PLAIN = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Agent",
    "GIT_AUTHOR_EMAIL": "agent@example.com",
    "GIT_COMMITTER_NAME": "Agent",
    "GIT_COMMITTER_EMAIL": "agent@example.com",
}


def plain_git(*arguments: str, cwd: Path, **variables: str) -> str:
    """Git as an agent or a user runs it."""
    return run_git(*arguments, cwd=cwd, env={**PLAIN, **variables})


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A remote, our mirror of it, and a workspace that an agent has been at."""

    git: Git
    remote: Path
    workspace: Workspace

    @property
    def tree(self) -> Path:
        return self.workspace.tree

    @property
    def base(self) -> str:
        return self.workspace.base.commit

    def agent(self, *arguments: str) -> str:
        return plain_git(*arguments, cwd=self.tree)

    def write(self, path: str, text: str) -> None:
        place = self.tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def agent_commits(self, path: str, text: str) -> str:
        self.write(path, text)
        self.agent("add", "-f", path)
        self.agent("commit", "-qm", f"agent: {path}")
        return self.agent("rev-parse", "HEAD")

    async def take(self) -> Snapshot:
        return await take_snapshot(self.git, self.workspace)

    async def commit(self) -> str | None:
        return await commit_to_push(self.git, self.workspace, await self.take(), MESSAGE, AT)

    async def push(self, commit: str, *known: str) -> PushResult:
        async def nothing_against_it() -> None:
            return

        return await push(self.git, self.workspace, commit, known=frozenset(known), guard=nothing_against_it)

    def kept(self, *arguments: str) -> str:
        """Look into what was made: the new objects, and those of the base."""
        objects = {
            "GIT_DIR": str(self.remote),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.workspace.kept_repository / "objects"),
        }
        return plain_git(*arguments, cwd=self.workspace.root, **objects)

    def files(self, tree: str) -> dict[str, str]:
        """Each path of a tree and its mode."""
        entries = self.kept("ls-tree", "-r", "-z", tree).split("\0")
        return {path: meta.split(" ")[0] for meta, _, path in (entry.partition("\t") for entry in entries if entry)}

    def published(self) -> str | None:
        """The branch's commit at the remote."""
        found = plain_git("for-each-ref", "--format=%(objectname)", self.ref, cwd=self.remote)
        return found or None

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.workspace.branch}"


def publication(site: Site, prompt: str = "Do what was asked") -> Publication:
    """What an attempt publishes with; `KNOWN` is a secret of its machine."""
    known = {"attempt_id": "att-1", "task_id": "task-1", "fence": 1, "number": 1, "agent": "shell"}
    known |= {"timeout_ms": 1000, "max_output": 1024, "lineage": "task-1", "mode": "pull_request"}
    assignment = assignment_of(AssignmentView.model_validate({**known, "prompt": prompt}))
    spool = Spool(site.workspace.root / "spool", max_output=1024, next_seq=0)
    record = Record(
        spool,
        Redactor({"CANARY": KNOWN.encode()}).begin(),
        Wakeup(),
        local=LocalRecord(site.workspace.root / "records" / "l" / "local.jsonl", output_max=0),
    )
    ground = PreparedWorkspace(assignment=assignment, repofile=RepoFile(), agent=Shell(), workspace=site.workspace)
    effects = cast("Any", None)  # nothing is done outside here
    return Publication(git=site.git, prepared=ground, record=record, effects=effects, at=AT)


@pytest.fixture(scope="session")
def seeded_remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare repository with a small history; copied for each test."""
    source = tmp_path_factory.mktemp("seed") / "source"
    source.mkdir()
    plain_git("init", "-q", "-b", "main", cwd=source)
    for path, text in {
        "README.md": "# App\n",
        "src/app.py": "print('app')\n",
        "src/old.py": "print('old')\n",
        "docs/guide.md": "read me\n",
        ".gitignore": "ignored/\n*.log\n",
    }.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("README.md")
    plain_git("add", "-A", cwd=source)
    plain_git("commit", "-qm", "first", cwd=source)
    bare = source.parent / "remote.git"
    plain_git("clone", "-q", "--bare", "--template=", str(source), str(bare), cwd=source)
    return bare


@pytest.fixture
async def git(tmp_path: Path) -> Git:
    home = tmp_path / "user"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.com\n")
    return await read_git({"PATH": os.environ["PATH"], "HOME": str(home)}, tmp_path / "runner")


@pytest.fixture
async def site(tmp_path: Path, seeded_remote: Path, git: Git) -> Site:
    remote, mirror = tmp_path / "remote.git", tmp_path / "mirror.git"
    shutil.copytree(seeded_remote, remote)
    shutil.copytree(seeded_remote, mirror)
    return make_site(tmp_path / "workspaces" / "task-1", git, remote=remote, mirror=mirror)


def make_site(root: Path, git: Git, *, remote: Path, mirror: Path, branch: str = "task-1-work") -> Site:
    commit = plain_git("rev-parse", "refs/heads/main", cwd=mirror)
    workspace = Workspace(
        lineage="task-1",
        root=root,
        repository=Repository(key="remote", url=str(remote), name="remote"),
        mirror=mirror,
        base=Base(branch="main", commit=commit),
        branch=branch,
        lock=cast("Any", None),
    )
    root.mkdir(parents=True)
    write_bare(workspace.kept_repository, branch=branch, alternates=os.fsencode(mirror / "objects") + b"\n")
    refs = {f"refs/heads/{branch}": commit}
    write_bare(workspace.git_dir, branch="unborn", alternates=workspace.alternates, refs=refs)
    plain_git("--git-dir", str(workspace.git_dir), "worktree", "add", "-q", str(workspace.tree), branch, cwd=root)
    shutil.copy2(workspace.git_dir / "worktrees" / "tree" / "index", workspace.saved_index)
    return Site(git=git, remote=remote, workspace=workspace)
