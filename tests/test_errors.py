from __future__ import annotations

from pathlib import Path

import pytest

from delegate import errors
from delegate.errors import EXCERPT_MAX, BadData, DelegateError, NoSuchTask, excerpt


def all_errors(base: type[DelegateError] = DelegateError) -> list[type[DelegateError]]:
    found = [one for one in base.__subclasses__() if one.__module__ == errors.__name__]
    return [base, *(inner for one in found for inner in all_errors(one))]


def test_foreign_text_is_shown_on_one_line_and_cut() -> None:
    assert excerpt("plain Grüße") == "plain Grüße"
    assert excerpt("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert excerpt("x" * EXCERPT_MAX) == "x" * EXCERPT_MAX
    assert excerpt("x" * (EXCERPT_MAX + 1)) == "x" * EXCERPT_MAX + "…"


def test_a_path_is_shown_whole_because_it_is_there_to_be_used() -> None:
    long = Path("/" + "directory/" * 20)

    assert excerpt(long) == str(long)
    assert excerpt(Path("/a\nb")) == "/a\\nb"


def test_a_message_never_repeats_what_would_break_a_terminal() -> None:
    error = NoSuchTask(task_id="task-1\x1b]0;owned\x07\n" + "x" * 500)

    assert error.message.isprintable()
    assert len(error.message) < 200
    assert error.hint == "`delegate status` lists all tasks"


def test_braces_in_foreign_text_are_text() -> None:
    assert NoSuchTask(task_id="{0} {task_id} {").message == "no task {0} {task_id} {"


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_stands_in_the_tree_of_the_module(kind: type[DelegateError]) -> None:
    assert kind.__name__ in str(errors.__doc__)
    assert kind.__doc__
    assert (kind.exit_code == 3) == issubclass(kind, BadData)


def test_every_error_at_a_leaf_has_a_code_of_its_own() -> None:
    leaves = [kind for kind in all_errors() if not kind.__subclasses__() and kind is not errors.Reported]
    codes = [kind.code for kind in leaves]

    assert sorted(set(codes)) == sorted(codes)
