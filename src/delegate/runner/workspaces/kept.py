"""Lists, restores and drops unpushed work that is kept for a person."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from delegate.config.home_files import make_directory
from delegate.config.paths import Home
from delegate.errors import InvalidField, NoSuchWorkspace
from delegate.runner.git.bare import is_directory, remote_config, write_bare
from delegate.runner.git.program import Git
from delegate.runner.removal import remove, rest_path
from delegate.runner.workspaces.copying import copy_path, copy_tree
from delegate.runner.workspaces.journal import WorkspaceJournal, read_journal
from delegate.runner.workspaces.locks import lock_directory
from delegate.runner.workspaces.non_git_files import copy_back
from delegate.runner.workspaces.saving import (
    LFS,
    SavedWork,
    disable_conversion,
    last_saved,
    read_saved,
    write_stash_log,
)
from delegate.runner.workspaces.scratch import ScratchRepository, bare_repository

log = logging.getLogger(__name__)

RESTORE_PREFIX = "restore-"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWork:
    lineage: str  # its name for restoring and dropping
    task_ids: tuple[str, ...]
    repository: str
    branch: str
    size: int  # bytes on disk
    at: datetime
    files: int  # number that differ from the base
    elsewhere: tuple[str, ...] = ()  # what was not on the branch


def list_kept(home: Home) -> list[KeptWork]:
    """The newest first."""
    if not home.salvage.is_dir():
        return []
    found = [(path, read_journal(path)) for path in home.salvage.iterdir() if is_directory(path)]
    kept = [_describe_kept(path, journal) for path, journal in found if journal is not None]
    return sorted(kept, key=lambda one: one.at, reverse=True)


def _describe_kept(path: Path, journal: WorkspaceJournal) -> KeptWork:
    return KeptWork(
        lineage=path.name,
        task_ids=journal.tasks,
        repository=journal.repository.name,
        branch=journal.branch,
        size=directory_size(path),
        at=journal.at,
        files=journal.files,
        elsewhere=journal.elsewhere,
    )


def directory_size(directory: Path) -> int:
    """The size as far as it is readable; the directory may be removed meanwhile."""
    total = 0
    pending = [os.fspath(directory)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return total


def find_kept(home: Home, name: str) -> KeptWork:
    """The work kept under that name, or for the task with that id."""
    kept = list_kept(home)
    found = [one for one in kept if one.lineage == name] or [one for one in kept if name in one.task_ids]
    if not found:
        raise NoSuchWorkspace(name=name)
    return found[0]


def drop(home: Home, lineage: str) -> None:
    """Deletes the work kept under that name."""
    discard(home, find_kept(home, lineage))


def discard(home: Home, kept: KeptWork) -> None:
    """Deletes kept work atomically, with a rename; a sweep removes what could not be deleted."""
    make_directory(home.workspaces)
    rest = rest_path(home.workspaces.resolve() / kept.lineage)
    with suppress(FileNotFoundError):  # another process dropped it or continued from it
        (home.salvage / kept.lineage).rename(rest)
    try:
        remove(rest.parent, rest.name)
    except OSError as problem:
        log.warning("kept work not removed", extra={"path": str(rest), "why": str(problem)})


@contextmanager
def make_restore_scratch(home: Home) -> Iterator[Path]:
    """A directory for temporary repositories, locked: a sweep removes it when a killed command has left it."""
    with TemporaryDirectory(prefix=RESTORE_PREFIX, dir=home.root, ignore_cleanup_errors=True) as name:
        lock = lock_directory(Path(name))
        try:
            yield Path(name)
        finally:
            if lock is not None:
                lock.release()


def remove_left_scratch(home: Home) -> None:
    for path in filter(is_directory, home.root.glob(f"{RESTORE_PREFIX}*")):
        lock = lock_directory(path)
        if lock is None:
            continue  # in use
        try:
            remove(path.parent, path.name)
        finally:
            lock.release()


async def restore(git: Git, home: Home, lineage: str, directory: Path) -> KeptWork:
    """Creates a repository with the kept work in the directory, which must be empty or missing.

    The branch is at the agent's last commit, uncommitted changes are in the tree, the history starts at the base.
    """
    kept = await anyio.to_thread.run_sync(find_kept, home, lineage)
    target = await anyio.to_thread.run_sync(_prepare_target, directory)
    try:
        await _restore_into(git, home.salvage / kept.lineage, target)
    except BaseException:
        await anyio.to_thread.run_sync(remove, target.parent, target.name)
        raise
    return kept


def _prepare_target(directory: Path) -> Path:
    target = Path(os.path.abspath(directory))
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise InvalidField(field="directory", why=f"{target} is not empty; name another one")
    return target


async def _restore_into(git: Git, root: Path, target: Path) -> None:
    journal = read_journal(root)
    commit = last_saved(root / "kept.git")
    if journal is None or commit is None:
        raise InvalidField(field="workspace", why=f"{root} cannot be read; inspect it by hand")
    await anyio.to_thread.run_sync(_copy_objects, root / "kept.git", target / ".git")
    with bare_repository(git, commit) as directory:
        scratch = ScratchRepository(
            program=git, directory=directory, tree=target, env=_scratch_environment(directory, target / ".git")
        )
        saved = await read_saved(scratch, commit)
        await anyio.to_thread.run_sync(_write_repository, target / ".git", journal, saved)
        await write_stash_log(scratch, target / ".git", saved)
        own = {"GIT_DIR": str(target / ".git"), "GIT_WORK_TREE": str(target)}
        await git.run("reset", "--hard", "-q", cwd=target, extra=own)
        disable_conversion(scratch)
        shutil.copy2(target / ".git" / "index", scratch.index)
        await scratch.git("read-tree", "-m", "-u", saved.parent, saved.commit, tree=True)
    await anyio.to_thread.run_sync(copy_back, root, target)


def _copy_objects(kept: Path, repository: Path) -> None:
    repository.mkdir()
    copy_tree(kept / "objects", repository / "objects")
    remove(repository / "objects", "info")
    copy_path(str(kept / "shallow"), str(repository / "shallow"))
    if is_directory(kept / LFS):
        copy_tree(kept / LFS, repository / LFS)


def _write_repository(repository: Path, journal: WorkspaceJournal, saved: SavedWork) -> None:
    write_bare(
        repository,
        branch=journal.branch,
        alternates=b"",
        object_id=saved.commit,
        refs={
            **saved.named_refs(journal.branch),
            f"refs/heads/{journal.branch}": saved.parent,
            f"refs/remotes/origin/{journal.base.branch}": journal.base.commit,
        },
        config="[core]\n\tbare = false\n" + remote_config(journal.repository.url, journal.repository.push_url),
    )


def _scratch_environment(directory: Path, repository: Path) -> dict[str, str]:
    index = str(directory / "index")
    return {"GIT_DIR": str(directory), "GIT_INDEX_FILE": index, "GIT_OBJECT_DIRECTORY": str(repository / "objects")}
