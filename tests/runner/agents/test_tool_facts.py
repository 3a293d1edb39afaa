"""What a tool call tells: its verb, the file in the repository, and the lines of an edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from delegate.runner.agents.acp_updates import Updates
from delegate.runner.agents.base import Fact
from delegate.runner.agents.claude_reading import file_access
from delegate.runner.agents.timeline_facts import FileAccess, count_changes, in_repository, repository_root, tool

OLD, NEW = "a\nb\nc\n", "a\nB\nB2\nc\nd\n"


@pytest.mark.parametrize(
    ("given", "access"),
    [
        ({"file_path": "/r/a.py"}, FileAccess(path="/r/a.py")),
        ({"file_path": "/r/a.py", "content": "1\n2\n"}, FileAccess(path="/r/a.py", additions=2)),
        (
            {"file_path": "/r/a.py", "old_string": OLD, "new_string": NEW},
            FileAccess(path="/r/a.py", additions=3, deletions=1),
        ),
        (
            {"file_path": "/r/a.py", "edits": [{"old_string": OLD, "new_string": ""}, {"new_string": "x"}]},
            FileAccess(path="/r/a.py", additions=1, deletions=3),
        ),
        ({"command": "cat /r/a.py"}, None),
        ({"file_path": 7, "edits": "no"}, None),
    ],
)
def test_the_input_of_a_tool_names_the_file_and_the_size_of_an_edit(
    given: dict[str, object], access: FileAccess | None
) -> None:
    assert file_access(given) == access


def test_an_edit_too_long_to_compare_counts_all_its_lines() -> None:
    assert count_changes("x\n" * 501, "y\n" * 3) == (3, 501)


def test_a_diff_of_an_acp_agent_has_its_lines_counted() -> None:
    diff = {"type": "diff", "path": "/r/a.py", "oldText": OLD, "newText": NEW}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit", "kind": "edit", "rawInput": {"path": "x"}}

    (fact,) = Updates().apply_update({**call, "content": [diff]})

    assert (fact.data["path"], fact.data["additions"], fact.data["deletions"]) == ("/r/a.py", 3, 1)


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("Read", "src/a.py", "src/a.py"),
        ("Read", "{root}/src/../src/a.py", "src/a.py"),
        ("Read", "/etc/passwd", None),
        ("Read", "../beside.py", None),
        ("Read", "x = secret_margin(7)", None),
        ("Write", "{root}/src/new.py", "src/new.py"),
        ("Write", "{root}", None),
        ("Read", "{link}/src/a.py", "src/a.py"),
    ],
)
def test_only_a_path_inside_the_repository_is_told(name: str, path: str, found: str | None, tmp_path: Path) -> None:
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src" / "a.py").touch()
    (tmp_path / "beside.py").touch()
    link = tmp_path / "link"
    link.symlink_to(root)
    start = link if "{link}" in path else root

    fact = in_repository(called(name, path.format(root=root, link=root)), start, repository_root(start))

    assert fact.data.get("path") == found


def test_the_root_is_the_repository_around_the_directory(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.py").touch()

    fact = in_repository(called("Read", "c.py"), tmp_path / "a" / "b", repository_root(tmp_path / "a" / "b"))

    assert fact.data["path"] == "a/b/c.py"


def called(name: str, path: str) -> Fact:
    return tool(name, path, "id", FileAccess(path=path))
