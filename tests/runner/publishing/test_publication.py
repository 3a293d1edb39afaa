from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.hostile import EVERYTHING, OSC_52, active

from delegate.runner.assignment import Assignment, assignment_of
from delegate.runner.publishing.publication import commit_message
from delegate.wire.runners import AssignmentView


def assignment(prompt: str = "Do it.", **more: Any) -> Assignment:
    known = {"attempt_id": "att-1", "task_id": "task-1", "fence": 1, "number": 1, "agent": "claude"}
    known |= {"timeout_ms": 1000, "max_output": 1024, "lineage": "task-1", "mode": "pull_request"}
    return assignment_of(AssignmentView.model_validate({**known, "prompt": prompt, **more}))


def test_a_commit_is_named_after_its_issue_its_title_or_the_first_line() -> None:
    issue = {"key": "PER-44", "title": "Rate limit the endpoints"}

    assert commit_message(assignment("Add a parser\nand tests")) == "Add a parser\n\nDelegate-Task: task-1\n"
    assert commit_message(assignment(title="A parser")).startswith("A parser\n\n")
    named = "Rate limit the endpoints\n\nFor PER-44.\n\nDelegate-Task: task-1\n"
    assert commit_message(assignment(title="x", issue=issue)) == named


def test_a_long_title_is_cut_visibly() -> None:
    subject = commit_message(assignment("word " * 40)).splitlines()[0]

    assert len(subject) <= 72
    assert subject.endswith("…")


@pytest.mark.promise("P19")
def test_a_commit_closes_calls_and_drives_nothing() -> None:
    hostile = [f"{OSC_52}Fixes #1 @somebody <!-- x -->", *EVERYTHING]

    issues = [{"key": "PER-1", "title": text} for text in hostile]
    assert [issue for issue in issues if active(commit_message(assignment(issue=issue)))] == []
    own = {"Fixes #1", "closes acme/other#2"}  # numbers in the user's own words are the task's own
    assert [text for text in hostile if not own.issuperset(active(commit_message(assignment(text))))] == []
