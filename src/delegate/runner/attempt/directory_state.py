"""How the git repository around a user's directory stands, at the end of an attempt in it.

Nothing that the repository's configuration names is run, and nothing in it is written: its small files are read as
files, and git looks at the tree with a repository of our own and a copy of the index.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from delegate.preferences.names import branch_problem
from delegate.runner.attempt.delivery import DIRTY_MAX
from delegate.runner.git.bare import COMMIT, read_small
from delegate.runner.git.program import Git, GitFailed, GitSetup
from delegate.runner.workspaces.history import read_branch
from delegate.runner.workspaces.scratch import ScratchRepository, bare_repository, format_alternates

STATE_TIMEOUT = 0.5  # seconds that the end of a task waits; a small repository takes ten milliseconds
INDEX_MAX = 4 * 1024 * 1024  # bytes, about 50,000 files: more are not looked at
EXCLUDES_MAX = 1024 * 1024
HEADS = "ref: refs/heads/"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # what a branch without a commit stands on; git always has it
# A directory in which nothing is tracked is one name, as `git status` has it. Not that command, nor `diff`: those run
# git inside of nested repositories, under their configuration.
CHANGED = (
    "ls-files",
    "-z",
    "--deleted",
    "--modified",
    "--others",
    "--directory",
    "--no-empty-directory",
    "--exclude-standard",
)
# ValueError: a name with a NUL, which an agent may have written. RuntimeError: a link that leads to itself.
UNREADABLE = (GitFailed, OSError, ValueError, RuntimeError)
STAGED = ("diff-index", "-z", "--cached", "--name-only", "--no-renames")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    branch: str | None = None
    commit: str | None = None
    dirty: tuple[str, ...] | None = None  # names from the top of the repository; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepository:
    """A repository as its files tell it."""

    top: Path
    git_dir: Path
    common: Path  # the same, but for a linked worktree
    branch: str | None
    commit: str | None
    index_base: str | None  # what the index is compared with; None: cannot be told


async def read_directory_state(setup: GitSetup, directory: Path, scratch: Path) -> DirectoryState:
    """What can be told of it in a short time. `scratch`: where our own repository may lie meanwhile."""
    state = DirectoryState()
    with anyio.move_on_after(STATE_TIMEOUT), suppress(*UNREADABLE):
        found = await anyio.to_thread.run_sync(find_repository, directory, abandon_on_cancel=True)
        if found is None:
            return state
        state = DirectoryState(branch=found.branch, commit=found.commit)
        if found.index_base is not None:
            state = replace(state, dirty=await _dirty_files(await setup.get(), found, found.index_base, scratch))
    return state


def find_repository(directory: Path) -> FoundRepository | None:
    """The one that git would find from there, unless it is somebody else's."""
    resolved = directory.resolve()
    for top in (resolved, *resolved.parents):
        try:
            mark = (top / ".git").stat()
        except OSError:
            continue
        git_dir = _git_dir(top / ".git", mark)
        if mark.st_uid != os.geteuid() or git_dir is None:
            return None
        return _read_repository(top, git_dir)
    return None


def _git_dir(mark: Path, found: os.stat_result) -> Path | None:
    """The repository itself, or what the file of a linked worktree or a submodule leads to."""
    if stat.S_ISDIR(found.st_mode):
        return mark
    leads = read_small(mark).strip()
    return mark.parent / leads.removeprefix("gitdir: ") if leads.startswith("gitdir: ") else None


def _read_repository(top: Path, git_dir: Path) -> FoundRepository:
    shared = read_small(git_dir / "commondir").strip()
    common = git_dir / shared if shared else git_dir
    head = read_small(git_dir / "HEAD").strip()
    if COMMIT.fullmatch(head):
        return FoundRepository(top=top, git_dir=git_dir, common=common, branch=None, commit=head, index_base=head)
    name = head.removeprefix(HEADS)
    is_branch = head.startswith(HEADS)
    branch = name if is_branch and branch_problem(name) is None else None
    commit = read_branch(common, f"refs/heads/{name}") if is_branch else None
    index_base = commit or (EMPTY_TREE if branch else None)
    return FoundRepository(top=top, git_dir=git_dir, common=common, branch=branch, commit=commit, index_base=index_base)


async def _dirty_files(git: Git, found: FoundRepository, index_base: str, scratch: Path) -> tuple[str, ...] | None:
    with bare_repository(scratch) as directory:
        clean = ScratchRepository(program=git, directory=directory, tree=found.top, env=_environment(found, directory))
        if not await anyio.to_thread.run_sync(_copy, found, clean, abandon_on_cancel=True):
            return None
        answers: list[bytes] = []

        async def ask(*arguments: str, tree: bool) -> None:
            with suppress(*UNREADABLE):
                answers.append(await clean.git(*arguments, tree=tree))

        async with anyio.create_task_group() as group:  # most of the time is taken by the start of a program
            group.start_soon(partial(ask, *STAGED, index_base, tree=False))
            group.start_soon(partial(ask, *CHANGED, tree=True))
    if len(answers) < len((STAGED, CHANGED)):
        return None
    names = {name for name in b"".join(answers).split(b"\0") if name}
    return tuple(name.decode(errors="replace") for name in sorted(names)[:DIRTY_MAX])


def _environment(found: FoundRepository, directory: Path) -> dict[str, str]:
    return {
        "GIT_DIR": str(directory),
        "GIT_INDEX_FILE": str(directory / "index"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(found.common / "objects"),
    }


def _copy(found: FoundRepository, clean: ScratchRepository) -> bool:
    """What git needs of the user's repository besides objects; False when there is more than is worth the time."""
    (clean.directory / "info").mkdir()
    excludes = read_small(found.common / "info" / "exclude", EXCLUDES_MAX)
    (clean.directory / "info" / "exclude").write_text(excludes, errors="surrogateescape")
    try:
        seen = (found.git_dir / "index").lstat()
    except FileNotFoundError:
        return True  # nothing is tracked
    if seen.st_size > INDEX_MAX:
        return False
    content = read_small(found.git_dir / "index", INDEX_MAX).encode(errors="surrogateescape")
    clean.index.write_bytes(content)
    # With its time: git looks into files that are as young as the index, and only into those.
    os.utime(clean.index, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    return bool(content)
