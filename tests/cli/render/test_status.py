from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from delegate.cli.render.status import relay_page, task_table
from delegate.cli.render.task_page import task_page
from delegate.cli.render.terminal import OutputStyle, cells

if TYPE_CHECKING:
    from delegate.client.responses import RelayData, TaskData

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NO_USAGE = {
    "inputTokens": 0,
    "outputTokens": 0,
    "cacheReadTokens": 0,
    "cacheWriteTokens": 0,
    "costUsd": 0.0,
    "turns": 0,
}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time  # noqa: PLC0415  only to make the zone count

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def task(**changes: Any) -> TaskData:
    plain: Any = {
        "taskId": "task-1f0c9a77e2",
        "status": "completed",
        "priority": "P2",
        "agent": "claude",
        "model": None,
        "effort": None,
        "permissionMode": None,
        "prompt": "fix the failing test",
        "workingDirectory": "/home/ada/shop",
        "machine": "lovelace-01020304",
        "timeout": 1_800_000,
        "maxOutputBuffer": 10_485_760,
        "maxBudgetUsd": None,
        "maxTurns": None,
        "rerun": False,
        "mode": "in_place",
        "repository": None,
        "base": None,
        "title": None,
        "issue": None,
        "context": None,
        "choices": [],
        "dependsOn": [],
        "continueFrom": None,
        "onDependencyFailure": "cancel",
        "scheduleId": None,
        "questions": [],
        "lineage": "task-1f0c9a77e2",
        "result": None,
        "exitCode": None,
        "reason": None,
        "message": None,
        "advice": None,
        "why": None,
        "createdAt": "2026-03-01T11:55:00Z",
        "startedAt": None,
        "finishedAt": None,
        "notBefore": None,
        "retryOf": None,
        "parentTaskId": None,
        "retryCount": 0,
        "attempt": 0,
        "sessionId": None,
        "usage": NO_USAGE,
    }
    return {**plain, **changes}  # type: ignore[typeddict-item]  # built from parts


TASKS = [
    task(taskId="task-0000000003", status="queued", why="no runner has the agent claude", prompt="add a rate limit"),
    task(taskId="task-0000000002", status="running", agent="shell", priority="P0", prompt="make\n\ttest\x1b[2J"),
    task(
        taskId="task-0000000001",
        status="failed",
        agent="shell",
        prompt="exit 7",
        reason="command_failed",
        message="the command ended with exit code 7",
        createdAt="2026-02-27T12:00:00Z",
    ),
]


def look(width: int = 80, *, colour: bool = False) -> OutputStyle:
    return OutputStyle(width=width, colour=colour, now=NOW)


def test_the_table_of_tasks_says_why_they_wait_and_how_they_ended() -> None:
    assert task_table(TASKS, look()) == [
        "TASK             STATUS   P   AGENT   AGE  PROMPT",
        "task-0000000003  queued   P2  claude  5m   add a rate limit",
        "  why: no runner has the agent claude",
        "task-0000000002  running  P0  shell   5m   make test\\x1b[2J",
        "task-0000000001  failed   P2  shell   2d   exit 7",
        "  command_failed: the command ended with exit code 7",
    ]


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 200])
def test_no_line_of_the_table_is_wider_than_the_terminal(width: int) -> None:
    long = task(prompt="日本語 " * 100, why="because " * 50, status="queued")

    lines = task_table([*TASKS, long], look(width))

    assert max(map(cells, lines)) <= width


def test_a_narrow_terminal_gets_a_block_for_each_task() -> None:
    assert task_table(TASKS[:1], look(20)) == [
        "task-0000000003",
        "  queued P2 claude …",
        "  add a rate limit",
        "  why: no runner ha…",
    ]


LACKS = (
    "no other runner is accepting work: the machine has been short of memory since 2026-02-19 08:00:12 UTC: "
    "3.1 GiB of memory are available, running agents are expected to take 800.0 MiB of it, and one more needs 1.5 GiB"
)


@pytest.mark.parametrize("width", [20, 40, 64, 80, 120])
def test_on_a_terminal_a_task_says_all_of_why_it_waits(width: int) -> None:
    waiting = task(status="queued", why=LACKS, prompt="日本語")
    terminal = OutputStyle(width=width, colour=False, now=NOW, wraps=True)

    lines = task_table([waiting], terminal)

    assert max(map(cells, lines)) <= width
    assert f"why: {LACKS}" in " ".join(" ".join(lines).split())


def test_a_note_in_wide_letters_or_without_spaces_stays_inside_the_terminal() -> None:
    asks = [task(status="queued", why=why) for why in ("日本語" * 30, "x" * 90, "")]

    lines = task_table(asks, OutputStyle(width=20, colour=False, now=NOW, wraps=True))

    assert max(map(cells, lines)) <= 20
    assert sum(line.count("x") for line in lines if set(line) == {" ", "x"}) == 90


def test_colour_paints_the_status_and_the_notes() -> None:
    heading, row = task_table(TASKS[1:2], look(colour=True))

    assert heading == "TASK             STATUS   P   AGENT  AGE  PROMPT"
    assert row == "task-0000000002  \x1b[34mrunning\x1b[0m  P0  shell  5m   make test\\x1b[2J"
    assert task_table(TASKS[:1], look(20, colour=True))[1::2] == [
        "  \x1b[33mqueued\x1b[0m P2 claude …",
        "\x1b[2m  why: no runner ha…\x1b[0m",
    ]


def test_the_page_of_a_task_has_its_facts_and_its_timeline() -> None:
    ended = task(
        status="failed",
        agent="shell",
        prompt="exit 7",
        exitCode=7,
        reason="command_failed",
        message="the command ended with exit code 7",
        advice="read its output with `delegate logs`",
        startedAt="2026-03-01T11:55:01Z",
        finishedAt="2026-03-01T11:55:03Z",
        attempt=1,
        retryOf="task-0000000000",
    )
    attempt: Any = {
        "runnerId": "runner-a1",
        "number": 1,
        "startedAt": "2026-03-01T11:55:01Z",
        "finishedAt": "2026-03-01T11:55:03Z",
    }
    events: list[Any] = [
        {"kind": "submitted", "at": "2026-03-01T11:55:00Z", "data": {}},
        {"kind": "usage", "at": "2026-03-01T11:55:01Z", "data": {}},
        {"kind": "claimed", "at": "2026-03-01T11:55:01Z", "data": {"runnerId": "runner-a1", "attempt": 1}},
        {
            "kind": "finished",
            "at": "2026-03-01T11:55:03Z",
            "data": {"state": "failed", "reason": "command_failed", "exitCode": 7},
        },
    ]

    assert task_page({"task": ended, "checkpoint": None, "attempts": [attempt], "events": events}, look()) == [
        "task-1f0c9a77e2  failed",
        "",
        "  prompt     exit 7",
        "  agent      shell",
        "  directory  /home/ada/shop",
        "  retry of   task-0000000000",
        "  reason     command_failed, exit code 7",
        "  message    the command ended with exit code 7",
        "  hint       read its output with `delegate logs`",
        "  submitted  2026-03-01 11:55:00, P2",
        "  ran        2.0s on runner-a1, attempt 1",
        "",
        "  11:55:00  submitted",
        "  11:55:01  claimed by runner-a1, attempt 1",
        "  11:55:03  failed (command_failed, exit code 7)",
    ]


def test_the_time_between_attempts_does_not_count() -> None:
    waiting = task(status="waiting", startedAt="2026-02-22T11:00:00Z", attempt=0)
    moments = [("2026-02-22T11:00:00Z", "2026-02-22T11:01:00Z"), ("2026-03-01T11:00:00Z", "2026-03-01T11:02:00Z")]
    attempts: list[Any] = [
        {"runnerId": "runner-a1", "number": 1, "startedAt": began, "finishedAt": ended} for began, ended in moments
    ]

    page = task_page({"task": waiting, "checkpoint": None, "attempts": attempts, "events": []}, look())

    assert "  ran        3m on runner-a1, attempt 1" in page


def test_the_page_of_a_task_shows_what_came_of_it() -> None:
    result = {
        "summary": "Fixed the parser.\nAdded a test.",
        "base": "main",
        "baseCommit": "1" * 40,
        "branch": "per-44-fix-the-parser-3f2a",
        "commit": "2" * 40,
        "pullRequest": "https://github.example/ada/shop/pull/7",
        "files": 2,
        "additions": 10,
        "deletions": 3,
        "checksPassed": 17,
        "checksTotal": 17,
        "isKept": False,
    }
    done = task(
        reason="done",
        model="claude-sonnet-4-5",
        workingDirectory=None,
        repository="ada/shop",
        mode="pull_request",
        issue={"key": "PER-44", "title": "fix the parser", "url": "https://linear.example/PER-44"},
        title="parser",
        context="use the table",
        choices=[
            {"field": "agent", "value": "claude", "source": "label"},
            {"field": "model", "value": "claude-sonnet-4-5", "source": "label"},
            {"field": "base", "value": "main", "source": ".delegate.toml"},
        ],
        result=result,
    )

    assert task_page({"task": done, "checkpoint": None, "attempts": [], "events": []}, look()) == [
        "task-1f0c9a77e2  completed",
        "",
        "  prompt        fix the failing test",
        "  added         use the table",
        "  title         parser",
        "  issue         PER-44 fix the parser https://linear.example/PER-44",
        "  agent         claude sonnet-4-5",
        "  decided       agent claude (label), model sonnet-4-5 (label), base main (.delegate.toml)",
        "  repository    ada/shop",
        "  mode          in a fresh worktree, to a pull request",
        "  branch        per-44-fix-the-parser-3f2a at 2222222222",
        "  pull request  https://github.example/ada/shop/pull/7",
        "  change        2 files, +10 −3",
        "  checks        17/17 passed",
        "  summary       Fixed the parser. Added a test.",
        "  submitted     2026-03-01 11:55:00, P2",
        "",
    ]


def test_work_that_is_kept_says_where_to_find_it() -> None:
    kept = {**dict.fromkeys(("branch", "commit", "pullRequest")), "files": 0, "checksTotal": 0, "summary": ""}

    page = task_page(
        {"task": task(result={**kept, "isKept": True}), "checkpoint": None, "attempts": [], "events": []}, look()
    )

    assert "  kept       work that was not pushed; `delegate workspaces` lists it" in page


def page_of(checkpoint: Any = None, **changes: Any) -> list[str]:
    return task_page({"task": task(**changes), "checkpoint": checkpoint, "attempts": [], "events": []}, look())


QUESTION = {
    "text": "Which database?\nThe tests need one.",
    "options": ["PostgreSQL", "SQLite"],
    "askedAt": "2026-03-01T11:59:00Z",
    "answer": None,
}


def test_a_task_that_asks_says_what_and_how_to_answer() -> None:
    assert page_of(status="waiting", questions=[QUESTION], workingDirectory=None) == [
        "task-1f0c9a77e2  waiting",
        "",
        "  Which database?",
        "  The tests need one.",
        "    · PostgreSQL",
        "    · SQLite",
        "",
        '  delegate answer task-1f0c9a77e2 "PostgreSQL"',
        "",
        "  prompt     fix the failing test",
        "  agent      claude",
        "  submitted  2026-03-01 11:55:00, P2",
        "",
    ]


@pytest.mark.parametrize(
    ("questions", "command"),
    [
        ([{**QUESTION, "options": []}], "  delegate answer task-1f0c9a77e2 TEXT"),
        ([QUESTION, {**QUESTION, "text": "And where?"}], "  delegate answer task-1f0c9a77e2 TEXT"),
        ([{**QUESTION, "options": ['the "big" one', "$HOME"]}], "  delegate answer task-1f0c9a77e2 TEXT"),
    ],
    ids=["no options", "two questions", "words a shell would change"],
)
def test_an_answer_that_cannot_be_guessed_is_left_to_the_reader(questions: list[Any], command: str) -> None:
    assert command in page_of(status="waiting", questions=questions)


def test_the_table_shows_what_a_waiting_task_asks() -> None:
    waiting = task(status="waiting", questions=[QUESTION], why="an answer is missing")

    assert task_table([waiting], look())[-1] == "  asks: Which database? The tests need one."


def test_an_answered_question_stays_on_the_page_and_an_ended_task_asks_nothing() -> None:
    answered = page_of(questions=[{**QUESTION, "answer": "SQLite"}])
    left = page_of(status="cancelled", questions=[QUESTION])

    assert "  answered   Which database? The tests need one. → SQLite" in answered
    assert not any("delegate answer" in line for line in left)


def test_the_page_of_a_task_says_where_it_comes_from() -> None:
    found = page_of(
        dependsOn=["task-a", "task-b", "task-c"],
        continueFrom="task-b",
        onDependencyFailure="run",
        scheduleId="schedule-1",
        retryOf="task-y",
        parentTaskId="task-x",
        retryCount=2,
        context="use the table",
    )

    assert found[6:10] == [
        "  continues   task-b",
        "  depends on  task-a, task-c, whether or not they complete",
        "  resumes     task-y, number 3 of the chain from task-x",
        "  schedule    schedule-1",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"agent": "shell", "lineage": "task-y"}, "  retry of   task-y"),
        ({"agent": "claude", "lineage": "task-y"}, "  resumes    task-y"),
        ({"agent": "claude"}, "  retry of   task-y"),
    ],
    ids=["a command run again", "an agent that continues", "an agent that starts again"],
)
def test_continuing_and_starting_again_are_shown_differently(changes: dict[str, Any], line: str) -> None:
    assert line in page_of(retryOf="task-y", parentTaskId="task-y", retryCount=1, **changes)


def test_the_page_of_a_task_sums_up_its_checkpoint() -> None:
    left = {
        "branch": "main",
        "commit": "2" * 40,
        "dirtyFiles": [f"{name}.py" for name in "abcdef"],
        "outputTail": ["one", "two"],
    }
    nothing: dict[str, Any] = {"branch": None, "commit": None, "dirtyFiles": None, "outputTail": []}

    assert page_of(left)[-2] == (
        "  checkpoint  main at 2222222222, 6 changed files (a.py, b.py, c.py, d.py, e.py, …), "
        "the last 2 lines of output"
    )
    assert not any("checkpoint" in line for line in page_of(nothing))


def test_on_a_terminal_long_text_continues_under_its_beginning() -> None:
    event: Any = {"kind": "message", "at": "2026-03-01T11:55:00Z", "data": {"text": "I look at the tests first of all"}}
    detail: Any = {
        "task": task(prompt="make the parser accept tabs, and " + "x" * 30, workingDirectory=None),
        "checkpoint": None,
        "attempts": [],
        "events": [event],
    }
    terminal = OutputStyle(width=40, colour=False, now=NOW, wraps=True)

    assert task_page(detail, terminal)[2:] == [
        "  prompt     make the parser accept",
        "             tabs, and",
        f"             {'x' * 30}",
        "  agent      claude",
        "  submitted  2026-03-01 11:55:00, P2",
        "",
        "  11:55:00  I look at the tests first of",
        "            all",
    ]


def test_a_long_prompt_is_cut_visibly_on_the_page() -> None:
    page = task_page({"task": task(prompt="x" * 5000), "checkpoint": None, "attempts": [], "events": []}, look())

    assert page[2] == f"  prompt     {'x' * 400}… (5,000 characters)"


def test_the_page_of_the_relay_lists_its_runners() -> None:
    runner: Any = {
        "id": "runner-a1",
        "name": "vm-1",
        "pid": 42,
        "state": "busy",
        "taskId": "task-1",
        "agents": ["shell"],
    }
    idle: Any = {**runner, "id": "runner-b2", "name": "vm-2", "pid": 43, "state": "idle", "taskId": None}
    relay: RelayData = {
        "version": "0.1.0",
        "pid": 7,
        "database": "sqlite",
        "startedAt": "2026-03-01T11:55:00Z",
        "dailyBudgetUsd": 5.0,
        "spentTodayUsd": 1.25,
        "tasks": {"queued": 2, "failed": 0},
        "runners": {"online": 3, "claiming": 1, "idle": 0, "total": 4},
        "processes": [runner, idle],
    }

    assert relay_page("http://127.0.0.1:4000", relay, OutputStyle(width=40, colour=False, now=NOW, wraps=True)) == [
        "relay     http://127.0.0.1:4000 (process",
        "          7, version 0.1.0)",
        "database  sqlite",
        "tasks     2 queued",
        "spent     $1.25 of $5.00 today",
        "runners   3 online · 1 claiming",
        "",
        "vm-1",
        "  busy 42",
        "  task-1",
        "vm-2",
        "  idle 43",
        "  shell",
    ]
    assert relay_page("http://127.0.0.1:4000", relay, look()) == [
        "relay     http://127.0.0.1:4000 (process 7, version 0.1.0)",
        "database  sqlite",
        "tasks     2 queued",
        "spent     $1.25 of $5.00 today",
        "runners   3 online · 1 claiming",
        "",
        "NAME  STATE  PROCESS  TASK OR AGENTS",
        "vm-1  busy   42       task-1",
        "vm-2  idle   43       shell",
    ]
