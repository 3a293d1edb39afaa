from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.fakes.hostile import EVERYTHING, OSC_52, active

from delegate.model import Change, Usage
from delegate.runner.assignment import Assignment, assignment_of
from delegate.runner.checks import Checks
from delegate.runner.forges.body import pull_request_body
from delegate.runner.publishing.change import Stats
from delegate.runner.publishing.policy import PolicyVerdict
from delegate.runner.publishing.publication import PublicationDraft, ReviewFacts, body_facts, commit_message, title_of
from delegate.runner.workspaces.snapshot import Snapshot
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


def texts_of(work: Assignment) -> list[str]:
    """All that a forge reads: the commit's message, and the pull request's title and body."""
    snapshot = Snapshot(tree="1" * 40, head=None, base="2" * 40, descends=True, problem=None, dirty=())
    draft = PublicationDraft(
        commit="3" * 40,
        snapshot=snapshot,
        change=Change(base_commit="2" * 40, commit="3" * 40, patch=""),
        stats=Stats(),
        verdict=PolicyVerdict(denied=(), protected=()),
    )
    review = ReviewFacts(summary="Done.", checks=Checks(), model=None, usage=Usage(), duration=timedelta(seconds=1))
    return [commit_message(work), title_of(work), pull_request_body(body_facts(work, draft, review))]


@pytest.mark.promise("P19")
def test_the_words_of_an_agent_that_submitted_the_task_close_nothing() -> None:
    users = assignment("Fix #5", context="Also fix #6")
    agents = assignment("Fix #5", context="Also fix #6", submitted_by="task-0")

    assert all(active(text) for text in texts_of(users)), texts_of(users)
    assert not any(active(text) for text in texts_of(agents)), texts_of(agents)
