"""Writes the prompt for an issue. Pure.

All of it is text that others wrote; the runner fences it and shows what is hidden in it. Comments are quoted line by
line, so that none can pass for the description or for another comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from delegate.linear.issues import IssueComment, TrackedIssue
from delegate.linear.payloads import Guidance

DESCRIPTION_MAX = 120_000  # characters
COMMENTS_MAX = 60_000  # characters of all comments together; the newest are kept
GUIDANCE_MAX = 20_000
REQUEST_MAX = 20_000
LINKS_MAX = 20
CRITERIA_MAX = 50
CUT = "\n[the rest is left out; it is too long]"
CRITERIA = re.compile(
    r"^#{1,6}\s*(?:acceptance(?:\s+criteria)?|definition\s+of\s+done|validation)\s*:?\s*$(?P<body>.*?)(?=^#{1,6}\s|\Z)",
    re.I | re.M | re.S,
)
BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?(?P<text>\S.*)$", re.M)


def write_prompt(issue: TrackedIssue, guidance: Sequence[Guidance], request: str | None) -> str:
    parts = [
        _cut(issue.description.strip(), DESCRIPTION_MAX) or issue.title,
        f"Parent issue: {issue.parent}" if issue.parent else "",
        _section("Links of the issue", [f"- {title}: {url}" for title, url in issue.links[:LINKS_MAX]]),
        _section("Comments on the issue, oldest first", _quote_comments(issue.comments)),
        _section("Guidance of the workspace", [_quote(f"({one.origin}) {one.body}") for one in _bounded(guidance)]),
        _section("The comment that asks for this work", [_quote(_cut(request, REQUEST_MAX))] if request else []),
        _checklist(issue.description),
    ]
    return "\n\n".join(part for part in parts if part).replace("\x00", "\N{REPLACEMENT CHARACTER}")


def find_criteria(description: str) -> list[str]:
    """Return the entries of the section with acceptance criteria."""
    found = CRITERIA.search(description)
    return [bullet["text"].strip() for bullet in BULLET.finditer(found["body"])][:CRITERIA_MAX] if found else []


def _checklist(description: str) -> str:
    criteria = find_criteria(description)
    if not criteria:
        return ""
    return _section(
        "Checklist. End your summary with this list, and mark each entry that is done and checked",
        [f"- [ ] {text}" for text in criteria],
    )


def _quote_comments(comments: Sequence[IssueComment]) -> list[str]:
    kept: list[str] = []
    size = 0
    for comment in reversed(comments):
        if comment.is_by_app:
            continue
        text = _quote(f"{comment.author}: {comment.body}")
        size += len(text)
        if size > COMMENTS_MAX:
            kept.append("[older comments are left out]")
            break
        kept.append(text)
    return kept[::-1]


def _bounded(guidance: Sequence[Guidance]) -> list[Guidance]:
    size, kept = 0, []
    for one in guidance:
        size += len(one.body)
        if size <= GUIDANCE_MAX:
            kept.append(one)
    return kept


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", "", *lines]) if lines else ""


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.strip().splitlines())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + CUT
