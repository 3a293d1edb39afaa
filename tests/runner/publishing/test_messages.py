from __future__ import annotations

import pytest

from delegate.runner.publishing.messages import Writer, find_message_problem

ADA = Writer(issue="PER-44", email="ada@example.com")
CLOSES = "one of the messages would close an issue that the task is not about"


@pytest.mark.parametrize(
    "message",
    [
        "Fixes #1",
        "Tidy up\n\nCloses: #12\n",
        "resolve acme/shop#3",
        "Fixed GH-7",
        "closes https://github.com/acme/shop/issues/9",
        "Fixes PER-45",
        "Fixes PER-44, #3",
        "Fixes PER-44 and per-45",
        "This fixes\n#8",
    ],
)
def test_a_message_that_closes_other_issues_is_objected_to(message: str) -> None:
    assert find_message_problem(message, ADA) == CLOSES


@pytest.mark.parametrize(
    "message",
    [
        "Fix PER-44",
        "Fixes PER-44.\n\nSee #3 and PER-45",
        "Fixes https://linear.app/acme/issue/PER-44/rate-limit",
        "Fix UTF-8 names, SHA-256 sums and CVE-2024-1234",
        "Add a parser (#12)",
        "prefix #3",
        "Add\n\nCo-Authored-By: Claude <noreply@anthropic.com>",
        "Add\n\nSigned-off-by: Ada <Ada@example.com>",
        "",
    ],
)
def test_a_message_about_the_work_is_not(message: str) -> None:
    assert find_message_problem(message, ADA) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Signed-off-by: Linus <torvalds@example.com>", "Signed-off-by"),
        ("signed-off-by: Eve <eve@example.com> ada@example.com", "signed-off-by"),
        ("Reviewed-by: Ada <ada@example.com>", "Reviewed-by"),
        ("  Approved-By : somebody", "Approved-By"),
    ],
)
def test_a_message_that_speaks_for_people_is_objected_to(line: str, name: str) -> None:
    found = find_message_problem(f"Add a parser\n\n{line}\n", ADA)

    assert found == f"one of the messages speaks for another person ({name})"


@pytest.mark.parametrize(("message", "problem"), [("Fix #5: limit", None), ("Fixes #5, #6", CLOSES)])
def test_an_issue_in_the_users_own_words_may_be_closed(message: str, problem: str | None) -> None:
    writer = Writer(issue=None, email="ada@example.com", references=frozenset({"#5"}))

    assert find_message_problem(message, writer) == problem


def test_without_an_issue_keys_are_words() -> None:
    assert find_message_problem("Fixes PER-44", Writer(issue=None, email="ada@example.com")) is None
