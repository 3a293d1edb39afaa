"""Closes a workspace: removes it if the remote has all its work, else keeps the work."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio

from delegate.config.home_files import make_directory
from delegate.config.paths import Home
from delegate.errors import DelegateError, excerpt
from delegate.failpoints import failpoint
from delegate.runner.git.bare import is_directory, write_new_file
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.removal import clear, remove
from delegate.runner.workspaces import journal, non_git_files
from delegate.runner.workspaces.classify import SkippedPath, SkipReason
from delegate.runner.workspaces.journal import WorkspaceJournal, WorkspaceState, read_journal, write_journal
from delegate.runner.workspaces.locks import LOCK_NAME, DirectoryLock
from delegate.runner.workspaces.mirrors import mirror_of
from delegate.runner.workspaces.other_trees import find_other_trees, is_ours
from delegate.runner.workspaces.saving import (
    UNREADABLE,
    collect_work,
    describe_other_work,
    find_other_work,
    last_saved,
    make_ref_directory,
    move_lfs_objects,
    read_saved,
    reset_kept_repository,
)
from delegate.runner.workspaces.scratch import scratch_repository
from delegate.runner.workspaces.snapshot import Snapshot, take_snapshot
from delegate.runner.workspaces.submodules import embed_submodules
from delegate.runner.workspaces.worktrees import Workspace

log = logging.getLogger(__name__)

BASE_REFS = "refs/delegate"
KEPT_ENTRIES = frozenset({"kept.git", non_git_files.DIRECTORY, UNREADABLE})
ELSEWHERE_MAX, NAME_MAX = 100, 250  # names in the journal, and characters of each
STAYING_MAX = 10  # paths in the journal
METADATA_ENTRIES = frozenset({journal.FILE_NAME, LOCK_NAME})


async def close(
    git: Git, home: Home, workspace: Workspace, *, pushed: str | None, work: Snapshot | None = None
) -> WorkspaceJournal | None:
    """Returns what is kept. Work that cannot be saved is not removed: a later sweep tries again.

    `work` is the tree as the agent left it; files that checks added later do not count as work.
    """
    try:
        return await _close(git, home, workspace, pushed, work)
    except (GitFailed, OSError, DelegateError) as problem:
        log.warning("workspace not removed", extra={"lineage": workspace.lineage, "why": str(problem)})
        # An agent may have removed all of it.
        return journal_of(workspace) if is_directory(workspace.root) else None
    finally:
        workspace.lock.release()


def record_pushed(workspace: Workspace, commit: str) -> None:
    """Records that the remote has the commit, in case this process ends before it closes the workspace."""
    write_journal(workspace.root, replace(journal_of(workspace), pushed=commit))


def journal_of(workspace: Workspace) -> WorkspaceJournal:
    """The journal on disk, or else the one that would be written."""
    return read_journal(workspace.root) or WorkspaceJournal(
        lineage=workspace.lineage,
        state=WorkspaceState.READY,
        repository=workspace.repository,
        base=workspace.base,
        branch=workspace.branch,
        tasks=(workspace.lineage,),
        at=datetime.now(UTC),
    )


def workspace_of(home: Home, root: Path, found: WorkspaceJournal, lock: DirectoryLock) -> Workspace:
    """The workspace that the journal describes."""
    return Workspace(
        lineage=found.lineage,
        root=root,
        repository=found.repository,
        mirror=mirror_of(home, found.repository.key),
        base=found.base,
        branch=found.branch,
        lock=lock,
    )


async def _close(
    git: Git, home: Home, workspace: Workspace, pushed: str | None, work: Snapshot | None
) -> WorkspaceJournal | None:
    if pushed is not None:
        record_pushed(workspace, pushed)
        if await _is_fully_pushed(git, workspace, pushed, work):
            await remove_workspace(home, workspace, None)
            return None
    left = await rescue(git, workspace)
    if left is None:
        await remove_workspace(home, workspace, None)
        return None
    contents = await make_self_contained(git, workspace)
    stay = (f"{excerpt(path)} (stays there)" for path in left[:STAYING_MAX])
    contents = replace(contents, elsewhere=(*stay, *contents.elsewhere))
    return await remove_workspace(home, workspace, contents)


async def _is_fully_pushed(git: Git, workspace: Workspace, pushed: str, work: Snapshot | None) -> bool:
    """Whether the pushed commit contains all the work."""
    if not is_directory(workspace.tree):
        return False
    await anyio.to_thread.run_sync(non_git_files.make_readable, workspace.tree)
    snapshot = work or await take_snapshot(git, workspace)
    is_all = await embed_submodules(git, workspace)
    if not is_all or any(must_keep(skipped) for skipped in snapshot.skipped):
        return False
    async with scratch_repository(git, workspace) as scratch:
        tree = (await scratch.git("rev-parse", "--verify", f"{pushed}^{{tree}}")).decode().strip()
        if tree != snapshot.tree or await find_other_work(scratch, workspace, snapshot.head, pushed):
            return False
        return not non_git_files.has_stored_files(workspace.root) and not await find_other_trees(scratch, workspace)


def must_keep(skipped: SkippedPath) -> bool:
    """Whether a path that no commit can hold must be kept; submodules are handled separately."""
    return not skipped.is_submodule and skipped.kind not in {SkipReason.SPECIAL, SkipReason.SHARED}


async def rescue(git: Git, workspace: Workspace) -> list[Path] | None:
    """Moves all work out of the tree. The agent must have ended.

    Returns worktrees elsewhere on the disk, which stay there; None when there is no work at all.
    """
    if is_directory(workspace.tree):
        await anyio.to_thread.run_sync(non_git_files.make_readable, workspace.tree)
        await embed_submodules(git, workspace)
    reset_kept_repository(workspace)
    async with scratch_repository(git, workspace) as scratch:
        trees = await find_other_trees(scratch, workspace)
    work = await collect_work(git, workspace, has_more=bool(trees) or has_remains(workspace.root))
    own = [path for path in trees if is_ours(git, workspace, path)]
    if work.skipped or own:
        await anyio.to_thread.run_sync(non_git_files.move_out_trees, workspace.root, workspace.tree, own)
        await anyio.to_thread.run_sync(non_git_files.move_out, workspace.root, workspace.tree, work.skipped)
        failpoint("workspace.put_aside")
    move_lfs_objects(workspace.git_dir, workspace.kept_repository)
    unreadable = workspace.root / UNREADABLE
    if not work.is_readable and is_directory(workspace.git_dir) and not unreadable.exists():
        workspace.git_dir.rename(unreadable)
    is_kept = work.saved is not None or has_remains(workspace.root)
    return [path for path in trees if path not in own] if is_kept else None


def has_remains(root: Path) -> bool:
    """Whether the workspace has files that no git tree can hold."""
    return non_git_files.has_stored_files(root) or (root / UNREADABLE).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptContents:
    files: int  # that differ from the base
    elsewhere: tuple[str, ...]  # what was not on the branch, for display


async def make_self_contained(git: Git, workspace: Workspace) -> KeptContents:
    """Makes the kept repository independent of the mirror: shallow, starting at the base."""
    kept = workspace.kept_repository
    await anyio.to_thread.run_sync(_make_shallow, workspace)
    commit = last_saved(kept)
    saved = commit or workspace.base.commit
    await git.run(f"--git-dir={kept}", "repack", "-q", "-n", "-a", "-d", "--no-write-bitmap-index", cwd=kept)
    differing = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", workspace.base.commit, saved)
    names = await git.run(f"--git-dir={kept}", *differing, cwd=kept)
    async with scratch_repository(git, workspace) as scratch:
        refs = (await read_saved(scratch, commit)).refs if commit else {}
    (kept / "objects" / "info" / "alternates").unlink()
    failpoint("workspace.contained")
    aside = [name.decode(errors="replace") for name in non_git_files.stored_names(workspace.root)]
    unreadable = [UNREADABLE] if (workspace.root / UNREADABLE).exists() else []
    elsewhere = [excerpt(name, NAME_MAX) for name in (*describe_other_work(refs), *aside, *unreadable)]
    more = len(elsewhere) - ELSEWHERE_MAX
    shown = [*elsewhere[:ELSEWHERE_MAX], f"{more} more"] if more > 0 else elsewhere
    return KeptContents(files=names.count(b"\0") + len(aside), elsewhere=tuple(shown))


def _make_shallow(workspace: Workspace) -> None:
    reset_kept_repository(workspace)
    commit = f"{workspace.base.commit}\n".encode()
    write_new_file(workspace.kept_repository / "shallow", commit)
    # The agent may have rewritten the history below its base.
    write_new_file(make_ref_directory(workspace.kept_repository, BASE_REFS) / "base", commit)


async def remove_workspace(
    home: Home, workspace: Workspace, kept: KeptContents | None, *, name: str = ""
) -> WorkspaceJournal:
    """Records the decision in the journal before acting on it, so that a sweep can finish the removal."""
    decided = replace(
        journal_of(workspace),
        state=WorkspaceState.REMOVING,
        at=datetime.now(UTC),
        is_kept=kept is not None,
        files=kept.files if kept else 0,
        elsewhere=kept.elsewhere if kept else (),
    )
    write_journal(workspace.root, decided)
    failpoint("workspace.decided")
    await anyio.to_thread.run_sync(finish_removal, home, workspace.root, decided.is_kept, name)
    return decided


def finish_removal(home: Home, root: Path, is_kept: bool, name: str = "") -> None:  # noqa: FBT001  # for threads
    """Removes the workspace; kept work moves to the salvage as a whole, under the workspace's name or another."""
    clear(root, METADATA_ENTRIES | KEPT_ENTRIES if is_kept else METADATA_ENTRIES)
    if not is_kept:
        remove(root.parent, root.name)
        return
    make_directory(home.salvage)
    target = next(path for path in _candidate_paths(home.salvage, name or root.name) if not path.exists())
    root.rename(target)
    failpoint("workspace.moved")
    remove(target, LOCK_NAME)


def _candidate_paths(directory: Path, name: str) -> Iterator[Path]:
    yield directory / name
    for number in itertools.count(2):
        yield directory / f"{name}-{number}"
