"""What a commit's message does when it is merged, beside being read. Pure.

A forge closes the issues that a message says are fixed, and people believe a line that tells who has reviewed. Neither
may come from an agent. `Co-authored-by` stays: agents sign their work with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from delegate.runner.forges.sanitize import KEYWORD

ISSUE_REFERENCE = r"(?:[\w.-]+/[\w.-]+)?#\d+|\bgh-\d+|https?://\S+/(?:issues?|work_items|pull|merge_requests)/\S+"
TRAILER = re.compile(r"^[ \t]*((signed-off|reviewed|acked|approved|tested)-by)[ \t]*:(.*)$", re.I | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """On whose behalf messages are written, and about what."""

    issue: str | None  # its key: a message may close it, that is what the work is for
    email: str  # with which `git commit --signoff` signs


def find_message_problem(message: str, writer: Writer) -> str | None:
    """Why it cannot stand as it is."""
    if _closes_others(message, writer.issue):
        return "the message of one of them would close an issue that the task is not about"
    for claim, kind, who in TRAILER.findall(message):
        if kind.lower() != "signed-off" or f"<{writer.email}>".lower() not in who.lower():
            return f"the message of one of them speaks for somebody else ({claim})"
    return None


def _closes_others(message: str, issue: str | None) -> bool:
    references = ISSUE_REFERENCE
    if issue and "-" in issue:  # of the same tracker; elsewhere `SHA-256` would be one
        references += rf"|\b{re.escape(issue.rpartition('-')[0])}-\d+"
    closing = re.compile(rf"\b{KEYWORD}\b[ \t]*:?\s*(?:{references})", re.I)
    named = re.compile(references, re.I)
    for found in closing.finditer(message):
        line = found[0] + message[found.end() :].partition("\n")[0]  # several may be named in a row
        if any(not _is_reference_to(name, issue) for name in named.findall(line)):
            return True
    return False


def _is_reference_to(reference: str, issue: str | None) -> bool:
    """By its key, or by an address with the key in it."""
    return issue is not None and issue.lower() in (reference.lower(), *re.split(r"[/?#.,;)]", reference.lower()))
