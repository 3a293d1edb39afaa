"""The name of the branch that a chain of tasks works on: made from checked parts only, the same at every try."""

from __future__ import annotations

import re
import unicodedata

from delegate.wire.runners import Assignment

WORDS_MAX = 40  # characters of the title; with key and id the name still fits a narrow column
SHORT_ID = 4


def branch_name(assignment: Assignment) -> str:
    """As in `per-44-rate-limit-runner-endpoints-3f2a`."""
    key = assignment.issue.key.lower() if assignment.issue else ""
    words = slug(title_of(assignment))
    return "-".join(part for part in (key, words or "task", assignment.lineage[-SHORT_ID:]) if part)


def title_of(assignment: Assignment) -> str:
    """What the work is called: by its issue, by its user, or by the first line of the request."""
    if assignment.issue is not None:
        return assignment.issue.title
    return assignment.title or first_line(assignment.prompt)


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def slug(text: str) -> str:
    """Small letters, digits and single dashes, cut between words."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", plain)
    kept = ""
    for word in words:
        longer = f"{kept}-{word}" if kept else word[:WORDS_MAX]
        if len(longer) > WORDS_MAX:
            break
        kept = longer
    return kept
