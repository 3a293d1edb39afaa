"""What a push carries beside the change: the agent's own commits, with every file, name and word that was ever in them.

Whole objects are looked at, not patches: a patch shows nothing of a binary file, and the patches of a short history can
be longer than all disks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from delegate.errors import shown
from delegate.runner.git.bare import read_refs
from delegate.runner.git.program import Git
from delegate.runner.publishing.change import BYTES_MAX
from delegate.runner.publishing.messages import Writer, against_message
from delegate.runner.publishing.objects import contents_of, sizes_of
from delegate.runner.publishing.policy import look_like_secrets
from delegate.runner.workspaces.scratch import Clean, clean_repository

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

PORTION = 32 * 1000 * 1000  # bytes that are held in memory at a time; a single object may have more
ESCAPED = re.compile(rb"\\(.)", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What to look for."""

    known: Callable[[bytes], list[str]]  # the names of this machine's secrets in data
    carried: frozenset[bytes]
    writer: Writer


async def against_history(git: Git, workspace: Workspace, commit: str, look: Look) -> str | None:
    """Why the commits between what is out already and this one cannot go out as they are; None: they can."""
    async with clean_repository(git, workspace) as clean:
        out = await anyio.to_thread.run_sync(already_out, workspace)
        wanted = "".join(f"{name}\n" for name in (commit, *(f"^{old}" for old in out))).encode()
        carried = await _carried(clean, wanted, look.carried)
        if carried is not None:
            return carried
        objects = _read_objects(await clean.git("rev-list", "--objects", "--stdin", input=wanted))
        names = list(objects)
        sizes = await sizes_of(clean, names)
        if sum(sizes) > BYTES_MAX:
            return f"they have {sum(sizes):,} bytes, more than is looked through"
        for portion in _portions(names, sizes):
            found = await _against(clean, workspace.base.commit, {name: objects[name] for name in portion}, look)
            if found is not None:
                return found
    return None


def already_out(workspace: Workspace) -> tuple[str, ...]:
    """The base, and what stood on the branch when it was last fetched: also what people have put there since."""
    tip = read_refs(workspace.mirror).get(f"refs/heads/{workspace.branch}")
    return (workspace.base.commit,) if tip is None else (workspace.base.commit, tip)


def carried_names(workspace: Workspace) -> frozenset[bytes]:
    """The files that came from the user's checkout: each was written down as an ignore line of its own."""
    try:
        lines = workspace.carried.read_bytes().splitlines()
    except FileNotFoundError:
        return frozenset()
    return frozenset(ESCAPED.sub(rb"\1", line.removeprefix(b"/")) for line in lines)


async def _carried(clean: Clean, wanted: bytes, names: frozenset[bytes]) -> str | None:
    if not names:
        return None
    asked = wanted + b"--\n" + b"".join(name + b"\n" for name in sorted(names))
    literal = {"GIT_LITERAL_PATHSPECS": "1"}
    touching = await clean.git("rev-list", "--full-history", "--stdin", input=asked, extra=literal)
    return "one of them has a file that was carried in from your checkout" if touching else None


def _read_objects(listed: bytes) -> dict[str, bytes | None]:
    """Each object and a path at which it was found; a commit has none, the topmost folder has an empty one."""
    lines = (line.partition(b" ") for line in listed.split(b"\n") if line)
    return {name.decode(): path if separator else None for name, separator, path in lines}


def _portions(names: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    portion: list[str] = []
    taken = 0
    for name, size in zip(names, sizes, strict=True):
        if portion and taken + size > PORTION:
            yield portion
            portion, taken = [], 0
        portion.append(name)
        taken += size
    if portion:
        yield portion


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secrets:
    shaped: Mapping[bytes, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    def words(self, before: _Secrets) -> str | None:
        """What is new since then."""
        for name in sorted(self.known - before.known):
            return f"one of them has a secret of this machine in it ({shown(name)})"
        for value, kind in self.shaped.items():
            if value not in before.shaped:
                return f"one of them has what looks like a secret in it ({kind})"
        return None


async def _against(clean: Clean, base: str, objects: Mapping[str, bytes | None], look: Look) -> str | None:
    contents = await contents_of(clean, [name.encode() for name in objects])
    paired = [(path, content) for path, content in zip(objects.values(), contents, strict=True) if content is not None]
    words, found = await anyio.to_thread.run_sync(_looked_through, paired, look)
    if words is not None or not found:
        return words
    # Only what was added counts, as in the change itself: a file that had one before is no reason.
    before = await contents_of(clean, [base.encode() + b":" + path for path, _ in found])
    for (_, now), content in zip(found, before, strict=True):
        words = now.words(await anyio.to_thread.run_sync(_secrets_in, content or b"", look))
        if words is not None:
            return words
    return None


def _looked_through(
    objects: Sequence[tuple[bytes | None, bytes]], look: Look
) -> tuple[str | None, list[tuple[bytes, _Secrets]]]:
    """What is against a commit; and what was found in files and folders, by their path."""
    found = []
    for path, content in objects:
        secrets = _secrets_in(content, look)
        if path is not None:
            if secrets.known or secrets.shaped:
                found.append((path, secrets))
            continue
        message = content.partition(b"\n\n")[2].decode(errors="replace")
        words = secrets.words(_Secrets()) or against_message(message, look.writer)
        if words is not None:
            return words, []
    return None, found


def _secrets_in(content: bytes, look: Look) -> _Secrets:
    return _Secrets(shaped=dict(look_like_secrets(content)), known=frozenset(look.known(content)))
