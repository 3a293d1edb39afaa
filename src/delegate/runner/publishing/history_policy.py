"""Checks the agent's own commits before a push: every file, name and message in them.

Scans whole objects, not patches: a patch omits binary files, and the patches of a short history can be larger than any
disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from delegate.errors import excerpt
from delegate.runner.git.bare import read_ref
from delegate.runner.git.program import Git
from delegate.runner.publishing.change import BYTES_MAX
from delegate.runner.publishing.messages import Writer, find_message_problem
from delegate.runner.publishing.objects import contents_of, sizes_of
from delegate.runner.publishing.policy import find_likely_secrets
from delegate.runner.workspaces.mirrors import pushed_ref
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

BATCH_BYTES = 32 * 1000 * 1000  # held in memory at a time; a single object may be larger
ESCAPED = re.compile(rb"\\(.)", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    known_secrets: Callable[[bytes], list[str]]  # the names of this machine's secrets that occur in the data
    carried: frozenset[bytes]
    writer: Writer


async def find_history_problem(git: Git, workspace: Workspace, commit: str, rules: HistoryRules) -> str | None:
    """Why the commits that are not yet published cannot be published as they are; None: they can."""
    async with scratch_repository(git, workspace) as scratch:
        out = await anyio.to_thread.run_sync(published_commits, workspace)
        wanted = "".join(f"{name}\n" for name in (commit, *(f"^{old}" for old in out))).encode()
        carried = await _find_carried_problem(scratch, wanted, rules.carried)
        if carried is not None:
            return carried
        objects = _read_objects(await scratch.git("rev-list", "--objects", "--stdin", input=wanted))
        names = list(objects)
        sizes = await sizes_of(scratch, names)
        if sum(sizes) > BYTES_MAX:
            return f"they have {sum(sizes):,} bytes, too many to scan"
        for batch in _batches(names, sizes):
            found = await _find_object_problem(
                scratch, workspace.base.commit, {name: objects[name] for name in batch}, rules
            )
            if found is not None:
                return found
    return None


def published_commits(workspace: Workspace) -> tuple[str, ...]:
    """The base, and the branch as it was last fetched, including commits that people have added."""
    tip = read_ref(workspace.mirror, pushed_ref(workspace.repository, workspace.branch))
    return (workspace.base.commit,) if tip is None else (workspace.base.commit, tip)


def carried_names(workspace: Workspace) -> frozenset[bytes]:
    """The files copied from the user's checkout, each recorded as an ignore line."""
    try:
        lines = workspace.carried_excludes.read_bytes().splitlines()
    except FileNotFoundError:
        return frozenset()
    return frozenset(ESCAPED.sub(rb"\1", line.removeprefix(b"/")) for line in lines)


async def _find_carried_problem(scratch: ScratchRepository, wanted: bytes, names: frozenset[bytes]) -> str | None:
    if not names:
        return None
    asked = wanted + b"--\n" + b"".join(name + b"\n" for name in sorted(names))
    literal = {"GIT_LITERAL_PATHSPECS": "1"}
    touching = await scratch.git("rev-list", "--full-history", "--stdin", input=asked, extra=literal)
    return "one of them contains a file that was copied from your checkout" if touching else None


def _read_objects(listed: bytes) -> dict[str, bytes | None]:
    """Each object and a path at which it was found: None for a commit, empty for the root directory."""
    lines = (line.partition(b" ") for line in listed.split(b"\n") if line)
    return {name.decode(): path if separator else None for name, separator, path in lines}


def _batches(names: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    batch: list[str] = []
    taken = 0
    for name, size in zip(names, sizes, strict=True):
        if batch and taken + size > BATCH_BYTES:
            yield batch
            batch, taken = [], 0
        batch.append(name)
        taken += size
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secrets:
    shaped: Mapping[bytes, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    def describe_new(self, before: _Secrets) -> str | None:
        """The first secret that `before` does not contain."""
        for name in sorted(self.known - before.known):
            return f"one of them contains a secret of this machine ({excerpt(name)})"
        for value, kind in self.shaped.items():
            if value not in before.shaped:
                return f"one of them contains what looks like a secret ({kind})"
        return None


async def _find_object_problem(
    scratch: ScratchRepository, base: str, objects: Mapping[str, bytes | None], rules: HistoryRules
) -> str | None:
    contents = await contents_of(scratch, [name.encode() for name in objects])
    paired = [(path, content) for path, content in zip(objects.values(), contents, strict=True) if content is not None]
    problem, found = await anyio.to_thread.run_sync(_scan_objects, paired, rules)
    if problem is not None or not found:
        return problem
    # Only additions count, as in the change itself: the base may already contain the secret.
    before = await contents_of(scratch, [base.encode() + b":" + path for path, _ in found])
    for (_, now), content in zip(found, before, strict=True):
        problem = now.describe_new(await anyio.to_thread.run_sync(_find_secrets, content or b"", rules))
        if problem is not None:
            return problem
    return None


def _scan_objects(
    objects: Sequence[tuple[bytes | None, bytes]], rules: HistoryRules
) -> tuple[str | None, list[tuple[bytes, _Secrets]]]:
    """The problem of a commit, and the secrets in files and directories by path."""
    found = []
    for path, content in objects:
        secrets = _find_secrets(content, rules)
        if path is not None:
            if secrets.known or secrets.shaped:
                found.append((path, secrets))
            continue
        message = content.partition(b"\n\n")[2].decode(errors="replace")
        problem = secrets.describe_new(_Secrets()) or find_message_problem(message, rules.writer)
        if problem is not None:
            return problem, []
    return None, found


def _find_secrets(content: bytes, rules: HistoryRules) -> _Secrets:
    return _Secrets(shaped=dict(find_likely_secrets(content)), known=frozenset(rules.known_secrets(content)))
