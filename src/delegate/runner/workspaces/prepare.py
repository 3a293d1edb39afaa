"""Prepares the workspace of an attempt: new, or recreated at the same path with the work of earlier attempts."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os.path import realpath
from pathlib import Path
from typing import NoReturn

import anyio

from delegate.config.home_files import LOCK_POLL, make_directory
from delegate.config.paths import Home
from delegate.errors import DelegateError
from delegate.failpoints import failpoint
from delegate.model import EffectKind
from delegate.runner.assignment import Assignment
from delegate.runner.git.bare import COMMIT, is_directory
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.removal import clear, remove
from delegate.runner.workspaces.closing import (
    KEPT_ENTRIES,
    METADATA_ENTRIES,
    make_self_contained,
    remove_workspace,
    rescue,
    workspace_of,
)
from delegate.runner.workspaces.journal import WorkspaceJournal, WorkspaceState, read_journal, write_journal
from delegate.runner.workspaces.locks import DirectoryLock, lock_directory, wait_until_idle
from delegate.runner.workspaces.mirrors import Mirror, repair_mirror
from delegate.runner.workspaces.non_git_files import move_back
from delegate.runner.workspaces.repositories import Base, SetupProblem
from delegate.runner.workspaces.saving import (
    SavedWork,
    disable_conversion,
    last_saved,
    move_lfs_objects,
    read_saved,
    reset_kept_repository,
    write_stash_log,
)
from delegate.runner.workspaces.scratch import scratch_mirror, scratch_repository
from delegate.runner.workspaces.worktrees import Workspace, check_out, save_index, write_repository

log = logging.getLogger(__name__)

LINEAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
HOLDER_TIMEOUT = 0.5  # seconds; a process that only checks the lock releases it at once
TRIES = 20
IDLE_TIMEOUT = 60.0  # seconds; processes of a dead runner end within fifteen, except a large checkout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The commit that the branch starts at, and the saved work to restore on top."""

    commit: str
    refs: Mapping[str, str] = field(default_factory=dict)
    saved: SavedWork | None = None


class _MovedToSalvage(Exception):
    """The old workspace was moved to the salvage; the directory is free."""


async def prepare(git: Git, home: Home, assignment: Assignment, mirror: Mirror, base: Base, branch: str) -> Workspace:
    """The workspace of the attempt's lineage, locked until `close` or `release_workspace`.

    Work of an earlier attempt is saved first and restored in the new tree, including uncommitted changes.
    """
    preparation = _Preparation(git=git, home=home, assignment=assignment, mirror=mirror)
    root, lock = await _acquire_directory(home, assignment.lineage)
    workspace = Workspace(
        lineage=assignment.lineage,
        root=root,
        repository=mirror.repository,
        mirror=mirror.path,
        base=base,
        branch=branch,
        lock=lock,
    )
    try:
        return await preparation.run(workspace)
    except _MovedToSalvage:
        lock.release()
    except (GitFailed, OSError, DelegateError) as problem:
        lock.release()
        raise SetupProblem(f"the workspace could not be created: {problem}") from problem
    except BaseException:
        lock.release()
        raise
    return await prepare(git, home, assignment, mirror, base, branch)


async def _acquire_directory(home: Home, lineage: str) -> tuple[Path, DirectoryLock]:
    """The lineage's own directory, or the next one when another attempt of it holds that."""
    if not LINEAGE.fullmatch(lineage):
        raise SetupProblem("the task's lineage is not a valid directory name")
    make_directory(home.workspaces)
    parent = realpath(home.workspaces)  # noqa: ASYNC240  a thread would cost more
    for name in (lineage, *(f"{lineage}-{number}" for number in range(2, TRIES))):
        root = Path(parent) / name
        with anyio.move_on_after(HOLDER_TIMEOUT):
            while (lock := _try_acquire(home, root)) is None:  # noqa: ASYNC110  # no event to wait for
                await anyio.sleep(LOCK_POLL)
            return root, lock
    raise SetupProblem(f"too many attempts of {lineage} are running on this machine")


def _try_acquire(home: Home, root: Path) -> DirectoryLock | None:
    if root.is_symlink() or root.is_file():
        remove(root.parent, root.name)
    salvaged = home.salvage / root.name
    if not root.exists() and is_directory(salvaged):
        with suppress(OSError):  # another runner did this first, or created the directory
            salvaged.rename(root)
            failpoint("salvage.taken")
    return lock_directory(root)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preparation:
    git: Git
    home: Home
    assignment: Assignment
    mirror: Mirror

    async def run(self, workspace: Workspace) -> Workspace:
        """Creates the workspace, from an existing one if there is one."""
        found = read_journal(workspace.root)
        if found is not None and not await wait_until_idle(workspace.root, IDLE_TIMEOUT):
            raise SetupProblem(f"a process of an earlier attempt still runs in {workspace.root}: end it, then retry")
        tasks = tuple(dict.fromkeys((*(found.tasks if found else ()), self.assignment.task_id)))
        workspace, start = await self._find_start(workspace, found)
        making = WorkspaceJournal(
            lineage=workspace.lineage,
            state=WorkspaceState.MAKING,
            repository=workspace.repository,
            base=workspace.base,
            branch=workspace.branch,
            tasks=tasks,
            at=datetime.now(UTC),
        )
        try:
            await self._make(workspace, start, making)
        except GitFailed:
            if not await repair_mirror(self.git, self.home, workspace.repository):
                raise
            await self._make(workspace, start, making)
        await anyio.to_thread.run_sync(_mark_ready, workspace, making)
        return workspace

    async def _find_start(self, workspace: Workspace, found: WorkspaceJournal | None) -> tuple[Workspace, _Start]:
        before = await self._saved_before(workspace, found)
        if before is not None and found is not None:
            saved, workspace = before, replace(workspace, base=found.base)
            return workspace, _Start(commit=saved.parent, refs=saved.named_refs(workspace.branch), saved=saved)
        pushed = await self._pushed_before(workspace)
        if pushed is None:
            return workspace, _Start(commit=workspace.base.commit)
        fork = await self._run_in_mirror("merge-base", pushed, workspace.base.commit)
        return replace(workspace, base=replace(workspace.base, commit=fork)), _Start(commit=pushed)

    async def _saved_before(self, workspace: Workspace, found: WorkspaceJournal | None) -> SavedWork | None:
        """The work of earlier attempts of the lineage, saved from their tree."""
        if found is None and not is_directory(workspace.tree):
            return None
        old = workspace_of(self.home, workspace.root, found, workspace.lock) if found else workspace
        reset_kept_repository(old)
        if found is None or found.state is WorkspaceState.READY:
            await rescue(self.git, old)
            failpoint("workspace.rescued")
        elif found.state is WorkspaceState.REMOVING and not found.is_kept:
            await anyio.to_thread.run_sync(clear, workspace.root, METADATA_ENTRIES)
        commit = last_saved(workspace.kept_repository)
        if commit is None:
            return None
        if old.mirror != workspace.mirror or not await self._has_commit(old.base.commit):
            await self._move_to_salvage(old)
        async with scratch_repository(self.git, old) as scratch:
            return await read_saved(scratch, commit)

    async def _move_to_salvage(self, old: Workspace) -> NoReturn:
        """Keeps work under another name: its base is no longer on the remote, so it cannot continue here."""
        log.warning("base of saved work is gone", extra={"lineage": old.lineage, "commit": old.base.commit})
        contents = await make_self_contained(self.git, old)
        await remove_workspace(self.home, old, contents, name=f"{old.root.name}-{old.base.commit[:8]}")
        raise _MovedToSalvage

    async def _pushed_before(self, workspace: Workspace) -> str | None:
        """The branch on the remote, if it is at or after a commit that an attempt of this lineage pushed."""
        tip = self.mirror.pushed_heads.get(workspace.branch)
        if tip is None:
            return None
        for commit in _own_commits(self.assignment):
            if commit == tip or await self._is_ancestor(commit, tip):
                return tip
        return None

    async def _run_in_mirror(self, *arguments: str) -> str:
        with scratch_mirror(self.git, self.mirror.path) as scratch:
            return (await scratch.git(*arguments)).decode().strip()

    async def _is_ancestor(self, older: str, newer: str) -> bool:
        try:
            await self._run_in_mirror("merge-base", "--is-ancestor", older, newer)
        except GitFailed:
            return False
        return True

    async def _has_commit(self, commit: str) -> bool:
        try:
            await self._run_in_mirror("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def _make(self, workspace: Workspace, start: _Start, making: WorkspaceJournal) -> None:
        write_journal(workspace.root, making)
        failpoint("workspace.journalled")
        if is_directory(workspace.tree) or is_directory(workspace.git_dir):
            await anyio.to_thread.run_sync(clear, workspace.root, METADATA_ENTRIES | KEPT_ENTRIES)
        reset_kept_repository(workspace)
        refs = {f"refs/remotes/origin/{branch}": commit for branch, commit in self.mirror.heads.items()}
        write_repository(workspace, start.commit, {**refs, **start.refs})
        move_lfs_objects(workspace.kept_repository, workspace.git_dir)
        if start.saved is not None:
            await self._copy_saved_commits(workspace, start.saved)
        await check_out(self.git, workspace)
        if start.saved is not None:
            await self._restore_uncommitted(workspace, start.saved)

    async def _copy_saved_commits(self, workspace: Workspace, saved: SavedWork) -> None:
        """Copies commits that only the kept repository has into the agent's repository."""
        pack = workspace.git_dir / "objects" / "pack" / "pack"
        commits = "".join(f"{commit}\n" for commit in (saved.parent, *saved.refs.values()))
        wanted = f"{commits}^{workspace.base.commit}\n".encode()
        async with scratch_repository(self.git, workspace) as scratch:
            await scratch.git("pack-objects", "-q", "--revs", str(pack), input=wanted)
            await write_stash_log(scratch, workspace.git_dir, saved)

    async def _restore_uncommitted(self, workspace: Workspace, saved: SavedWork) -> None:
        """Restores uncommitted changes, byte for byte."""
        async with scratch_repository(self.git, workspace) as scratch:
            disable_conversion(scratch)
            shutil.copy2(workspace.index, scratch.index)
            await scratch.git("read-tree", "-m", "-u", saved.parent, saved.commit, tree=True)
        failpoint("workspace.put_back")


def _own_commits(assignment: Assignment) -> list[str]:
    """Commits that this lineage pushed, or was about to push."""
    effects = [effect for effect in assignment.effects if effect.kind is EffectKind.PUSH]
    named = [commit for effect in effects for commit in (effect.external_id, effect.expected)]
    checkpoint = assignment.checkpoint.commit if assignment.checkpoint else None
    return [commit for commit in dict.fromkeys((*named, checkpoint)) if commit and COMMIT.fullmatch(commit)]


def _mark_ready(workspace: Workspace, making: WorkspaceJournal) -> None:
    save_index(workspace)
    if workspace.root.name != workspace.lineage:
        _remember_path(workspace)
    write_journal(workspace.root, replace(making, state=WorkspaceState.READY))
    failpoint("workspace.ready")
    # From here on the tree holds work: files moved into it are saved again before it is removed.
    move_back(workspace.root, workspace.tree)


def _remember_path(workspace: Workspace) -> None:
    """An agent finds its session by its repository's worktrees; another attempt holds the one it started in."""
    entry = workspace.git_dir / "worktrees" / "first"
    entry.mkdir()
    first = workspace.root.with_name(workspace.lineage) / workspace.tree.name / ".git"
    (entry / "gitdir").write_text(f"{first}\n")
    (entry / "commondir").write_text("../..\n")
    (entry / "HEAD").write_text(f"{workspace.base.commit}\n")
    (entry / "locked").write_text("")
