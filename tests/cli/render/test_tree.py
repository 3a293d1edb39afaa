from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.render.test_status import look, task
from tests.cli.scripted_relay import Run, answer

from delegate.cli.render.terminal import cells, is_ascii
from delegate.cli.render.tree import ASCII, LINES, draw

if TYPE_CHECKING:
    from delegate.client.responses import TaskData


def node(name: str, status: str, *depends_on: str, prompt: str = "") -> TaskData:
    """The number in the name says when it was made."""
    minute = int(name[-1])
    return task(
        taskId=name,
        status=status,
        dependsOn=list(depends_on),
        prompt=prompt or f"work {name}",
        createdAt=f"2026-03-01T11:0{minute}:00Z",
    )


CHAIN = [
    node("task-3", "queued", "task-2", prompt="npm run deploy"),
    node("task-2", "running", "task-1", prompt="npm test"),
    node("task-1", "completed", prompt="npm run build"),
]
DIAMOND = [
    node("task-1", "completed"),
    node("task-2", "completed", "task-1"),
    node("task-3", "running", "task-1"),
    node("task-4", "queued", "task-2", "task-3"),
    node("task-5", "queued", "task-4"),
]


def test_a_task_stands_under_the_one_it_waits_for() -> None:
    assert draw(CHAIN, look(), LINES) == [
        "task-1        completed  npm run build",
        "└─ task-2     running    npm test",
        "   └─ task-3  queued     npm run deploy",
    ]


def test_a_diamond_shows_its_end_once_and_refers_to_it() -> None:
    assert draw(DIAMOND, look(), LINES) == [
        "task-1           completed  work task-1",
        "├─ task-2        completed  work task-2",
        "│  └─ task-4     queued     work task-4",
        "│     └─ task-5  queued     work task-5",
        "└─ task-3        running    work task-3",
        "   └─ task-4     (above)",
    ]


def test_ascii_draws_the_same_tree() -> None:
    drawn = draw([*DIAMOND[:-1], node("task-5", "queued", "task-4", prompt="x" * 99)], look(), ASCII)

    assert "\n".join(drawn).isascii()
    assert drawn[1:4] == [
        "|- task-2        completed  work task-2",
        "|  `- task-4     queued     work task-4",
        f"|     `- task-5  queued     {'x' * 51}~",
    ]


def test_graphs_stand_apart_and_single_tasks_together() -> None:
    drawn = draw([node("task-5", "queued"), node("task-4", "queued"), *CHAIN, node("task-0", "failed")], look(), LINES)

    assert [line.split()[0] if line else "" for line in drawn] == [
        *("task-5", "task-4", ""),
        *("task-1", "└─", "└─", ""),
        "task-0",
    ]


def test_a_dependency_that_is_not_drawn_is_named() -> None:
    outside = [node("task-9", "queued", "task-7", "task-8"), node("task-6", "queued", "task-7")]

    assert draw(outside, look(), LINES) == [
        "task-9  queued  (after task-7 and 1 more) work task-9",
        "task-6  queued  (after task-7) work task-6",
    ]


def test_colour_paints_the_states_and_what_was_drawn_before() -> None:
    drawn = draw(DIAMOND, look(colour=True), LINES)

    assert drawn[0] == "task-1           \x1b[32mcompleted\x1b[0m  work task-1"
    assert drawn[4] == "└─ task-3        \x1b[34mrunning\x1b[0m    work task-3"
    assert drawn[5] == "   └─ task-4     \x1b[2m(above)\x1b[0m"
    assert draw(DIAMOND[:1], look(20, colour=True), LINES)[1] == "  \x1b[32mcompleted\x1b[0m work ta…"


def test_a_narrow_terminal_gets_two_lines_for_each_task() -> None:
    assert draw(DIAMOND, look(20), LINES) == [
        "task-1",
        "│ completed work ta…",
        "├ task-2",
        "│ │ completed work …",
        "│ └ task-4",
        "│   │ queued work t…",
        "│   └ task-5",
        "│       queued work…",
        "└ task-3",
        "  │ running work ta…",
        "  └ task-4",
        "      (above)",
    ]


@pytest.mark.parametrize("width", [20, 40, 52, 53, 80, 200])
@pytest.mark.parametrize("marks", [LINES, ASCII], ids=["lines", "ascii"])
def test_no_line_of_a_deep_graph_is_wider_than_the_terminal(width: int, marks: Any) -> None:
    chain = [
        task(
            taskId=f"task-{number:010}",
            dependsOn=[f"task-{number - 1:010}"] if number else [],
            prompt="日本語 " * 30,
            createdAt=f"2026-03-01T11:00:00.{number:03}Z",
        )
        for number in range(100)
    ]

    lines = draw(chain, look(width), marks)

    assert max(map(cells, lines)) <= width
    assert all(any(f"task-{number:010}" in line for line in lines) for number in range(100))


def test_the_tree_of_one_task_is_all_around_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("COLUMNS", "80")

    code, asked = run(answer({"tasks": CHAIN[::-1], "isCut": True}), "status", "--tree", "task-2")

    shown = capsys.readouterr()
    assert (code, asked[0].line) == (0, "GET /api/tasks/task-2/graph HTTP/1.1")
    assert shown.out == (
        "task-1        completed  npm run build\n"
        "`- task-2     running    npm test\n"
        "   `- task-3  queued     npm run deploy\n"
    )
    assert shown.err == "delegate: only 3 of the tasks connected to task-2 are shown\n"


def test_the_tree_of_all_is_drawn_from_the_newest(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    _, asked = run(answer({"tasks": CHAIN, "next": None}), "status", "--tree")

    assert asked[0].line == "GET /api/tasks?limit=20 HTTP/1.1"
    assert capsys.readouterr().out.splitlines()[1] == "└─ task-2     running    npm test"


def test_a_tree_as_json_is_its_tasks(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(answer({"tasks": CHAIN, "isCut": False}), "status", "--tree", "--json", "task-2")

    assert [line[:18] for line in capsys.readouterr().out.splitlines()] == [
        '{"taskId":"task-3"',
        '{"taskId":"task-2"',
        '{"taskId":"task-1"',
    ]


@pytest.mark.parametrize(
    ("environ", "encoding", "wanted"),
    [
        ({"LANG": "C"}, "utf-8", True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8", True),  # as Python itself sets it
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "utf-8", True),
        ({"LANG": "de_DE"}, "iso-8859-1", True),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, "utf-8", False),
        ({"LANG": "C.UTF-8"}, "utf-8", False),
        ({}, "UTF-8", False),
    ],
)
def test_lines_are_drawn_where_they_can_be_read(environ: dict[str, str], encoding: str, wanted: bool) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)

    assert is_ascii(environ, stream) is wanted
