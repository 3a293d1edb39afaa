"""Computes what a commit changes against the base: a patch for people, and facts for the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from delegate.model import Change
from delegate.runner.git.program import Git
from delegate.runner.publishing.objects import contents_of, sizes_of
from delegate.runner.workspaces.scratch import ScratchRepository, scratch_repository
from delegate.wire.basics import PATCH_MAX

if TYPE_CHECKING:
    from delegate.runner.workspaces.worktrees import Workspace

# One process for everything. Attributes and configuration are ignored: no external diff, no text conversion.
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
CHARACTER_MAX = 4  # bytes of one UTF-8 character
BYTES_MAX = 200 * 1000 * 1000  # of a change; a larger one is neither scanned nor published


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    path: str  # invalid UTF-8 is replaced
    name: bytes
    mode: str  # as git writes it; ABSENT when the file was deleted
    old_mode: str
    blob: str
    is_binary: bool
    added: bytes  # the text of its new lines; all of a binary file
    is_new: bool  # the base has no file of this name
    target: str | None = None  # of a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    changed: tuple[ChangedFile, ...] = ()
    additions: int = 0
    deletions: int = 0
    size: int = 0  # bytes of the patch and of the new binary content

    @property
    def files(self) -> int:
        return len(self.changed)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.changed)


async def change_of(git: Git, workspace: Workspace, commit: str) -> tuple[Change, Stats]:
    base = workspace.base.commit
    async with scratch_repository(git, workspace) as scratch:
        output = await scratch.git(*DIFF, base, commit)
        patch, stats = await anyio.to_thread.run_sync(read_diff, output)
        stats = await _add_hidden_content(scratch, stats)
    text, is_cut = cut_patch(patch)
    return Change(base_commit=base, commit=commit, patch=text, is_cut=is_cut), stats


def cut_patch(patch: bytes) -> tuple[str, bool]:
    """Cuts the patch to its maximum size, at the end of a line."""
    text = patch[: PATCH_MAX * CHARACTER_MAX].decode(errors="replace").replace("\0", "\ufffd")
    if len(text) <= PATCH_MAX and len(patch) <= PATCH_MAX * CHARACTER_MAX:
        return text, False
    return text[: text.rfind("\n", 0, PATCH_MAX) + 1], True


def read_diff(output: bytes) -> tuple[bytes, Stats]:
    """Parses the output: a list of files, a list of their counts, and the patch. Pure."""
    raw, position = _read_raw(output)
    counts, position = _read_counts(output, position)
    patch = output[position + 1 :]
    sections = _sections(patch)
    changed = [
        ChangedFile(
            path=entry.name.decode(errors="replace"),
            name=entry.name,
            mode=entry.mode,
            old_mode=entry.old_mode,
            blob=entry.blob,
            is_binary=added == BINARY,
            added=b"\n".join(_added_lines(next(sections, b"")) for _ in range(entry.sections)),
            is_new=entry.is_new,
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
    sections: int  # of the patch: a file that became a link is deleted and created
    is_new: bool


def _read_raw(output: bytes) -> tuple[list[_Raw], int]:
    entries, position = [], 0
    while output[position : position + 1] == b":":
        meta, position = _field(output, position)
        old_mode, mode, _, blob, status = meta[1:].decode().split(" ")
        name, position = _field(output, position)
        if status[0] in "RC":
            name, position = _field(output, position)
        sections, is_new = 2 if status == "T" else 1, status[0] in "ARC"
        entries.append(_Raw(name=name, mode=mode, old_mode=old_mode, blob=blob, sections=sections, is_new=is_new))
    return entries, position


def _read_counts(output: bytes, position: int) -> tuple[list[tuple[bytes, bytes]], int]:
    counts = []
    while position < len(output) and output[position] != 0:
        line, position = _field(output, position)
        added, deleted, name = line.split(b"\t", 2)
        if not name:  # renamed: both names follow
            _, position = _field(output, position)
            _, position = _field(output, position)
        counts.append((added, deleted))
    return counts, position


def _field(output: bytes, position: int) -> tuple[bytes, int]:
    end = output.index(b"\0", position)
    return output[position:end], end + 1


def _sections(patch: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(patch):
        following = patch.find(SECTION, start)
        end = len(patch) if following < 0 else following + 1
        yield patch[start:end]
        start = end


def _added_lines(section: bytes) -> bytes:
    _, _, body = section.partition(b"\n@@")
    return b"\n".join(line[1:] for line in body.split(b"\n") if line.startswith(b"+"))


def _is_hidden(file: ChangedFile) -> bool:
    return file.is_binary and file.mode not in {ABSENT, GITLINK}


async def _add_hidden_content(scratch: ScratchRepository, stats: Stats) -> Stats:
    """Adds what the patch does not show: the targets of links and the content of binary files."""
    hidden = [file.blob for file in stats.changed if _is_hidden(file)]
    size = stats.size + sum(await sizes_of(scratch, hidden))
    links = [file.blob for file in stats.changed if file.mode == LINK]
    asked = [*links, *(hidden if size <= BYTES_MAX else ())]
    contents = await contents_of(scratch, [blob.encode() for blob in asked])
    found = {blob: content or b"" for blob, content in zip(asked, contents, strict=True)}
    return replace(stats, changed=tuple(_fill_content(file, found) for file in stats.changed), size=size)


def _fill_content(file: ChangedFile, found: Mapping[str, bytes]) -> ChangedFile:
    if file.blob not in found:
        return file
    content = found[file.blob]
    return replace(
        file,
        target=content.decode(errors="replace") if file.mode == LINK else None,
        added=content if file.is_binary else file.added,
    )
