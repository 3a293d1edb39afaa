"""Cleans up after killed runners: at a runner's start, and after each attempt."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from delegate.config.home_files import acquire_lock
from delegate.config.paths import Home
from delegate.errors import DelegateError
from delegate.runner.git.bare import is_directory
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.removal import is_rest, remove
from delegate.runner.workspaces.closing import (
    KEPT_ENTRIES,
    close,
    finish_removal,
    has_remains,
    make_self_contained,
    remove_workspace,
    workspace_of,
)
from delegate.runner.workspaces.journal import WorkspaceState, read_journal
from delegate.runner.workspaces.kept import directory_size, discard, list_kept, remove_left_scratch
from delegate.runner.workspaces.locks import DirectoryLock, is_busy, lock_directory
from delegate.runner.workspaces.mirrors import is_mirror, lock_of, mirror_of, tidy
from delegate.runner.workspaces.saving import last_saved
from delegate.runner.workspaces.worktrees import Workspace

log = logging.getLogger(__name__)

KEEP_MIN = timedelta(days=1)  # however full the disk is, a person has this long to restore their work


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageLimits:
    """Limits of kept work."""

    age: timedelta
    size: int  # bytes


async def sweep(git: Git, home: Home, is_live: Callable[[str], bool], *, limits: SalvageLimits, now: datetime) -> None:
    """Finishes interrupted operations, and closes the workspaces of lineages that have ended.

    `now` decides what kept work is too old: a time that an hour of uptime has confirmed.
    """
    for root in await anyio.to_thread.run_sync(_list_workspaces, home):
        with _log_and_continue(root):
            await _sweep_one(git, home, root, is_live)
    await anyio.to_thread.run_sync(_apply_limits, home, limits, now)
    with _log_and_continue(home.root):
        await anyio.to_thread.run_sync(remove_left_scratch, home)
    await anyio.to_thread.run_sync(_remove_partial_mirrors, home)
    await anyio.to_thread.run_sync(_remove_unused_mirrors, home, limits, now)
    await tidy(git, home)


@contextmanager
def _log_and_continue(path: Path) -> Iterator[None]:
    """An entry that fails must not stop the others or the runner."""
    try:
        yield
    except (GitFailed, OSError, DelegateError) as problem:
        log.warning("entry not swept", extra={"path": str(path), "why": str(problem)})


def _list_workspaces(home: Home) -> list[Path]:
    """Lists directories; removes links and files, which Delegate never creates here."""
    if not home.workspaces.is_dir():
        return []
    found = []
    for path in sorted(home.workspaces.resolve().iterdir()):
        if is_directory(path):
            found.append(path)
        else:
            with _log_and_continue(path):
                remove(path.parent, path.name)
    return found


async def _sweep_one(git: Git, home: Home, root: Path, is_live: Callable[[str], bool]) -> None:
    if is_rest(root):
        await anyio.to_thread.run_sync(remove, root.parent, root.name)
        return
    lock = lock_directory(root)
    if lock is None:
        return  # in use
    found = read_journal(root)
    is_ready = found is not None and found.state is WorkspaceState.READY
    if found is not None and is_ready and not is_live(found.lineage) and not await _is_busy(root):
        await close(git, home, workspace_of(home, root, found, lock), pushed=found.pushed)
        return
    try:
        if not is_ready and not await _is_busy(root):
            await _finish_interrupted(git, home, root, lock, is_live)
    finally:
        lock.release()


async def _is_busy(root: Path) -> bool:
    return await anyio.to_thread.run_sync(is_busy, root)


async def _finish_interrupted(
    git: Git, home: Home, root: Path, lock: DirectoryLock, is_live: Callable[[str], bool]
) -> None:
    """Finishes an interrupted creation or removal."""
    found = read_journal(root)
    if found is None:
        await anyio.to_thread.run_sync(_remove_if_empty, root)
    elif found.state is WorkspaceState.REMOVING:
        await anyio.to_thread.run_sync(finish_removal, home, root, found.is_kept)
    else:
        await _undo_creation(git, home, workspace_of(home, root, found, lock), is_live)


def _remove_if_empty(root: Path) -> None:
    """The journal is written first; a tree without a journal is left for a person to inspect."""
    if any(os.path.lexists(root / name) for name in ("tree", *KEPT_ENTRIES)):
        log.warning("workspace without a journal", extra={"workspace": str(root)})
    else:
        remove(root.parent, root.name)


async def _undo_creation(git: Git, home: Home, workspace: Workspace, is_live: Callable[[str], bool]) -> None:
    """No agent has worked in the tree; work of earlier attempts is kept for the next one or for a person."""
    is_kept = last_saved(workspace.kept_repository) is not None or has_remains(workspace.root)
    if is_kept and is_live(workspace.lineage):
        return
    contents = await make_self_contained(git, workspace) if is_kept else None
    await remove_workspace(home, workspace, contents)


def _apply_limits(home: Home, limits: SalvageLimits, now: datetime) -> None:
    kept = sorted(list_kept(home), key=lambda one: one.at)
    total = sum(one.size for one in kept)
    for one in kept:
        is_in_the_way = total > limits.size and one.at < now - KEEP_MIN
        if is_in_the_way or one.at < now - limits.age:
            with _log_and_continue(home.salvage / one.lineage):
                discard(home, one)
                total -= one.size
                what = {"lineage": one.lineage, "bytes": one.size, "at": one.at.isoformat()}
                log.warning("kept work dropped", extra=what)


def _remove_unused_mirrors(home: Home, limits: SalvageLimits, now: datetime) -> None:
    """Mirrors are caches: those that no workspace borrows from have the limits of kept work, except the newest."""
    mirrors = sorted(filter(is_mirror, home.mirrors.glob("*.git")), key=_last_use)
    idle = [path for path in mirrors[:-1] if _last_use(path) < now - KEEP_MIN]
    journals = [read_journal(root) for root in _list_workspaces(home) if idle and not is_rest(root)]
    if not idle or None in journals:  # an unreadable workspace may borrow from any of them
        return
    borrowed = {mirror_of(home, journal.repository.key) for journal in journals if journal is not None}
    sizes = {path: directory_size(path) for path in mirrors}
    for path in idle:
        with _log_and_continue(path), _lock_if_free(path) as is_locked:
            is_in_the_way = sum(sizes.values()) > limits.size and _last_use(path) < now - KEEP_MIN
            # Its time is read under the lock: an attempt may have fetched it since, to borrow from it.
            if is_locked and path not in borrowed and (is_in_the_way or _last_use(path) < now - limits.age):
                remove(path.parent, path.name)
                log.info("unused mirror removed", extra={"mirror": path.name, "bytes": sizes.pop(path)})


def _last_use(mirror: Path) -> datetime:
    """When it was last fetched; the oldest time if it is gone."""
    try:
        return datetime.fromtimestamp(mirror.lstat().st_mtime, UTC)
    except FileNotFoundError:
        return datetime.min.replace(tzinfo=UTC)


@contextmanager
def _lock_if_free(mirror: Path) -> Iterator[bool]:
    lock = acquire_lock(lock_of(mirror), 0)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _remove_partial_mirrors(home: Home) -> None:
    for path in home.mirrors.glob(".*.*"):
        key = path.name[1:].rpartition(".")[0]
        with _log_and_continue(path), _lock_if_free(mirror_of(home, key)) as is_locked:
            if is_locked:  # else it is being created
                remove(path.parent, path.name)
