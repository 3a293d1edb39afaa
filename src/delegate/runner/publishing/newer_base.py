"""Finds what the agent took from the base branch after its start: that is not its work.

Agents pull, merge and rebase. The base branch is fetched directly before the work is compared with it, into a scratch
repository: an agent can write to the mirror, and commits that the base only seems to have would escape the policy.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from delegate.config.values import mask_login
from delegate.runner.git.bare import read_ref, write_new_file
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.history import read_made_commits
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository
from delegate.runner.workspaces.snapshot import Snapshot

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

log = logging.getLogger(__name__)

FETCH_TIMEOUT = timedelta(seconds=60)  # shorter than a lease; a push to a slower remote would fail too
FETCH = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--update-shallow")
START_REF, TIP_REF = "refs/start", "refs/tip"


async def compare_with_newest_base(git: Git, workspace: Workspace, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the newest commit of the base that the work contains."""
    start, head = workspace.base.commit, snapshot.head
    tracked, made = await anyio.to_thread.run_sync(_read_traces, workspace)
    if head is None or (not made and {head, tracked} <= {start, None}):
        return snapshot  # the agent has nothing that its start does not have
    async with scratch_repository(git, workspace) as scratch:
        tip = await fetch_tip(scratch, workspace, workspace.repository.url, workspace.base.branch)
        if tip is None or tip == start:
            return snapshot
        new = await list_commits(scratch, tip, start)
        snapshot = replace(snapshot, on_base=tuple(commit for commit in new if commit in made))
        merged = await _find_merged_base(scratch, start, head, tip)
        if merged is not None:
            snapshot = replace(snapshot, base=merged, descends=True, problem=None)
        if tracked not in {None, snapshot.base} and await scratch.is_ancestor(tracked or "", tip):
            return await _compare_contents(scratch, workspace, snapshot, tracked or "")
    return snapshot


def _read_traces(workspace: Workspace) -> tuple[str | None, frozenset[str]]:
    """The base as the agent last fetched it, and the commits that the agent made."""
    tracked = read_ref(workspace.git_dir, f"refs/remotes/origin/{workspace.base.branch}")
    return tracked, read_made_commits(workspace)


async def fetch_tip(scratch: ScratchRepository, workspace: Workspace, url: str, branch: str) -> str | None:
    """The commit of the branch at the remote, with its history; None when it cannot be fetched."""
    write_new_file(scratch.directory / START_REF, f"{workspace.base.commit}\n".encode())  # what need not be sent
    wanted = f"+refs/heads/{branch}:{TIP_REF}"
    try:
        await scratch.run_remote(*FETCH, "--", url, wanted, timeout=FETCH_TIMEOUT)
    except GitFailed as failed:
        extra = {"lineage": workspace.lineage, "branch": branch, "why": mask_login(failed.why)}
        log.warning("branch not fetched", extra=extra)
        return None
    return read_ref(scratch.directory, TIP_REF)


async def list_commits(scratch: ScratchRepository, tip: str, *without: str) -> list[str]:
    """The commits of a fetched branch that are not in the history of the others, newest first."""
    return (await scratch.git("rev-list", tip, *(f"^{commit}" for commit in without))).decode().split()


async def _find_merged_base(scratch: ScratchRepository, start: str, head: str, tip: str) -> str | None:
    """The newest commit that the agent's head and the base share, unless the start already had it."""
    try:
        fork = (await scratch.git("merge-base", head, tip)).decode().strip()
    except GitFailed:  # no commit in common, or a history that the remote has cut off
        return None
    return None if await scratch.is_ancestor(fork, start) is not False else fork


async def _compare_contents(
    scratch: ScratchRepository, workspace: Workspace, snapshot: Snapshot, tracked: str
) -> Snapshot:
    """After `git merge --squash`, the files have all changes of the base, and the history does not."""
    names = ("diff-tree", "-r", "-z", "--name-only", "--no-renames")
    of_others = (await scratch.git(*names, snapshot.base, tracked)).split(b"\0")
    own = (await scratch.git(*names, tracked, snapshot.tree)).split(b"\0")
    if not of_others[:-1] or not {*of_others[:-1]}.isdisjoint(own):
        return snapshot
    problem = f"the agent copied changes of {workspace.base.branch}; its work is one commit on top of them"
    return replace(snapshot, base=tracked, descends=False, problem=problem)
