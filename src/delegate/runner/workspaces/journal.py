"""Records what a workspace is and how far it got, so that a later runner can continue or remove it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from delegate.config.home_files import write_private
from delegate.runner.git.bare import read_small
from delegate.runner.workspaces.repositories import Base, Repository

FILE_NAME = "workspace.json"
SIZE_MAX = 1024 * 1024


class WorkspaceState(StrEnum):
    MAKING = "making"  # no agent has worked in this tree yet
    READY = "ready"  # the tree may hold work that is nowhere else
    REMOVING = "removing"  # work to keep has been moved out of the tree


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceJournal:
    lineage: str
    state: WorkspaceState
    repository: Repository
    base: Base
    branch: str
    tasks: tuple[str, ...]
    at: datetime  # the last change
    pushed: str | None = None  # the commit that the remote is known to have
    is_kept: bool = False  # set when removing: saved work moves to the salvage
    files: int = 0  # that differ from the base, in what is kept
    elsewhere: tuple[str, ...] = ()  # kept work that was not on the branch, for display


def write_journal(root: Path, journal: WorkspaceJournal) -> None:
    repository = journal.repository
    written = {
        "lineage": journal.lineage,
        "state": journal.state,
        "repository": {"url": repository.url, "name": repository.name, "key": repository.key, "fork": repository.fork},
        "source": str(repository.source) if repository.source else None,
        "base": {"branch": journal.base.branch, "commit": journal.base.commit},
        "branch": journal.branch,
        "tasks": journal.tasks,
        "at": journal.at.isoformat(),
        "pushed": journal.pushed,
        "isKept": journal.is_kept,
        "files": journal.files,
        "elsewhere": journal.elsewhere,
        "boot": _boot_id(),
    }
    text = json.dumps(written)
    if journal.state is WorkspaceState.REMOVING:
        write_private(root / FILE_NAME, text)
        return
    # Not flushed: that would take longer than everything else. After a power failure the journal is not trusted.
    scratch = root / f".{FILE_NAME}"
    scratch.write_text(text)
    scratch.replace(root / FILE_NAME)


def read_journal(root: Path) -> WorkspaceJournal | None:
    """None when it is missing or unreadable."""
    try:
        return _parse(json.loads(read_small(root / FILE_NAME, SIZE_MAX)))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # an agent can write there too
        return None


def _boot_id() -> str:
    """Identifies the current boot, where the system supports it."""
    return read_small(Path("/proc/sys/kernel/random/boot_id")).strip()


def _parse(found: Any) -> WorkspaceJournal:  # Any: unchecked JSON; each field is converted
    state = WorkspaceState(found["state"])
    if state is WorkspaceState.MAKING and found["boot"] != _boot_id():
        state = WorkspaceState.READY  # the later state may have been lost
    source = found["source"]
    repository = found["repository"]
    return WorkspaceJournal(
        lineage=str(found["lineage"]),
        state=state,
        repository=Repository(
            url=str(repository["url"]),
            name=str(repository["name"]),
            key=str(repository["key"]),
            source=Path(source) if source else None,
            fork=str(repository["fork"]) if repository.get("fork") else None,
        ),
        base=Base(branch=str(found["base"]["branch"]), commit=str(found["base"]["commit"])),
        branch=str(found["branch"]),
        tasks=tuple(str(task) for task in found["tasks"]),
        at=datetime.fromisoformat(found["at"]).astimezone(UTC),
        pushed=str(found["pushed"]) if found["pushed"] else None,
        is_kept=bool(found["isKept"]),
        files=int(found["files"]),
        elsewhere=tuple(str(one) for one in found.get("elsewhere", ())),
    )
