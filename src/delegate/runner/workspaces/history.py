"""Reads the agent's commits: finds them without git, and verifies every object while copying it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from delegate.runner.git.bare import COMMIT, read_ref, read_small
from delegate.runner.git.program import GitFailed
from delegate.runner.workspaces.scratch import ScratchRepository, format_alternates

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

COPY_TIMEOUT = timedelta(minutes=5)  # a pipe among the objects would block forever
BRANCH = re.compile(r"refs/heads/[^\s\\]+")
LOG_MAX = 16 * 1024 * 1024  # bytes of git's log of a worktree's head
# A line of that log for a commit that was made there; a checkout, a reset or a fast-forward only moves to one.
MADE = re.compile(
    r"^[0-9a-f]{40,64} ([0-9a-f]{40,64}) [^\t\n]*\t"
    r"(?:(?:commit|cherry-pick|revert|am|[^:\n]*\((?:pick|reword|edit|squash|fixup|continue)\))(?: \([a-z -]+\))?: "
    r"(?!fast-forward$)|[^\n]*: Merge made by )",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    head: str | None  # the agent's last commit, complete in the kept repository
    descends: bool  # the base is an ancestor of it
    problem: str | None = None  # why the agent's commits cannot be kept


async def read_agent_history(scratch: ScratchRepository, workspace: Workspace) -> History:
    base = workspace.base.commit
    head = await anyio.to_thread.run_sync(read_head, workspace.git_dir, workspace.tree.name)
    if head is None:
        return History(head=None, descends=False, problem="the branch of the agent's worktree cannot be read")
    if head == base:
        return History(head=head, descends=True)
    descends = await scratch.is_ancestor(base, head)
    if descends is None:
        problem = await copy_commits(scratch, workspace, [head])
        if problem is not None:
            return History(head=None, descends=False, problem=problem)
        descends = await scratch.is_ancestor(base, head)
    if descends is None:
        return History(head=None, descends=False, problem="the head of the agent's branch is not a commit")
    rewritten = None if descends else "the agent rewrote the history below its base"
    return History(head=head, descends=descends, problem=rewritten)


async def copy_commits(scratch: ScratchRepository, workspace: Workspace, commits: Sequence[str]) -> str | None:
    """Copies the agent's commits into the kept repository; returns a sentence when that fails.

    The objects are sent as a pack, so that git computes each id again and follows every link: nothing that the agent's
    repository claims about its objects is trusted.
    """
    also = _agent_objects(workspace)
    if also is None:
        return "the alternates of the agent's repository were changed"
    wanted = "".join(f"{commit}\n" for commit in (*commits, f"^{workspace.base.commit}")).encode()
    try:
        with anyio.fail_after(COPY_TIMEOUT.total_seconds()):
            pack = await scratch.git("pack-objects", "--revs", "--thin", "--stdout", "-q", input=wanted, extra=also)
            await scratch.git("index-pack", "--stdin", "--fix-thin", "--strict", input=pack)
    except GitFailed as failed:
        return f"the agent's commits are damaged ({failed.why})"
    except TimeoutError:
        return "the agent's commits could not be read in time"
    return None


def read_made_commits(workspace: Workspace) -> frozenset[str]:
    """The commits that were made in the agent's worktree, by git's own log.

    An agent can forge the log, but gains no more than the replacement of commits on its task's own branch.
    """
    log = workspace.git_dir / "worktrees" / workspace.tree.name / "logs" / "HEAD"
    return frozenset(MADE.findall(read_small(log, LOG_MAX)))


async def find_unreachable(
    scratch: ScratchRepository, workspace: Workspace, commits: Collection[str], known: Iterable[str]
) -> set[str]:
    """The commits that none of the known ones contains; all of them when the agent's repository cannot be read."""
    also = _agent_objects(workspace)
    asked = "".join(f"{commit}\n" for commit in (*commits, *(f"^{commit}" for commit in known))).encode()
    if also is None:
        return set(commits)
    try:
        with anyio.fail_after(COPY_TIMEOUT.total_seconds()):
            listed = await scratch.git("rev-list", "--stdin", input=asked, extra=also)
    except (GitFailed, TimeoutError):
        return set(commits)
    return set(commits).intersection(listed.decode().split())


def _agent_objects(workspace: Workspace) -> dict[str, str] | None:
    """Lets git read the agent's objects too; None when the agent's repository borrows objects from elsewhere."""
    objects = workspace.git_dir / "objects"
    if read_small(objects / "info" / "alternates").encode(errors="surrogateescape") != workspace.alternates:
        return None
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(workspace.mirror / "objects", objects)}


def read_head(git_dir: Path, worktree: str) -> str | None:
    """The commit that is checked out in the agent's worktree."""
    text = read_small(git_dir / "worktrees" / worktree / "HEAD").strip()
    if COMMIT.fullmatch(text):
        return text
    return read_branch(git_dir, text.removeprefix("ref: ")) if text.startswith("ref: ") else None


def read_branch(git_dir: Path, name: str) -> str | None:
    if not BRANCH.fullmatch(name) or {"", ".", ".."} & set(name.split("/")):
        return None
    return read_ref(git_dir, name)
