"""Uploads the Git LFS objects of a change, because a pointer without its object breaks every later clone.

Runs `git lfs` in a scratch repository only: neither `.lfsconfig` nor the settings of the agent's repository apply, so
the objects go to the LFS address of the remote that is pushed to, and no custom transfer program runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from delegate.errors import excerpt
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.publishing.change import BYTES_MAX, Stats
from delegate.runner.publishing.history_policy import published_commits
from delegate.runner.publishing.objects import contents_of
from delegate.runner.publishing.policy import PublishRules, find_likely_secrets
from delegate.runner.publishing.push import PushRejected
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

UPLOAD_TIMEOUT = timedelta(minutes=30)  # needs no lease: an object that is uploaded twice is the same object
POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,15})\n"
)
POINTER_LINE = re.compile(rb"^oid sha256:[0-9a-f]{64}$", re.M)
POINTER_BYTES = 1024  # a larger blob is not a pointer to git-lfs
CHUNK = 1024 * 1024
REASON_MAX = 300
NOT_INSTALLED = b"is not a git command"
INSTALL = "git-lfs is not installed on this machine: install it from https://git-lfs.com, then `delegate retry`"


@dataclass(frozen=True, slots=True, kw_only=True)
class LfsPointer:
    oid: str
    size: int
    path: str  # one of its names

    def find_in(self, workspace: Workspace) -> Path | None:
        """Where the agent's git-lfs put the object, unchecked."""
        path = workspace.git_dir / "lfs" / "objects" / self.oid[:2] / self.oid[2:4] / self.oid
        try:
            found = path.lstat()
        except OSError:
            return None
        return path if stat.S_ISREG(found.st_mode) and found.st_size == self.size else None


def may_have_pointers(workspace: Workspace, stats: Stats) -> bool:
    """Whether a search for pointers is worth its processes."""
    return (workspace.git_dir / "lfs").is_dir() or any(POINTER_LINE.search(file.added) for file in stats.changed)


async def find_lfs_problems(
    git: Git, workspace: Workspace, commit: str, stats: Stats, rules: PublishRules
) -> tuple[str, ...]:
    """Why the objects may not be published, in sentences."""
    if not may_have_pointers(workspace, stats):
        return ()
    async with scratch_repository(git, workspace) as scratch:
        pointers = await _outgoing_pointers(scratch, workspace, commit)
    if sum(pointer.size for pointer in pointers) > BYTES_MAX:
        return (f"its files in Git LFS have more than {BYTES_MAX // 1000**2} MB",)
    return await anyio.to_thread.run_sync(_find_secrets, workspace, pointers, rules)


def _find_secrets(workspace: Workspace, pointers: Sequence[LfsPointer], rules: PublishRules) -> tuple[str, ...]:
    problems = []
    for pointer in pointers:
        path = pointer.find_in(workspace)
        content = path.read_bytes() if path else b""
        if rules.known_secrets(content) or dict(find_likely_secrets(content)):
            problems.append(f"{excerpt(pointer.path)}, in Git LFS, contains what looks like a secret")
    return tuple(problems)


async def upload_lfs_objects(git: Git, workspace: Workspace, commit: str) -> None:
    """Raises PushRejected when the remote would get a pointer without its object."""
    async with scratch_repository(git, workspace) as scratch:
        pointers = await _outgoing_pointers(scratch, workspace, commit)
        if not pointers:
            return
        await anyio.to_thread.run_sync(_copy_objects, scratch.directory, workspace, pointers)
        settings = ("-c", "lfs.basicTransfersOnly=true", "-c", "lfs.allowIncompletePush=false")
        oids = [pointer.oid for pointer in pointers]
        try:
            await scratch.run_remote(
                *settings, "lfs", "push", "--object-id", workspace.repository.push_url, *oids, timeout=UPLOAD_TIMEOUT
            )
        except GitFailed as failed:
            is_missing = failed.done is not None and NOT_INSTALLED in failed.done.stderr
            why = INSTALL if is_missing else excerpt(failed.why, REASON_MAX)
            raise PushRejected(f"{_describe(pointers)} could not be uploaded: {why}") from failed


def _describe(pointers: Sequence[LfsPointer]) -> str:
    more = f" and {len(pointers) - 1} more" if len(pointers) > 1 else ""
    return f"{excerpt(pointers[0].path)}{more}, stored in Git LFS,"


async def _outgoing_pointers(scratch: ScratchRepository, workspace: Workspace, commit: str) -> list[LfsPointer]:
    """The pointers in the commits that the remote does not have yet."""
    out = await anyio.to_thread.run_sync(published_commits, workspace)
    wanted = "".join(f"{name}\n" for name in (commit, *(f"^{old}" for old in out))).encode()
    listed = await scratch.git("rev-list", "--objects", f"--filter=blob:limit={POINTER_BYTES}", "--stdin", input=wanted)
    lines = (line.partition(b" ") for line in listed.splitlines())
    paths = {name: path for name, _, path in lines if path}
    found: dict[str, LfsPointer] = {}
    for path, content in zip(paths.values(), await contents_of(scratch, list(paths)), strict=True):
        pointer = POINTER.fullmatch(content or b"")
        if pointer:
            oid = pointer[1].decode()
            found[oid] = LfsPointer(oid=oid, size=int(pointer[2]), path=path.decode(errors="replace"))
    return list(found.values())


def _copy_objects(directory: Path, workspace: Workspace, pointers: Sequence[LfsPointer]) -> None:
    """Copies the objects that the agent has; git-lfs asks the remote for the others."""
    for pointer in pointers:
        source = pointer.find_in(workspace)
        if source is None:
            continue
        target = directory / "lfs" / "objects" / pointer.oid[:2] / pointer.oid[2:4] / pointer.oid
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _copy_if_genuine(source, target, pointer.oid):
            target.unlink()


def _copy_if_genuine(source: Path, target: Path, oid: str) -> bool:
    digest = hashlib.sha256()
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as original, target.open("xb") as copy:
        while chunk := original.read(CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest() == oid
