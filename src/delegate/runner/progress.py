"""How far the work of an attempt has come, and what is told of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from delegate.model import Checkpoint, Result, Usage
from delegate.runner.checks import Checks
from delegate.runner.conversation import Conversation
from delegate.runner.publication import Draft, unpublished
from delegate.runner.workspaces.worktrees import Workspace

DIRTY_MAX = 200  # names of changed files that a checkpoint tells


@dataclass(slots=True, kw_only=True)
class Progress:
    is_work_done: bool = False  # the agent has ended well, and nobody has found fault with its work
    draft: Draft | None = None
    checks: Checks | None = None
    is_pushed: bool = False
    pull_request: str | None = None
    spent_before: Usage = field(default_factory=Usage)  # on the same work, by an attempt that was lost


def result_of(progress: Progress, workspace: Workspace, summary: str, *, is_kept: bool) -> Result:
    draft, checks = progress.draft, progress.checks
    result = Result(
        summary=summary,
        base=workspace.base.branch,
        base_commit=workspace.base.commit,
        pull_request=progress.pull_request,
        checks_passed=checks.passed if checks else 0,
        checks_total=checks.total if checks else 0,
        is_kept=is_kept,
    )
    if draft is None:
        return result
    return replace(
        result,
        branch=workspace.branch,
        commit=draft.commit,
        files=draft.stats.files,
        additions=draft.stats.additions,
        deletions=draft.stats.deletions,
    )


def checkpoint_of(
    progress: Progress, workspace: Workspace, conversation: Conversation, *, tail: tuple[str, ...], error: str | None
) -> Checkpoint:
    draft = progress.draft
    return Checkpoint(
        session_id=conversation.session,
        branch=workspace.branch,
        base_commit=workspace.base.commit,
        commit=draft.commit if draft else None,
        dirty_files=_dirty(draft, is_pushed=progress.is_pushed) if draft else None,
        output_tail=tail,
        error=error,
        summary=conversation.summary,
        is_work_done=progress.is_work_done,
        usage=conversation.session_spent,
    )


def _dirty(draft: Draft, *, is_pushed: bool) -> tuple[str, ...]:
    """Whoever continues finds what was pushed committed; else the tree is as the agent left it."""
    snapshot = draft.snapshot
    return tuple(odd.path for odd in unpublished(snapshot))[:DIRTY_MAX] if is_pushed else snapshot.dirty[:DIRTY_MAX]
