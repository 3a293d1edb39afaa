"""How a branch is named: our own grammar, narrower than git's, which takes `a;id` and worse. Pure."""

from __future__ import annotations

import re

PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
BRANCH = re.compile(rf"{PART}(/{PART}){{0,9}}")
LENGTH_MAX = 250
GRAMMAR = f"must be a branch: parts as {PART}, joined by /"
COMMIT = re.compile(r"[0-9a-fA-F]{40}([0-9a-fA-F]{24})?")


def branch_problem(name: str) -> str | None:
    """Why this is no name of a branch, in words that follow the name of a field."""
    if len(name) > LENGTH_MAX:
        return f"{GRAMMAR}, at most {LENGTH_MAX} characters in all"
    if BRANCH.fullmatch(name) is None:
        return GRAMMAR
    if COMMIT.fullmatch(name):
        return f"{GRAMMAR}; this is the name of a commit"
    if name.startswith("refs/") or name == "HEAD":
        return f"{GRAMMAR}; without refs/heads/, and not HEAD"
    if ".." in name or any(part.endswith((".", ".lock")) for part in name.split("/")):
        return f"{GRAMMAR}; without .. and with no . or .lock at the end of a part"
    return None
