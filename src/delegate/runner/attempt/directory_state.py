"""Reads the git state of the user's directory at the end of an attempt in place.

This neither runs programs named in the repository's configuration nor writes to the repository: refs are read as
files, and git reads the tree through a temporary repository with a copy of the index.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import anyio

from delegate.preferences.names import branch_problem
from delegate.runner.attempt.outcomes import DIRTY_MAX
from delegate.runner.git.bare import COMMIT, read_small
from delegate.runner.git.program import Git, GitFailed, GitSetup
from delegate.runner.workspaces.history import read_branch
from delegate.runner.workspaces.repositories import has_repository
from delegate.runner.workspaces.scratch import ScratchRepository, bare_repository, format_alternates

STATE_TIMEOUT = 0.5  # seconds that the end of a task waits at most; a small repository takes 10 ms
MARKS_TIMEOUT = 2.0  # seconds for a look at the checkout before and after a task in a worktree
INDEX_MAX = 4 * 1024 * 1024  # bytes, about 50,000 files; a larger index is not read
EXCLUDES_MAX = 1024 * 1024
MARKED_MAX = 10_000  # changed files and hooks of a checkout that are compared; more take too long
HEADS = "ref: refs/heads/"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # the base of a branch without commits; always known to git
# Lists a directory without tracked files as one name, like `git status`. Not `status` or `diff` themselves: they run
# git inside nested repositories, under their configuration.
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
# ValueError: a name with a NUL, which an agent may have written. RuntimeError: a symbolic link loop.
UNREADABLE = (GitFailed, OSError, ValueError, RuntimeError)
STAGED = ("diff-index", "-z", "--cached", "--name-only", "--no-renames")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    branch: str | None = None
    commit: str | None = None
    dirty: tuple[str, ...] | None = None  # paths relative to the top of the repository; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepository:
    """A repository, as read from its files."""

    top: Path
    git_dir: Path
    common: Path  # differs from git_dir in a linked worktree
    branch: str | None
    commit: str | None
    index_base: str | None  # what the index is compared with; None: unknown


async def read_directory_state(setup: GitSetup, directory: Path, scratch: Path) -> DirectoryState:
    """What can be read within STATE_TIMEOUT. `scratch` is the directory for the temporary repository."""
    state = DirectoryState()
    with anyio.move_on_after(STATE_TIMEOUT), suppress(*UNREADABLE):
        found = await anyio.to_thread.run_sync(find_repository, directory, abandon_on_cancel=True)
        if found is None:
            return state
        state = DirectoryState(branch=found.branch, commit=found.commit)
        if found.index_base is not None:
            dirty = await _dirty_files(await setup.get(), found, found.index_base, scratch)
            state = replace(state, dirty=dirty and dirty[:DIRTY_MAX])
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutMarks:
    """What changes when something writes to the user's checkout, by name."""

    settings: Mapping[str, object]
    files: Mapping[str, object] | None = None  # those that differ from the last commit; None: unknown

    def changed_since(self, before: CheckoutMarks) -> list[str]:
        changed = self.settings.items() ^ before.settings.items()
        if self.files is not None and before.files is not None:
            changed |= self.files.items() ^ before.files.items()
        return sorted({name for name, _ in changed})


async def read_checkout_marks(git: Git, checkout: Path) -> CheckoutMarks | None:
    """What can be read within MARKS_TIMEOUT: of a large checkout only its settings."""
    marks = None
    with anyio.move_on_after(MARKS_TIMEOUT), suppress(*UNREADABLE):
        found = await anyio.to_thread.run_sync(find_repository, checkout, abandon_on_cancel=True)
        if found is None:
            return None
        marks = CheckoutMarks(settings=await anyio.to_thread.run_sync(_settings_marks, found, abandon_on_cancel=True))
        dirty = await _dirty_files(git, found, found.index_base, git.scratch) if found.index_base else None
        if dirty is not None and len(dirty) <= MARKED_MAX:
            files = await anyio.to_thread.run_sync(_file_marks, git, found, dirty, abandon_on_cancel=True)
            marks = replace(marks, files=files)
    return marks


def _settings_marks(found: FoundRepository) -> dict[str, object]:
    hooks = islice(_names_in(found.common / "hooks"), MARKED_MAX)
    names = ("config", *(f"hooks/{name}" for name in hooks))
    return {"HEAD": (found.branch, found.commit), **{f".git/{name}": _mark(found.common / name) for name in names}}


def _names_in(directory: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(directory) as entries:
        yield from (entry.name for entry in entries)


def _file_marks(git: Git, found: FoundRepository, names: tuple[str, ...]) -> dict[str, object]:
    """Without the directory that contains Delegate's own home, where it writes all the time."""
    paths = ((name, found.top / name) for name in names)
    return {name: _mark(path) for name, path in paths if not git.scratch.is_relative_to(path)}


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_mode


def find_repository(directory: Path) -> FoundRepository | None:
    """The repository that git would find from there; None if another user owns it."""
    resolved = directory.resolve()
    for top in filter(has_repository, (resolved, *resolved.parents)):
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
    """The .git directory, or the one that the .git file of a linked worktree or a submodule points to."""
    if stat.S_ISDIR(found.st_mode):
        return mark
    link = read_small(mark).strip()
    return mark.parent / link.removeprefix("gitdir: ") if link.startswith("gitdir: ") else None


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
    with bare_repository(git, index_base, scratch) as directory:
        clean = ScratchRepository(program=git, directory=directory, tree=found.top, env=_environment(found, directory))
        if not await anyio.to_thread.run_sync(_copy, found, clean, abandon_on_cancel=True):
            return None
        answers: list[bytes] = []

        async def ask(*arguments: str, tree: bool) -> None:
            with suppress(*UNREADABLE):
                answers.append(await clean.git(*arguments, tree=tree))

        async with anyio.create_task_group() as group:  # starting the programs takes most of the time
            group.start_soon(partial(ask, *STAGED, index_base, tree=False))
            group.start_soon(partial(ask, *CHANGED, tree=True))
    if len(answers) < len((STAGED, CHANGED)):
        return None
    names = {name for name in b"".join(answers).split(b"\0") if name}
    return tuple(name.decode(errors="replace") for name in sorted(names))


def _environment(found: FoundRepository, directory: Path) -> dict[str, str]:
    return {
        "GIT_DIR": str(directory),
        "GIT_INDEX_FILE": str(directory / "index"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": format_alternates(found.common / "objects"),
    }


def _copy(found: FoundRepository, clean: ScratchRepository) -> bool:
    """Copy what git needs besides objects: the excludes and the index; False when the index is too large."""
    excludes = read_small(found.common / "info" / "exclude", EXCLUDES_MAX)
    with (clean.directory / "info" / "exclude").open("a", errors="surrogateescape") as file:
        file.write(excludes)
    try:
        seen = (found.git_dir / "index").lstat()
    except FileNotFoundError:
        return True  # nothing is tracked
    if seen.st_size > INDEX_MAX:
        return False
    content = read_small(found.git_dir / "index", INDEX_MAX).encode(errors="surrogateescape")
    clean.index.write_bytes(content)
    # Keep its time: git reads the content only of files that are not older than the index.
    os.utime(clean.index, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    return bool(content)
