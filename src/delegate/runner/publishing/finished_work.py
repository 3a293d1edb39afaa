"""Notes that an agent has finished, so that an attempt after a crash publishes its work instead of repeating it.

The note is written to the kept repository, which lives as long as the work, before the checks run, and removed before
the agent continues. Its commit therefore holds all the work, whatever the checks left in the tree.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from delegate.config.home_files import write_private
from delegate.errors import DelegateError
from delegate.model import EffectKind, Usage
from delegate.runner.assignment import Assignment
from delegate.runner.git.bare import read_small
from delegate.runner.workspaces.saving import FINISHED_WORK
from delegate.runner.workspaces.worktrees import Workspace
from delegate.wire.basics import CommitId

log = logging.getLogger(__name__)

SIZE_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWork:
    task_id: str
    commit: CommitId  # to publish
    at: datetime  # of the commit; the same time gives the same commit
    head: CommitId | None = None  # the agent's own last commit; None: unknown
    summary: str = ""
    usage: Usage = Usage()


STORED_WORK = TypeAdapter(FinishedWork)


def save_note(workspace: Workspace, finished_work: FinishedWork) -> None:
    try:
        write_private(workspace.kept_repository / FINISHED_WORK, STORED_WORK.dump_json(finished_work).decode())
    except DelegateError as problem:  # the work is repeated only if the runner now crashes
        log.warning("finished work not noted", extra={"task_id": finished_work.task_id, "why": problem.message})


def forget(workspace: Workspace) -> None:
    """Removes the note before the agent continues."""
    (workspace.kept_repository / FINISHED_WORK).unlink(missing_ok=True)


def find_candidates(workspace: Workspace, assignment: Assignment, now: datetime) -> list[FinishedWork]:
    """Work that earlier attempts of the task may have finished, the most certain first."""
    noted = [_read(workspace.kept_repository)]
    if workspace.root.name != workspace.lineage:
        # Another, suspended attempt still holds the lineage's own directory; its work is not in this tree.
        first = _read(workspace.root.with_name(workspace.lineage) / workspace.kept_repository.name)
        noted.append(replace(first, head=None) if first else None)
    pushes = [effect for effect in assignment.effects if effect.kind is EffectKind.PUSH]
    # Only finished work that passed its checks is ever pushed.
    pushed = [FinishedWork(task_id=one.task_id, commit=one.expected, at=now) for one in pushes if one.expected]
    candidates = (*noted, *reversed(pushed))
    return [one for one in candidates if one is not None and one.task_id == assignment.task_id]


def _read(kept: Path) -> FinishedWork | None:
    text = read_small(kept / FINISHED_WORK, SIZE_MAX)
    try:
        return STORED_WORK.validate_json(text.encode(errors="surrogateescape")) if text else None
    except ValidationError:
        log.warning("note of finished work cannot be read", extra={"path": kept})
        return None
