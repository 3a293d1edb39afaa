"""Classifies the paths that git listed in an agent's worktree, without following or opening any."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from delegate.runner.git.names import is_git_reserved

OVERSIZED = 2 * 1024**3  # bytes; reading a larger file takes minutes every time
UNTRACKED = b"?"


class SkipReason(StrEnum):
    NESTED = "is a nested repository"
    SPECIAL = "is neither a file nor a link"
    UNREADABLE = "cannot be read"
    OVERSIZED = "is larger than 2 GiB"
    RESERVED_NAME = "has a name that git reserves"
    FILTERED = "is stored through a filter (such as git-lfs), which is not run"
    SHARED = "is a hard link to a file outside of the change"  # the only kind that is in the tree


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPath:
    path: str
    kind: SkipReason

    @property
    def is_submodule(self) -> bool:
        """A directory that is a gitlink in the commit."""
        return self.kind is SkipReason.NESTED and not self.path.endswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedPaths:
    changed: tuple[bytes, ...]  # to be staged as they are now, which may be deleted
    gone: tuple[bytes, ...]  # tracked names whose file git cannot stage
    directories: tuple[bytes, ...]  # tracked names that are directories
    skipped: tuple[SkippedPath, ...]


def classify_paths(tree: Path, listed: bytes) -> ClassifiedPaths:
    """`listed`: NUL-terminated entries of a tag, a space and a name; a name may occur twice."""
    classifier = _Classifier(root=os.fsencode(tree) + b"/")
    tags = {entry[2:]: entry[:1] for entry in listed.split(b"\0") if entry}
    for path, tag in tags.items():
        classifier.classify(path, is_tracked=tag != UNTRACKED)
    return classifier.result()


@dataclass(slots=True, kw_only=True)
class _Classifier:
    root: bytes
    changed: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    directories: list[bytes] = field(default_factory=list)
    skipped: list[SkippedPath] = field(default_factory=list)
    behind_links: dict[bytes, bool] = field(default_factory=dict)
    linked: dict[tuple[int, int], tuple[int, list[bytes]]] = field(default_factory=dict)

    def classify(self, path: bytes, *, is_tracked: bool) -> None:
        if path.endswith(b"/"):
            self._skip(path, SkipReason.NESTED)
        elif self._is_behind_link(_parent(path)):
            # Git would list the file behind the link, and then fail to add it.
            self.gone.append(path)
        else:
            self._classify_entry(path, is_tracked=is_tracked)

    def _classify_entry(self, path: bytes, *, is_tracked: bool) -> None:
        try:
            found = os.lstat(self.root + path)
        except (FileNotFoundError, NotADirectoryError):
            self.changed.append(path)
            return
        if stat.S_ISDIR(found.st_mode):
            self.directories.append(path)
            return
        reason = self._find_skip_reason(path, found)
        if reason is None:
            self.changed.append(path)
            return
        self._skip(path, reason)
        if is_tracked and reason is SkipReason.SPECIAL:
            self.gone.append(path)

    def _find_skip_reason(self, path: bytes, found: os.stat_result) -> SkipReason | None:
        is_link = stat.S_ISLNK(found.st_mode)
        if is_git_reserved(path, is_link=is_link):
            return SkipReason.RESERVED_NAME
        if is_link:
            return None
        if not stat.S_ISREG(found.st_mode):
            return SkipReason.SPECIAL
        if found.st_size > OVERSIZED:
            return SkipReason.OVERSIZED
        if not os.access(self.root + path, os.R_OK):
            return SkipReason.UNREADABLE
        if found.st_nlink > 1:
            self.linked.setdefault((found.st_dev, found.st_ino), (found.st_nlink, []))[1].append(path)
        return None

    def _is_behind_link(self, directory: bytes) -> bool:
        if not directory:
            return False
        known = self.behind_links.get(directory)
        if known is None:
            known = self._is_behind_link(_parent(directory)) or _is_link(self.root + directory)
            self.behind_links[directory] = known
        return known

    def _skip(self, path: bytes, kind: SkipReason) -> None:
        self.skipped.append(SkippedPath(path=path.decode(errors="replace"), kind=kind))

    def result(self) -> ClassifiedPaths:
        for names, paths in self.linked.values():
            if names > len(paths):
                for path in paths:
                    self._skip(path, SkipReason.SHARED)
        return ClassifiedPaths(
            changed=tuple(self.changed),
            gone=tuple(self.gone),
            directories=tuple(self.directories),
            skipped=tuple(self.skipped),
        )


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _is_link(path: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False
