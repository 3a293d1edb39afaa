"""Saves an agent's work, byte for byte, to a private ref of the kept repository.

A snapshot for publishing has the line endings and encodings that the repository defines. Saved work has the bytes on
the disk; what git cannot hold is moved to side storage as it is.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from delegate.config.home_files import write_private
from delegate.failpoints import failpoint
from delegate.runner.git.bare import (
    COMMIT,
    ensure_real_directory,
    is_directory,
    read_refs,
    read_small,
    write_bare,
    write_new_file,
)
from delegate.runner.git.program import Git
from delegate.runner.removal import remove
from delegate.runner.workspaces.history import copy_commits, find_unreachable, read_agent_history
from delegate.runner.workspaces.mirrors import UNKNOWN_BRANCH
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository
from delegate.runner.workspaces.snapshot import gitlinks, stage, start_index
from delegate.runner.workspaces.worktrees import Workspace

SAVED_REFS = "refs/delegate/saved"
RAW_ATTRIBUTES = "* -text -ident !eol !crlf !filter !working-tree-encoding\n"
FIXED_DATE = "@0 +0000"  # the same work gives the same commit
HEADS, STASH = "refs/heads/", "refs/stash"
AGENT_REF_PREFIXES = (HEADS, STASH)
LOG_MAX = 16 * 1024 * 1024
# Git's record of a checkout that left a commit which no branch has.
LEFT_COMMIT = re.compile(r"^([0-9a-f]{40,64}) .*\tcheckout: moving from \1 to ", re.M)
AUTOSTASHES = ("rebase-merge/autostash", "rebase-apply/autostash", "MERGE_AUTOSTASH")
FINISHED_WORK = "finished-work.json"  # a note about the work, kept as long as the work
UNREADABLE = "unreadable.git"  # an agent's repository that git could not read
LFS = "lfs"  # the objects of git-lfs, in a repository's directory
OWN_ENTRIES = frozenset({"HEAD", "config", "objects", "refs", "packed-refs", "shallow", LFS, FINISHED_WORK})
PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
PLAIN_REF = re.compile(rf"refs/heads/{PART}(/{PART})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWork:
    """The tree as it was, on top of the agent's last commit."""

    commit: str
    tree: str
    parent: str  # the agent's last commit, or the base when that could not be trusted
    refs: Mapping[str, str]  # the agent's other branches and its stash

    @property
    def stash(self) -> list[str]:
        """The stash entries, the newest first."""
        entries = [(len(name), name, commit) for name, commit in self.refs.items() if name.startswith(STASH)]
        return [commit for _, _, commit in sorted(entries)]

    def named_refs(self, branch: str) -> dict[str, str]:
        """The refs for a repository on that branch, under their own names unless a name is taken or invalid."""
        own = f"refs/heads/{branch}"
        named = {
            name if PLAIN_REF.fullmatch(name) and name != own else f"refs/heads/kept-{commit[:12]}": commit
            for name, commit in self.refs.items()
            if not name.startswith(STASH)
        }
        return named | ({STASH: self.stash[0]} if self.stash else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpushedWork:
    """Everything in an agent's workspace that the remote may not have."""

    saved: SavedWork | None  # None: no work
    skipped: tuple[bytes, ...]  # files and nested repositories that no tree can hold
    is_readable: bool  # False: the agent's repository has unreadable commits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    tree: str
    skipped: tuple[bytes, ...]


async def save(git: Git, workspace: Workspace) -> SavedWork | None:
    """Safe while the agent works. None when nothing changed since the base, or since the last save."""
    before = last_saved(workspace.kept_repository)
    saved = (await collect_work(git, workspace)).saved
    return saved if saved is not None and saved.commit != before else None


async def collect_work(git: Git, workspace: Workspace, *, has_more: bool = False) -> UnpushedWork:
    """Finds all work, and saves what git can hold; with `has_more`, also a tree without changes."""
    reset_kept_repository(workspace)
    async with scratch_repository(git, workspace) as scratch:
        disable_conversion(scratch)
        history = await read_agent_history(scratch, workspace)
        parent = history.head or workspace.base.commit
        known = await anyio.to_thread.run_sync(_remote_commits, workspace)
        others = await find_other_work(scratch, workspace, parent)
        is_readable = history.head is not None and await _try_copy_refs(scratch, workspace, others)
        refs = others if is_readable else {}
        contents = await _contents(scratch, workspace, history.head)
        is_new = bool(refs or contents.skipped or has_more) or not is_readable or parent not in known
        is_new = is_new or contents.tree != await _tree_of(scratch, parent)
        # An outdated save must not stay the last one, or the next attempt would restore it.
        is_overtaken = last_saved(workspace.kept_repository) is not None
        saved = await _save_commit(scratch, workspace, contents.tree, parent, refs) if is_new or is_overtaken else None
    return UnpushedWork(saved=saved if is_new else None, skipped=contents.skipped, is_readable=is_readable)


async def _contents(scratch: ScratchRepository, workspace: Workspace, head: str | None) -> _Contents:
    if not is_directory(workspace.tree):
        # The tree was removed or replaced by a link: only the last save is left.
        return _Contents(tree=await _last_tree(scratch, workspace, head or workspace.base.commit), skipped=())
    await start_index(scratch, workspace, head)
    staged = await stage(scratch)
    # Git does not list a submodule that is at the commit in the index.
    left = sorted({*staged.unstaged, *await gitlinks(scratch)})
    tree = (await scratch.git("write-tree")).decode().strip()
    return _Contents(tree=tree, skipped=tuple(name for name in left if _has_content(os.fsencode(workspace.tree), name)))


async def _last_tree(scratch: ScratchRepository, workspace: Workspace, parent: str) -> str:
    last = last_saved(workspace.kept_repository)
    if last is not None:
        saved = await read_saved(scratch, last)
        if saved.parent == parent:
            return saved.tree
    return await _tree_of(scratch, parent)


async def _save_commit(
    scratch: ScratchRepository, workspace: Workspace, tree: str, parent: str, refs: Mapping[str, str]
) -> SavedWork:
    saved = await _commit(scratch, tree=tree, parent=parent, refs=refs)
    failpoint("workspace.save.committed")
    await anyio.to_thread.run_sync(_record_save, workspace.kept_repository, saved.commit)
    failpoint("workspace.save.noted")
    return saved


def reset_kept_repository(workspace: Workspace) -> None:
    """Rewrites the configuration of the kept repository, which an agent can write to."""
    write_bare(
        workspace.kept_repository,
        branch=UNKNOWN_BRANCH,
        alternates=workspace.alternates,
        object_id=workspace.base.commit,
    )
    for entry in workspace.kept_repository.iterdir():
        if entry.name not in OWN_ENTRIES:  # such as `commondir`, which would redirect git to another configuration
            remove(workspace.kept_repository, entry.name)


def move_lfs_objects(source: Path, target: Path) -> None:
    """Moves what git-lfs stored from one repository to another that has none: commits hold only pointers to it."""
    if is_directory(source / LFS) and not (target / LFS).exists():
        (source / LFS).rename(target / LFS)


def disable_conversion(scratch: ScratchRepository) -> None:
    """Makes git store and check out files byte for byte, whatever the tree's attributes say."""
    (scratch.directory / "info" / "attributes").write_text(RAW_ATTRIBUTES)


def _has_content(tree: bytes, name: bytes) -> bool:
    """False for pipes, sockets, devices and the empty directory of a submodule."""
    path = tree + b"/" + name
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            return stat.S_ISREG(mode) or stat.S_ISLNK(mode)
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except PermissionError:
        return True
    except OSError:
        return False


def _remote_commits(workspace: Workspace) -> set[str]:
    """Commits that the remote had at the last fetch."""
    return {*read_refs(workspace.mirror).values(), workspace.base.commit}


async def find_other_work(scratch: ScratchRepository, workspace: Workspace, *heads: str | None) -> dict[str, str]:
    """The agent's branches, stash entries and commits without a name, except what these heads or the remote contain."""
    known = {*await anyio.to_thread.run_sync(_remote_commits, workspace), *filter(None, heads)}
    found = await anyio.to_thread.run_sync(_agent_commits, workspace)
    new = {name: commit for name, commit in found.items() if commit not in known}
    if not new:
        return {}
    unreachable = await find_unreachable(scratch, workspace, new.values(), known)
    return {name: commit for name, commit in new.items() if commit in unreachable}


def _agent_commits(workspace: Workspace) -> dict[str, str]:
    """What the agent's repository has, by ref or else by a description."""
    refs = read_refs(workspace.git_dir)
    found = {name: commit for name, commit in refs.items() if name.startswith(AGENT_REF_PREFIXES)}
    stash = read_small(workspace.git_dir / "logs" / STASH, LOG_MAX)
    entries = [line.split(" ")[1] for line in stash.split("\n") if line.count(" ") > 1]  # the last is the ref itself
    found |= {f"{STASH}@{{{number}}}": commit for number, commit in enumerate(reversed(entries)) if number}
    for entry in worktree_entries(workspace):
        head = read_small(entry / "HEAD").strip()
        if entry.name != workspace.tree.name:
            found[f"worktree {entry.name}"] = head
        left = LEFT_COMMIT.findall(read_small(entry / "logs" / "HEAD", LOG_MAX))
        found |= {f"commit {commit[:12]}": commit for commit in left}
        found |= {f"{STASH} of {entry.name}/{name}": read_small(entry / name).strip() for name in AUTOSTASHES}
    return {name: commit for name, commit in found.items() if COMMIT.fullmatch(commit)}


def worktree_entries(workspace: Workspace) -> list[Path]:
    """Where the agent's repository keeps the state of its worktrees, with that of the agent's own."""
    try:
        return sorted(entry for entry in (workspace.git_dir / "worktrees").iterdir() if is_directory(entry))
    except OSError:
        return []


def describe_other_work(names: Iterable[str]) -> Iterator[str]:
    """For the user: each branch, commit and worktree, and the number of stash entries."""
    names = sorted(names)
    stashed = sum(name.startswith(STASH) for name in names)
    if stashed:
        yield f"{stashed} stash {'entry' if stashed == 1 else 'entries'}"
    for name in names:
        if not name.startswith(STASH):
            yield f"branch {name.removeprefix(HEADS)}" if name.startswith(HEADS) else name


async def _try_copy_refs(scratch: ScratchRepository, workspace: Workspace, refs: Mapping[str, str]) -> bool:
    """Copies the commits of these refs to the kept repository; False when they cannot be read."""
    return not refs or await copy_commits(scratch, workspace, list(refs.values())) is None


async def _tree_of(scratch: ScratchRepository, commit: str) -> str:
    return (await scratch.git("rev-parse", "--verify", f"{commit}^{{tree}}")).decode().strip()


async def _commit(scratch: ScratchRepository, *, tree: str, parent: str, refs: Mapping[str, str]) -> SavedWork:
    names = sorted(refs)
    parents = [parent, *(refs[name] for name in names)]
    arguments = [part for commit in parents for part in ("-p", commit)]
    when = {"GIT_AUTHOR_DATE": FIXED_DATE, "GIT_COMMITTER_DATE": FIXED_DATE}
    # Git drops a duplicate parent, so the message lists each commit with its name.
    message = json.dumps({"saved": refs}).encode()
    commit = await scratch.git("commit-tree", tree, *arguments, input=message, extra=when)
    return SavedWork(commit=commit.decode().strip(), tree=tree, parent=parent, refs=refs)


def _record_save(kept: Path, commit: str) -> None:
    if last_saved(kept) == commit:
        return
    directory = make_ref_directory(kept, SAVED_REFS)
    write_private(directory / str(max(_numbers(kept), default=0) + 1), f"{commit}\n")


def make_ref_directory(kept: Path, name: str) -> Path:
    """The directory of loose refs of that kind. A link in the path comes from an agent, and is removed."""
    directory = kept
    for part in name.split("/"):
        directory = directory / part
        ensure_real_directory(directory)
    return directory


def _numbers(kept: Path) -> dict[int, str]:
    found = {}
    for name, commit in read_refs(kept).items():
        number = name.removeprefix(f"{SAVED_REFS}/")
        if number.isascii() and number.isdigit():
            found[int(number)] = commit
    return found


def last_saved(kept: Path) -> str | None:
    numbers = _numbers(kept)
    return numbers[max(numbers)] if numbers else None


async def write_stash_log(scratch: ScratchRepository, repository: Path, saved: SavedWork) -> None:
    """Git finds stash entries only in the log of their ref."""
    if not saved.stash:
        return
    listed = (await scratch.git("log", "--no-walk", "--format=%H %s", *saved.stash)).decode(errors="replace")
    subjects = dict(line.partition(" ")[::2] for line in listed.split("\n"))
    oldest_first = saved.stash[::-1]
    before = ("0" * len(saved.commit), *oldest_first)
    lines = (  # git skips a line with the time 0
        f"{old} {new} Delegate <> 1 +0000\t{subjects[new]}\n" for old, new in zip(before, oldest_first, strict=False)
    )
    directory = make_ref_directory(repository, "logs/refs")
    write_new_file(directory / "stash", "".join(lines).encode())


async def read_saved(scratch: ScratchRepository, commit: str) -> SavedWork:
    """Reads the saved work of this commit."""
    header, _, message = (await scratch.git("cat-file", "commit", commit)).decode(errors="replace").partition("\n\n")
    fields = [line.partition(" ") for line in header.splitlines()]
    refs = {str(name): str(sha) for name, sha in json.loads(message)["saved"].items() if COMMIT.fullmatch(str(sha))}
    return SavedWork(
        commit=commit,
        tree=next(value for name, _, value in fields if name == "tree"),
        parent=next(value for name, _, value in fields if name == "parent"),
        refs=refs,
    )
