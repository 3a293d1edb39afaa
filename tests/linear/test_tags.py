from __future__ import annotations

import pytest

from delegate.linear.issues import IssueLabel
from delegate.linear.prompt import find_criteria
from delegate.linear.tags import find_trigger, normalize_tags
from delegate.model import Field, Source
from delegate.preferences.labels import parse_tags


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Do it. [repo=acme/api]", {Field.REPOSITORY: "acme/api"}),
        (r"\[repo=acme/api\_v2\]", {Field.REPOSITORY: "acme/api_v2"}),
        ("[Model=claude-opus-4-6] now", {Field.MODEL: "claude-opus-4-6"}),
        ("[effort = high]", {Field.EFFORT: "high"}),
        ("delegate:repo=acme/api", {Field.REPOSITORY: "acme/api"}),
        ("[see=this] [repo]", {}),
        ("`[repo=acme/api]`", {}),
    ],
)
def test_tags_in_brackets_are_read_also_when_linear_escaped_them(text: str, values: dict[Field, str]) -> None:
    found: dict[Field, str] = {}
    for layer in parse_tags(normalize_tags(text), Source.DESCRIPTION):
        found |= layer.values

    assert found == values


def test_only_an_added_label_that_names_delegate_starts_work() -> None:
    old = IssueLabel(id="1", name="delegate:codex", group=None)
    new = IssueLabel(id="2", name="delego:claude-sonnet-4-5", group=None)
    grouped = IssueLabel(id="3", name="codex", group="executor")
    other = IssueLabel(id="4", name="bug", group=None)

    assert find_trigger([old, grouped, other, new], frozenset({"1"})) == new
    assert find_trigger([old, grouped, other], frozenset({"1"})) is None


def test_acceptance_criteria_are_found() -> None:
    text = "Fix it.\n\n## Acceptance criteria\n- [ ] empty range\n* header row\n\n## Notes\n- not this"

    assert find_criteria(text) == ["empty range", "header row"]
    assert find_criteria("- not a section") == []
