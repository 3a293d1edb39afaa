"""What `delegate runner list` and the orders for runners print."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cli.scripted_relay import Run, answer

from delegate.cli.render.runner_page import runner_table
from delegate.cli.render.terminal import OutputStyle

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STYLE = OutputStyle(width=100, colour=False, now=NOW, wraps=True)
FREE: dict[str, Any] = {
    "runnerId": "runner-1",
    "name": "studio",
    "state": "online",
    "seenAt": NOW.isoformat(),
    "version": "0.1.0",
    "upgradeAvailable": False,
    "agents": [{"name": "claude", "version": "2.0", "isLoggedIn": True}],
    "slots": {"busy": 0, "total": 4},
    "tasks": [],
    "lastResult": {
        "taskId": "task-1",
        "state": "completed",
        "reason": "done",
        "finishedAt": (NOW - timedelta(minutes=12)).isoformat(),
    },
    "tags": ["gpu"],
    "problem": None,
}
BUSY = {
    **FREE,
    "name": "marek-mbp",
    "state": "claiming",
    "slots": {"busy": 1, "total": 2},
    "tasks": [{"taskId": "task-2", "agent": "claude", "title": "rate limit", "startedAt": NOW.isoformat()}],
    "tags": [],
}
AWAY = {
    **FREE,
    "name": "old-box",
    "state": "idle",
    "seenAt": (NOW - timedelta(hours=3)).isoformat(),
    "upgradeAvailable": True,
    "lastResult": None,
    "tags": [],
    "agents": [{"name": "codex", "version": None, "isLoggedIn": False}],
    "problem": "the disk is full",
}
COUNTS = {"online": 2, "claiming": 1, "idle": 0, "total": 3}


def test_the_table_shows_state_age_slots_version_tasks_and_last_result() -> None:
    runners: Any = [BUSY, AWAY, FREE]

    assert runner_table(runners, STYLE) == [
        "RUNNER     STATE        BUSY    VERSION                    TASKS OR AGENTS",
        "marek-mbp  claiming     1 of 2  0.1.0                      task-2 rate limit",
        "old-box    idle · 3h00  0 of 4  0.1.0 (upgrade available)  codex",
        "  the disk is full; not logged in: codex",
        "studio     online       0 of 4  0.1.0                      claude; last: task-1 completed 12m ago",
        "  tags: gpu",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_fits_the_terminal(width: int) -> None:
    runners: Any = [BUSY, AWAY, FREE]

    lines = runner_table(runners, OutputStyle(width=width, colour=False, now=NOW, wraps=True))

    assert max(map(len, lines)) <= width


def test_the_head_line_leaves_out_zeros(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(answer({"runners": [BUSY], "next": None, "counts": COUNTS}), "runner", "list")

    assert (code, asked[0].line.split()[1]) == (0, "/api/runners?limit=20")
    assert capsys.readouterr().out.splitlines()[0] == "2 online · 1 claiming"


def test_json_is_one_runner_a_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(answer({"runners": [BUSY, FREE], "next": None, "counts": COUNTS}), "runner", "list", "--json")

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["marek-mbp", "studio"]


def test_a_token_is_printed_as_the_command_to_paste(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    invited = {"command": "delegate runner pair --relay-url U --pairing-token T", "installCommand": "uvx …"}

    code, asked = run(answer(invited, "201 Created"), "runner", "token", "--name", "studio")

    captured = capsys.readouterr()
    assert (code, json.loads(asked[0].body)["name"]) == (0, "studio")
    assert captured.out == "delegate runner pair --relay-url U --pairing-token T\n"
    assert "works once" in captured.err


@pytest.mark.parametrize(
    ("words", "path", "body", "sentence"),
    [
        (("drain", "marek-mbp"), "/api/runners/marek-mbp/drain", {}, "marek-mbp finishes 1 task and takes no new ones"),
        (("resume", "marek-mbp"), "/api/runners/marek-mbp/resume", {}, "marek-mbp takes tasks"),
        (("revoke", "marek-mbp"), "/api/runners/marek-mbp/revoke", {}, "marek-mbp is revoked"),
        (("rename", "old", "marek-mbp"), "/api/runners/old/rename", {"name": "marek-mbp"}, "old is now marek-mbp"),
    ],
)
def test_an_order_is_sent_and_confirmed(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    path: str,
    body: dict[str, str],
    sentence: str,
) -> None:
    code, asked = run(answer(BUSY), "runner", *words)

    assert (code, asked[0].line.split()[1], json.loads(asked[0].body)) == (0, path, body)
    assert capsys.readouterr().out.startswith(sentence)


def test_a_name_that_would_change_the_path_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(answer(BUSY), "runner", "drain", "../x")

    assert (code, asked) == (5, [])
    assert "no runner ../x" in capsys.readouterr().err
