"""Recognizes file names that some file system treats as git's own, such as `.GIT` or `git~1`."""

from __future__ import annotations

import re

# Characters that HFS+ ignores when it compares names.
INVISIBLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
SEPARATORS = re.compile(r"[/\\]")
RESERVED_NAMES = frozenset({".git", "git~1"})
NEVER_A_LINK = frozenset({".gitmodules", "gitmod~1"})


def is_git_reserved(path: bytes, *, is_link: bool) -> bool:
    """Whether git would silently leave out the path."""
    text = INVISIBLE.sub("", path.decode(errors="replace"))
    parts = [_normalize_windows_name(part) for part in SEPARATORS.split(text)]
    return not RESERVED_NAMES.isdisjoint(parts) or (is_link and parts[-1] in NEVER_A_LINK)


def _normalize_windows_name(name: str) -> str:
    return name.split(":", 1)[0].rstrip(". ").casefold()
