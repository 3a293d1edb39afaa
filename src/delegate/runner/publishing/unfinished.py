"""Finds merges, rebases and the like that an agent left half done: they are never published."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from delegate.runner.checks import CheckResult
from delegate.runner.git.bare import read_small
from delegate.runner.git.program import Git
from delegate.runner.publishing.change import ChangedFile, Stats
from delegate.runner.workspaces.scratch import scratch_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

# What git keeps in the directory of the worktree until an operation is finished or aborted.
OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
MARKERS = (re.compile(rb"<{7} "), re.compile(rb"={7}\s*$"), re.compile(rb">{7} "))  # in this order
INDEX_MAX = 256 * 1024 * 1024  # bytes
NAMES_MAX = 5
COMMAND = "git status"
ADVICE = (
    "Finish what you began: resolve the conflicts, remove the conflict markers, and complete the operation "
    "(`git merge --continue`, `git rebase --continue`) or abort it (`--abort`). Then check that the work is complete."
)


async def find_unfinished(git: Git, workspace: Workspace, stats: Stats | None) -> CheckResult | None:
    """A failed check that says what is half done; None when nothing is."""
    problems = [f"a {what} is not finished" for what in _find_operations(workspace.index.parent)]
    conflicts = await _find_conflicts(git, workspace)
    if conflicts:
        problems.append(f"unresolved conflicts in {_join_names(conflicts)}")
    marked = await anyio.to_thread.run_sync(lambda: [file.path for file in _find_marked(stats)])
    if marked:
        problems.append(f"conflict markers in {_join_names(marked)}")
    if not problems:
        return None
    problem = "; ".join(problems)
    return CheckResult(
        command=COMMAND, ok=False, passed=None, total=None, seconds=0, tail=ADVICE, exit_code=1, problem=problem
    )


def _find_operations(directory: Path) -> list[str]:
    return sorted({what for name, what in OPERATIONS.items() if os.path.lexists(directory / name)})


async def _find_conflicts(git: Git, workspace: Workspace) -> list[str]:
    """The names in the agent's index that have several versions."""
    if _is_same_index(workspace.index, workspace.saved_index):
        return []
    content = await anyio.to_thread.run_sync(read_small, workspace.index, INDEX_MAX)
    if not content:
        return []
    async with scratch_repository(git, workspace) as scratch:
        scratch.index.write_bytes(content.encode(errors="surrogateescape"))
        listed = await scratch.git("ls-files", "-z", "--unmerged")
    names = (entry.partition(b"\t")[2].decode(errors="replace") for entry in listed.split(b"\0") if entry)
    return list(dict.fromkeys(names))


def _is_same_index(index: Path, saved: Path) -> bool:
    """Whether the agent's git commands have not written the index: that saves a process."""
    try:
        now, before = index.lstat(), saved.lstat()
    except OSError:
        return False
    return (now.st_mtime_ns, now.st_size) == (before.st_mtime_ns, before.st_size)


def _find_marked(stats: Stats | None) -> Iterator[ChangedFile]:
    for file in stats.changed if stats else ():
        if not file.is_binary and b"<<<<<<< " in file.added:
            lines = iter(file.added.split(b"\n"))
            if all(any(marker.match(line) for line in lines) for marker in MARKERS):
                yield file


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
