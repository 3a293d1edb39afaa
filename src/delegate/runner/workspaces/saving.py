"""Saves an agent's work, byte for byte, to a private ref of the kept repository.

A snapshot for publishing has the line endings and encodings that the repository asks for. What is saved is what lies on
the disk; things that git cannot hold are put aside as they are.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from delegate.config.home_files import write_private
from delegate.failpoints import failpoint
from delegate.runner.git.bare import COMMIT, is_directory, make_real, read_refs, write_bare
from delegate.runner.git.program import Git
from delegate.runner.removal import remove
from delegate.runner.workspaces.history import agents_history, bring_commits
from delegate.runner.workspaces.mirrors import NOT_KNOWN
from delegate.runner.workspaces.scratch import CAREFUL, Clean, clean_repository
from delegate.runner.workspaces.snapshot import gitlinks, stage, start_index
from delegate.runner.workspaces.worktrees import Workspace

SAVED = "refs/delegate/saved"
RAW = "* -text -ident !eol !crlf !filter !working-tree-encoding\n"
ALWAYS_THEN = "@0 +0000"  # the same work saved again is the same commit
AGENTS_OWN = ("refs/heads/", "refs/stash")
HANDED_IN = "handed-in.json"  # a note about the work, which must live as long as it
OURS = frozenset({"HEAD", "config", "objects", "refs", "packed-refs", "shallow", HANDED_IN})
PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
PLAIN_REF = re.compile(rf"refs/(heads/{PART}(/{PART})*|stash)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The tree as it was, on top of the agent's last commit."""

    commit: str
    tree: str
    parent: str  # the agent's last commit, or the base when that could not be trusted
    refs: Mapping[str, str]  # the agent's other branches and its stash

    def named_refs(self, branch: str) -> dict[str, str]:
        """Those refs for a repository that is on the branch: by their own names, unless one is taken or odd."""
        own = f"refs/heads/{branch}"
        return {
            name if PLAIN_REF.fullmatch(name) and name != own else f"refs/heads/kept-{commit[:12]}": commit
            for name, commit in self.refs.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that an agent's workspace holds and the remote may not have."""

    saved: Saved | None  # None: there is nothing
    odd: tuple[bytes, ...]  # files and nested repositories that no tree can hold
    is_readable: bool  # False: the agent's repository holds commits that could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    tree: str
    odd: tuple[bytes, ...]


async def save(git: Git, workspace: Workspace) -> Saved | None:
    """Safe while the agent works. None when nothing changed since the base, or since the last time."""
    before = last_saved(workspace.kept)
    saved = (await look(git, workspace)).saved
    return saved if saved is not None and saved.commit != before else None


async def look(git: Git, workspace: Workspace) -> Work:
    """Find out what there is, and save what git can hold."""
    settle_kept(workspace)
    async with clean_repository(git, workspace) as clean:
        be_raw(clean)
        history = await agents_history(clean, workspace)
        parent = history.head or workspace.base.commit
        known = await anyio.to_thread.run_sync(_known, workspace)
        others = await anyio.to_thread.run_sync(agents_other_refs, workspace, parent)
        is_readable = history.head is not None and await _has_brought(clean, workspace, others)
        refs = others if is_readable else {}
        contents = await _contents(clean, workspace, history.head)
        is_new = bool(refs or contents.odd) or not is_readable or parent not in known
        is_new = is_new or contents.tree != await _tree_of(clean, parent)
        # An earlier save that has been overtaken must not be the last one, or the next attempt would go back to it.
        is_overtaken = last_saved(workspace.kept) is not None
        saved = await _saved(clean, workspace, contents.tree, parent, refs) if is_new or is_overtaken else None
    return Work(saved=saved if is_new else None, odd=contents.odd, is_readable=is_readable)


async def _contents(clean: Clean, workspace: Workspace, head: str | None) -> _Contents:
    if not is_directory(workspace.tree):
        # Somebody removed it, or put a link in its place: what was saved last is all there is.
        return _Contents(tree=await _last_tree(clean, workspace, head or workspace.base.commit), odd=())
    await start_index(clean, workspace, head)
    staged = await stage(clean)
    # Git lists no submodule that is at the commit which the index names.
    left = sorted({*staged.left, *await gitlinks(clean)})
    tree = (await clean.git("write-tree")).decode().strip()
    return _Contents(tree=tree, odd=tuple(name for name in left if _has_content(os.fsencode(workspace.tree), name)))


async def _last_tree(clean: Clean, workspace: Workspace, parent: str) -> str:
    last = last_saved(workspace.kept)
    if last is not None:
        saved = await read_saved(clean, last)
        if saved.parent == parent:
            return saved.tree
    return await _tree_of(clean, parent)


async def _saved(clean: Clean, workspace: Workspace, tree: str, parent: str, refs: Mapping[str, str]) -> Saved:
    saved = await _commit(clean, tree=tree, parent=parent, refs=refs)
    failpoint("workspace.save.committed")
    await anyio.to_thread.run_sync(_note, workspace.kept, saved.commit)
    failpoint("workspace.save.noted")
    return saved


def settle_kept(workspace: Workspace) -> None:
    """An agent can write where we keep its work, too: what decides how git behaves there is written anew."""
    write_bare(workspace.kept, branch=NOT_KNOWN, alternates=workspace.alternates, config=CAREFUL)
    for entry in workspace.kept.iterdir():
        if entry.name not in OURS:  # such as `commondir`, which would lead git to a configuration elsewhere
            remove(workspace.kept, entry.name)


def be_raw(clean: Clean) -> None:
    """Make the repository take and give files as they are, whatever the tree's own attributes say."""
    information = clean.directory / "info"
    information.mkdir(exist_ok=True)
    (information / "attributes").write_text(RAW)


def _has_content(tree: bytes, name: bytes) -> bool:
    """Pipes, sockets and devices have none, and neither has the empty directory of a submodule."""
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


def _known(workspace: Workspace) -> set[str]:
    """Commits that the remote had at the last fetch."""
    return {*read_refs(workspace.mirror).values(), workspace.base.commit}


def agents_other_refs(workspace: Workspace, head: str | None) -> dict[str, str]:
    """The agent's branches and stash, without what its head or the remote has."""
    known = {*_known(workspace), head}
    refs = read_refs(workspace.git_dir)
    return {name: commit for name, commit in refs.items() if name.startswith(AGENTS_OWN) and commit not in known}


async def _has_brought(clean: Clean, workspace: Workspace, refs: Mapping[str, str]) -> bool:
    """Whether what these refs need is in the kept repository now; if not, it cannot be read."""
    return not refs or await bring_commits(clean, workspace, list(refs.values())) is None


async def _tree_of(clean: Clean, commit: str) -> str:
    return (await clean.git("rev-parse", "--verify", f"{commit}^{{tree}}")).decode().strip()


async def _commit(clean: Clean, *, tree: str, parent: str, refs: Mapping[str, str]) -> Saved:
    names = sorted(refs)
    parents = [parent, *(refs[name] for name in names)]
    arguments = [part for commit in parents for part in ("-p", commit)]
    when = {"GIT_AUTHOR_DATE": ALWAYS_THEN, "GIT_COMMITTER_DATE": ALWAYS_THEN}
    # Git drops a parent that is named twice, so the commits are written down with the names.
    message = json.dumps({"saved": refs}).encode()
    commit = await clean.git("commit-tree", tree, *arguments, input=message, extra=when)
    return Saved(commit=commit.decode().strip(), tree=tree, parent=parent, refs=refs)


def _note(kept: Path, commit: str) -> None:
    if last_saved(kept) == commit:
        return
    directory = make_ref_directory(kept, SAVED)
    write_private(directory / str(max(_numbers(kept), default=0) + 1), f"{commit}\n")


def make_ref_directory(kept: Path, name: str) -> Path:
    """Where loose refs of that kind lie; a link on the way there is an agent's, and is not followed."""
    directory = kept
    for part in name.split("/"):
        directory = directory / part
        make_real(directory)
    return directory


def _numbers(kept: Path) -> dict[int, str]:
    found = {}
    for name, commit in read_refs(kept).items():
        number = name.removeprefix(f"{SAVED}/")
        if number.isascii() and number.isdigit():
            found[int(number)] = commit
    return found


def last_saved(kept: Path) -> str | None:
    numbers = _numbers(kept)
    return numbers[max(numbers)] if numbers else None


async def read_saved(clean: Clean, commit: str) -> Saved:
    """What was saved under this commit."""
    header, _, message = (await clean.git("cat-file", "commit", commit)).decode(errors="replace").partition("\n\n")
    fields = [line.partition(" ") for line in header.splitlines()]
    refs = {str(name): str(sha) for name, sha in json.loads(message)["saved"].items() if COMMIT.fullmatch(str(sha))}
    return Saved(
        commit=commit,
        tree=next(value for name, _, value in fields if name == "tree"),
        parent=next(value for name, _, value in fields if name == "parent"),
        refs=refs,
    )
