"""Pushes a commit to its branch: never overwrites the commits of others, and is safe to retry."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

import anyio

from delegate.errors import excerpt
from delegate.failpoints import failpoint
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.publishing.newer_base import fetch_tip, list_commits
from delegate.runner.workspaces.history import read_made_commits
from delegate.runner.workspaces.scratch import ScratchRepository, bare_repository, scratch_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

PUSH_TIMEOUT = timedelta(seconds=90)  # shorter than a lease: a push that starts in time ends in time
TRIES = 3
REASON_MAX = 300
PUSH = ("push", "--porcelain", "--no-verify", "--recurse-submodules=no")
LOGIN_IN_URL = re.compile(r"://[^/@\s]+@")
REFUSED = re.compile(rb"^!\t\S*\t\[([a-z ]+)\](?: \((.*)\))?$", re.M)
# Another push came first: between our check and our push, or while the remote processed it.
RACES = ("stale info", "fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref", "incorrect old")
ADVICE = (
    ("could not read username", "it asks for a password: sign in with `gh auth login` or a git credential helper"),
    ("could not read password", "it asks for a password: sign in with `gh auth login` or a git credential helper"),
    ("authentication failed", "it refused the login: sign in again with `gh auth login` or a git credential helper"),
    ("permission denied", "this user may not push there"),
    ("error: 403", "this user may not push there"),
    ("repository not found", "the repository does not exist, or this user may not see it"),
)


class PushRejected(Exception):
    """The branch could not be pushed; the text says why. `may_exist`: the last check failed too."""

    def __init__(self, sentence: str, *, may_exist: bool = False) -> None:
        self.may_exist = may_exist
        super().__init__(sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    commit: str
    replaced: str | None = None  # the commit that the agent had pushed to the branch itself


class PushDecision(Enum):
    DONE = "the remote has the commit"
    PUSH = "the commit may be pushed"
    REFUSE = "the remote has commits of others"


def decide(remote: str | None, ours: str, *, is_ancestor: bool, known: frozenset[str]) -> PushDecision:
    """`remote`: the branch's commit there. `is_ancestor`: of ours. `known`: from earlier attempts of the lineage."""
    if remote == ours:
        return PushDecision.DONE
    if remote is None or is_ancestor or remote in known:
        return PushDecision.PUSH
    return PushDecision.REFUSE


async def push(
    git: Git, workspace: Workspace, commit: str, *, known: frozenset[str], guard: Callable[[], Awaitable[None]]
) -> PushResult:
    """`guard` is called directly before each push, and raises when this attempt may no longer act."""
    async with scratch_repository(git, workspace) as scratch:
        remote = _RemoteBranch(scratch=scratch, url=workspace.repository.push_url, branch=workspace.branch)
        # Without earlier pushes, the push itself shows whether the branch is free.
        remote_commit = await remote.read_commit() if known else None
        own = None
        for _ in range(TRIES):
            is_ancestor = remote_commit is not None and await scratch.is_ancestor(remote_commit, commit) is True
            decision = decide(remote_commit, commit, is_ancestor=is_ancestor, known=known)
            if decision is PushDecision.REFUSE and await remote.has_only_own_commits(workspace, remote_commit, commit):
                own, decision = remote_commit, PushDecision.PUSH
            match decision:
                case PushDecision.DONE:
                    return PushResult(commit=commit, replaced=own)
                case PushDecision.REFUSE:
                    raise PushRejected(
                        f"branch {workspace.branch} at the remote has commits that are not from this task; "
                        "nothing was overwritten: rename or delete that branch, then retry"
                    )
                case PushDecision.PUSH:
                    await guard()
                    failpoint("runner.push.guarded")
                    if await remote.swap(remote_commit, commit):
                        return PushResult(commit=commit, replaced=own)
            remote_commit = await remote.read_commit(after_push=True)
        if remote_commit == commit:
            return PushResult(commit=commit, replaced=own)
    raise PushRejected(
        f"branch {workspace.branch} could not be pushed in {TRIES} tries: the remote closed the connection each time"
    )


async def delete_branch_if_unchanged(git: Git, url: str, branch: str, commit: str) -> bool:
    """Deletes a pushed branch unless it has changed since; True when it is gone."""
    with bare_repository(git, commit) as directory:
        scratch = ScratchRepository(program=git, directory=directory, tree=directory, env={"GIT_DIR": str(directory)})
        remote = _RemoteBranch(scratch=scratch, url=url, branch=branch)
        if await remote.swap(commit, ""):
            return True
        remote_commit = await remote.read_commit()
    if remote_commit == commit:
        raise PushRejected(f"branch {branch} could not be deleted at the remote")
    return remote_commit is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RemoteBranch:
    scratch: ScratchRepository
    url: str
    branch: str

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"

    async def read_commit(self, *, after_push: bool = False) -> str | None:
        """The branch's commit at the remote."""
        try:
            answer = await self.scratch.run_remote("ls-remote", "--", self.url, self.ref, timeout=PUSH_TIMEOUT)
        except GitFailed as failed:
            sentence = f"branch {self.branch} could not be read at the remote: {_failure_reason(failed)}"
            raise PushRejected(sentence, may_exist=after_push) from failed
        lines = (line.split("\t") for line in answer.decode(errors="replace").splitlines())
        return next((commit for commit, name in lines if name == self.ref), None)

    async def has_only_own_commits(self, workspace: Workspace, remote_commit: str | None, ours: str) -> bool:
        """Whether the agent made every commit that the branch would lose."""
        made = await anyio.to_thread.run_sync(read_made_commits, workspace)
        if remote_commit not in made:
            return False
        tip = await fetch_tip(self.scratch, workspace, self.url, self.branch)
        if tip is None or tip != remote_commit:
            return False
        return made.issuperset(await list_commits(self.scratch, tip, ours, workspace.base.commit))

    async def swap(self, old: str | None, new: str) -> bool:
        """Compare and swap. False: it failed, or the outcome is unknown."""
        lease = f"--force-with-lease={self.ref}:{old or ''}"
        try:
            await self.scratch.run_remote(*PUSH, lease, "--", self.url, f"{new}:{self.ref}", timeout=PUSH_TIMEOUT)
        except GitFailed as failed:
            refusal = _refusal(failed)
            if refusal is not None:
                raise PushRejected(f"the remote refused branch {self.branch}: {refusal}") from failed
            return False
        return True


def _refusal(failed: GitFailed) -> str | None:
    """The remote's reason for rejecting the push; None when a retry may succeed."""
    if failed.done is None:
        return None
    found = REFUSED.search(failed.done.stdout)
    if found is None:
        return _advice(failed)
    reason = (found.group(2) or found.group(1)).decode(errors="replace")
    if any(race in reason for race in RACES):
        return None
    lines = [line[len("remote:") :] for line in _stderr_text(failed).splitlines() if line.startswith("remote:")]
    details = "; ".join(line.strip() for line in lines if line.strip())
    return excerpt(f"{reason} ({details})" if details else reason, REASON_MAX)


def _failure_reason(failed: GitFailed) -> str:
    fatal = next((line for line in _stderr_text(failed).splitlines() if line.startswith("fatal: ")), failed.why)
    return _advice(failed) or excerpt(LOGIN_IN_URL.sub("://", fatal.removeprefix("fatal: ")), REASON_MAX)


def _advice(failed: GitFailed) -> str | None:
    text = _stderr_text(failed).lower()
    return next((advice for needle, advice in ADVICE if needle in text), None)


def _stderr_text(failed: GitFailed) -> str:
    return failed.done.stderr.decode(errors="replace") if failed.done else ""
