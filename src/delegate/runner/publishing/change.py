"""What a commit changes against the base: a patch for people, and the facts that a policy judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from delegate.model import Change
from delegate.runner.git import Git
from delegate.runner.publishing.clean import Clean, clean_repository
from delegate.wire import PATCH_MAX

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

# Everything in one process. Nothing is asked of attributes or configuration: no external diff, no text conversion.
DIFF = (
    "diff-tree",
    "-r",
    "-z",
    "-M",
    "--raw",
    "--numstat",
    "--patch",
    "--full-index",
    "--no-ext-diff",
    "--no-textconv",
)
ABSENT, LINK, GITLINK = "000000", "120000", "160000"
BINARY = b"-"
SECTION = b"\ndiff --git "
CHARACTER_MAX = 4  # bytes of one


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    path: str  # bytes that are not UTF-8 are replaced
    name: bytes
    mode: str  # as git writes it; ABSENT when the file is gone
    old_mode: str
    blob: str
    is_binary: bool
    added: bytes  # the text of its new lines
    target: str | None = None  # where a link leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    changed: tuple[ChangedFile, ...] = ()
    additions: int = 0
    deletions: int = 0
    size: int = 0  # bytes: the patch, and the new content of what no patch shows

    @property
    def files(self) -> int:
        return len(self.changed)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.changed)


async def change_of(git: Git, workspace: Workspace, commit: str) -> tuple[Change, Stats]:
    base = workspace.base.commit
    async with clean_repository(git, workspace) as clean:
        output = await clean.git(*DIFF, base, commit)
        patch, stats = await anyio.to_thread.run_sync(read_diff, output)
        sizes = await _sizes(clean, [file.blob for file in stats.changed if _is_hidden(file)])
        targets = await _contents(clean, [file.blob for file in stats.changed if file.mode == LINK])
    changed = [replace(file, target=targets.get(file.blob)) if file.mode == LINK else file for file in stats.changed]
    text, is_cut = cut_patch(patch)
    change = Change(base_commit=base, commit=commit, patch=text, is_cut=is_cut)
    return change, replace(stats, changed=tuple(changed), size=stats.size + sizes)


def cut_patch(patch: bytes) -> tuple[str, bool]:
    """As much of it as is kept, up to the end of a line."""
    text = patch[: PATCH_MAX * CHARACTER_MAX].decode(errors="replace").replace("\0", "\ufffd")
    if len(text) <= PATCH_MAX and len(patch) <= PATCH_MAX * CHARACTER_MAX:
        return text, False
    return text[: text.rfind("\n", 0, PATCH_MAX) + 1], True


def read_diff(output: bytes) -> tuple[bytes, Stats]:
    """The patch and what it says; pure. The output is a list of files, a list of their counts, and the patch."""
    raw, place = _read_raw(output)
    counts, place = _read_counts(output, place)
    patch = output[place + 1 :]
    sections = _sections(patch)
    changed = [
        ChangedFile(
            path=entry.name.decode(errors="replace"),
            name=entry.name,
            mode=entry.mode,
            old_mode=entry.old_mode,
            blob=entry.blob,
            is_binary=added == BINARY,
            added=b"\n".join(_added(next(sections, b"")) for _ in range(entry.sections)),
        )
        for entry, (added, _) in zip(raw, counts, strict=True)
    ]
    stats = Stats(
        changed=tuple(changed),
        additions=sum(int(added) for added, _ in counts if added != BINARY),
        deletions=sum(int(deleted) for _, deleted in counts if deleted != BINARY),
        size=len(patch),
    )
    return patch, stats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    name: bytes
    mode: str
    old_mode: str
    blob: str
    sections: int  # of the patch: a file that became a link is deleted and made anew


def _read_raw(output: bytes) -> tuple[list[_Raw], int]:
    entries, place = [], 0
    while output[place : place + 1] == b":":
        meta, place = _field(output, place)
        old_mode, mode, _, blob, status = meta[1:].decode().split(" ")
        name, place = _field(output, place)
        if status[0] in "RC":
            name, place = _field(output, place)
        sections = 2 if status == "T" else 1
        entries.append(_Raw(name=name, mode=mode, old_mode=old_mode, blob=blob, sections=sections))
    return entries, place


def _read_counts(output: bytes, place: int) -> tuple[list[tuple[bytes, bytes]], int]:
    counts = []
    while place < len(output) and output[place] != 0:
        line, place = _field(output, place)
        added, deleted, name = line.split(b"\t", 2)
        if not name:  # renamed: both names follow
            _, place = _field(output, place)
            _, place = _field(output, place)
        counts.append((added, deleted))
    return counts, place


def _field(output: bytes, place: int) -> tuple[bytes, int]:
    end = output.index(b"\0", place)
    return output[place:end], end + 1


def _sections(patch: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(patch):
        following = patch.find(SECTION, start)
        end = len(patch) if following < 0 else following + 1
        yield patch[start:end]
        start = end


def _added(section: bytes) -> bytes:
    _, _, body = section.partition(b"\n@@")
    return b"\n".join(line[1:] for line in body.split(b"\n") if line.startswith(b"+"))


def _is_hidden(file: ChangedFile) -> bool:
    return file.is_binary and file.mode not in {ABSENT, GITLINK}


async def _sizes(clean: Clean, blobs: Sequence[str]) -> int:
    if not blobs:
        return 0
    answer = await clean.git("cat-file", "--batch-check=%(objectsize)", input="\n".join(blobs).encode())
    return sum(int(line) for line in answer.split())


async def _contents(clean: Clean, blobs: Sequence[str]) -> dict[str, str]:
    if not blobs:
        return {}
    answer = await clean.git("cat-file", "--batch=%(objectname) %(objectsize)", input="\n".join(blobs).encode())
    found, place = {}, 0
    while place < len(answer):
        end = answer.index(b"\n", place)
        blob, size = answer[place:end].decode().split()
        place = end + 1 + int(size)
        found[blob] = answer[end + 1 : place].decode(errors="replace")
        place += 1
    return found
