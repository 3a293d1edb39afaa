"""Makes the commit to push: the agent's history, and on top of it the uncommitted changes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import anyio

from delegate.runner.git.program import Git, GitFailed
from delegate.runner.publishing.history_policy import published_commits
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository
from delegate.runner.workspaces.snapshot import Snapshot

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

log = logging.getLogger(__name__)

SIGNING_TIMEOUT = 20.0  # seconds; a program that waits longer waits for a person
SIGNATURE = re.compile(rb"^gpgsig", re.M)
MESSAGE_MAX = 64 * 1024  # characters


async def commit_to_push(git: Git, workspace: Workspace, snapshot: Snapshot, message: str, at: datetime) -> str | None:
    """None when nothing has changed. The same work and time give the same commit."""
    base = workspace.base.commit
    parent = snapshot.head if snapshot.head is not None and snapshot.descends else base
    async with scratch_repository(git, workspace) as scratch:
        trees = (await scratch.git("rev-parse", f"{base}^{{tree}}", f"{parent}^{{tree}}")).decode().split()
        if snapshot.tree == trees[0]:
            return None
        if snapshot.tree == trees[1]:
            return parent
        return await _create_commit(scratch, snapshot.tree, [parent], message, at)


async def squash(git: Git, workspace: Workspace, commit: str, message: str, at: datetime) -> str:
    """The same files as one commit on top of the published commits."""
    async with scratch_repository(git, workspace) as scratch:
        base, *out = await anyio.to_thread.run_sync(published_commits, workspace)
        parents = [one for one in out if await scratch.is_ancestor(one, commit)]
        if not parents or not await scratch.is_ancestor(base, parents[0]):
            parents.append(base)  # the agent merged the base into the published branch
        return await _create_commit(scratch, f"{commit}^{{tree}}", parents, message, at)


async def _create_commit(
    scratch: ScratchRepository, tree: str, parents: Sequence[str], message: str, at: datetime
) -> str:
    text = normalize_message(message).encode(errors="replace")
    parent_options = [part for parent in parents for part in ("-p", parent)]
    arguments, author = ("commit-tree", tree, *parent_options), _author(scratch.program, at)
    signing = scratch.program.signing
    if signing is not None:
        try:
            with anyio.fail_after(SIGNING_TIMEOUT):
                made = await scratch.git(
                    *signing.options, *arguments, "-S", input=text, extra={**author, **signing.env}
                )
            return made.decode().strip()
        except (GitFailed, TimeoutError) as problem:
            log.warning("commit not signed", extra={"why": str(problem)})
    return (await scratch.git(*arguments, input=text, extra=author)).decode().strip()


async def find_signing_problem(git: Git, workspace: Workspace, commit: str) -> str | None:
    """A sentence if the user wants signed commits and this one is not."""
    if git.signing is None:
        return None
    async with scratch_repository(git, workspace) as scratch:
        header, _, _ = (await scratch.git("cat-file", "commit", commit)).partition(b"\n\n")
    if SIGNATURE.search(header):
        return None
    return "the commit is not signed, although commit.gpgSign is set: `delegate doctor` says why"


def normalize_message(text: str) -> str:
    """Removes NUL and shortens a long message; keeps the last paragraph (the trailers)."""
    text = text.replace("\0", "")
    if len(text) <= MESSAGE_MAX:
        return text
    body, separator, trailers = text.rstrip().rpartition("\n\n")
    trailers = trailers[:MESSAGE_MAX]
    return f"{body[: MESSAGE_MAX - len(trailers)]}…{separator}{trailers}\n"


def _author(git: Git, at: datetime) -> dict[str, str]:
    date = f"{int(at.timestamp())} +0000"
    return {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", git.user_name), ("EMAIL", git.user_email), ("DATE", date))
    }
