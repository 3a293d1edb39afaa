"""The steps of an attempt in a workspace, taken in this process as the runner takes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from bench.origins import Origin
from delegate.config.paths import Home
from delegate.preferences.repofile import RepoFile
from delegate.runner.assignment import Assignment, assignment_of
from delegate.runner.git.program import Git, read_git
from delegate.runner.publishing.change import change_of
from delegate.runner.publishing.commits import commit_to_push
from delegate.runner.publishing.policy import PublishRules, judge
from delegate.runner.publishing.push import push
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.mirrors import Mirror, base_of, fetch_mirror
from delegate.runner.workspaces.prepare import prepare
from delegate.runner.workspaces.repositories import locate
from delegate.runner.workspaces.snapshot import take_snapshot
from delegate.runner.workspaces.worktrees import Workspace
from delegate.wire.runners import AssignmentView


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    git: Git
    home: Home
    origin: Origin

    async def mirrored(self) -> Mirror:
        return await fetch_mirror(self.git, self.home, await locate(self.git, None, str(self.origin.clone)))

    async def prepared(self, number: int) -> Workspace:
        """What stands between the claim and the agent."""
        name = f"task-{number:04}"
        mirror = await self.mirrored()
        base = await base_of(self.git, mirror, None)
        assignment = bench_assignment(name, self.origin)
        return await prepare(self.git, self.home, assignment, mirror, base, f"delegate/{name}")

    async def published(self, workspace: Workspace) -> str:
        """What stands between the agent and the branch; the commit that was pushed."""
        snapshot = await take_snapshot(self.git, workspace)
        commit = await commit_to_push(self.git, workspace, snapshot, "Work\n", datetime.now(UTC))
        assert commit is not None
        _, stats = await change_of(self.git, workspace, commit)
        assert not judge(stats, PublishRules(protected=RepoFile().protected, skipped=snapshot.skipped)).denied
        return (await push(self.git, workspace, commit, known=frozenset(), guard=nothing)).commit

    async def closed(self, workspace: Workspace, pushed: str | None) -> None:
        assert not await close(self.git, self.home, workspace, pushed=pushed)
        if pushed is not None:
            self.origin.drop_branch(workspace.branch)


async def bench_of(origin: Origin) -> Bench:
    git = await read_git(origin.environment, origin.place / "runner")
    return Bench(git=git, home=Home(origin.place / "home"), origin=origin)


def bench_assignment(task_id: str, origin: Origin) -> Assignment:
    view = AssignmentView.model_validate(
        {
            "attempt_id": f"att-{task_id}",
            "task_id": task_id,
            "lineage": task_id,
            "fence": 1,
            "number": 1,
            "agent": "shell",
            "prompt": "true",
            "timeout_ms": 60_000,
            "max_output": 1_000_000,
            "working_directory": str(origin.clone),
        }
    )
    return assignment_of(view)


async def nothing() -> None:
    """A guard with nothing to guard against."""
