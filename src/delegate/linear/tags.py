"""Reads the preferences of an issue from its labels, description and comments. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from delegate.linear.issues import IssueLabel, TrackedIssue
from delegate.model import Source
from delegate.preferences.labels import KEYS, PREFIXED, parse_labels, parse_tags
from delegate.preferences.resolve import PreferenceLayer

# `[repo=owner/name]`; Linear's editor escapes brackets and underscores.
BRACKETED = re.compile(rf"\\?\[\s*(?P<key>{'|'.join(KEYS)})\s*=\s*(?P<value>(?:\\[_*~.\-]|[^\]\[\s\\])+)\s*\\?\]", re.I)
ESCAPED = re.compile(r"\\([_*~.\-])")


def read_preferences(issue: TrackedIssue, request: str | None) -> list[PreferenceLayer]:
    """Read the layers of an issue, weakest first. `request` is the comment that asks for the work, if there is one."""
    layers = [*parse_labels([label.text for label in issue.labels])]
    layers += parse_tags(normalize_tags(issue.description), Source.DESCRIPTION)
    if request:
        layers += parse_tags(normalize_tags(request), Source.COMMENT)
    return layers


def normalize_tags(text: str) -> str:
    """Write tags in brackets, escaped or not, as `delegate:key=value`."""
    return BRACKETED.sub(_write_tag, text)


def _write_tag(found: re.Match[str]) -> str:
    value = ESCAPED.sub(lambda escaped: escaped[1], found["value"])
    return f" delegate:{found['key'].lower()}={value} "


def find_trigger(labels: Sequence[IssueLabel], old_ids: frozenset[str]) -> IssueLabel | None:
    """Return the label that was added and asks Delegate to work on the issue."""
    return next((label for label in labels if label.id not in old_ids and is_trigger(label)), None)


def is_trigger(label: IssueLabel) -> bool:
    """Whether the label alone asks for work: `delegate:…` or `delego:…`, not a label of a group."""
    return label.group is None and PREFIXED.fullmatch(label.name) is not None
