"""Finds text in commit messages that would take effect on merge. Pure.

A forge closes the issues that a message says are fixed, and people trust lines such as `Reviewed-by`. Neither may come
from an agent. `Co-authored-by` is allowed: agents sign their work with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from delegate.runner.forges.sanitize import ISSUE_REFERENCE, KEYWORD

TRAILER = re.compile(r"^[ \t]*((signed-off|reviewed|acked|approved|tested)-by)[ \t]*:(.*)$", re.I | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """On whose behalf messages are written, and about what."""

    issue: str | None  # its key; messages may close this one
    email: str  # as written by `git commit --signoff`
    references: frozenset[str] = frozenset()  # the issues in the user's own words, in lower case


def find_message_problem(message: str, writer: Writer) -> str | None:
    """Why the message cannot be published; None when it can."""
    if _closes_others(message, writer.issue, writer.references):
        return "one of the messages would close an issue that the task is not about"
    for claim, kind, who in TRAILER.findall(message):
        if kind.lower() != "signed-off" or f"<{writer.email}>".lower() not in who.lower():
            return f"one of the messages speaks for another person ({claim})"
    return None


def _closes_others(message: str, issue: str | None, own: frozenset[str]) -> bool:
    references = ISSUE_REFERENCE
    if issue and "-" in issue:  # of the same tracker; otherwise `SHA-256` would match
        references += rf"|\b{re.escape(issue.rpartition('-')[0])}-\d+"
    closing = re.compile(rf"\b{KEYWORD}\b[ \t]*:?\s*(?:{references})", re.I)
    named = re.compile(references, re.I)
    for found in closing.finditer(message):
        line = found[0] + message[found.end() :].partition("\n")[0]  # a line may name several
        if any(name.lower() not in own and not _is_reference_to(name, issue) for name in named.findall(line)):
            return True
    return False


def _is_reference_to(reference: str, issue: str | None) -> bool:
    """By its key, or by a URL with the key in it."""
    return issue is not None and issue.lower() in (reference.lower(), *re.split(r"[/?#.,;)]", reference.lower()))
