"""Notes that an agent has finished, so that an attempt after a crash publishes its work instead of repeating it.

The note is written to the kept repository, which lives as long as the work, before the checks run, and removed before
the agent continues. Its commit therefore holds all the work, whatever the checks left in the tree.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from delegate.config.home_files import write_private
from delegate.errors import DelegateError
from delegate.model import EffectKind
from delegate.runner.git.bare import read_small
from delegate.runner.workspaces.saving import HANDED_IN
from delegate.runner.workspaces.worktrees import Workspace
from delegate.wire.basics import CommitId, Wire
from delegate.wire.parts import UsageView
from delegate.wire.runners import Assignment

log = logging.getLogger(__name__)

SIZE_MAX = 1024 * 1024


class HandedInWork(Wire):
    task_id: str
    commit: CommitId  # to publish
    at: datetime  # of the commit; the same time gives the same commit
    head: CommitId | None = None  # the agent's own last commit; None: unknown
    summary: str = ""
    usage: UsageView = UsageView()


def save_note(workspace: Workspace, handed_in: HandedInWork) -> None:
    try:
        write_private(workspace.kept_repository / HANDED_IN, handed_in.model_dump_json(by_alias=True))
    except DelegateError as problem:  # the work is repeated only if the runner now crashes
        log.warning("finished work not noted", extra={"task_id": handed_in.task_id, "why": problem.message})


def forget(workspace: Workspace) -> None:
    """Removes the note before the agent continues."""
    (workspace.kept_repository / HANDED_IN).unlink(missing_ok=True)


def find_candidates(workspace: Workspace, assignment: Assignment, now: datetime) -> list[HandedInWork]:
    """Work that earlier attempts of the task may have finished, the most certain first."""
    noted = [_read(workspace.kept_repository)]
    if workspace.root.name != workspace.lineage:
        # Another, suspended attempt still holds the lineage's own directory; its work is not in this tree.
        first = _read(workspace.root.with_name(workspace.lineage) / workspace.kept_repository.name)
        noted.append(first.model_copy(update={"head": None}) if first else None)
    pushes = [effect for effect in assignment.effects if effect.kind is EffectKind.PUSH]
    # Only finished work that passed its checks is ever pushed.
    pushed = [HandedInWork(task_id=one.task_id, commit=one.expected, at=now) for one in pushes if one.expected]
    candidates = (*noted, *reversed(pushed))
    return [one for one in candidates if one is not None and one.task_id == assignment.task_id]


def _read(kept: Path) -> HandedInWork | None:
    text = read_small(kept / HANDED_IN, SIZE_MAX)
    try:
        return HandedInWork.model_validate_json(text.encode(errors="surrogateescape")) if text else None
    except ValidationError:
        log.warning("note of finished work cannot be read", extra={"path": kept})
        return None
