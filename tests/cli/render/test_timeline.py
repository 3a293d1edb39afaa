from __future__ import annotations

from typing import Any

import pytest

from delegate.cli.render.terminal import format_duration
from delegate.cli.render.timeline import FORMATTERS, format_event, format_model_name, format_touched, format_usage
from delegate.client.responses import EventData, UsageData
from delegate.model import EventKind
from delegate.preferences.models import short_model_name


def test_every_kind_of_event_has_its_words() -> None:
    assert set(FORMATTERS) == {kind.value for kind in EventKind}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("submitted", {}, "submitted"),
        ("claimed", {"runnerId": "runner-1", "attempt": 2}, "claimed by runner-1, attempt 2"),
        ("started", {"pid": 42, "argv0": "/bin/sh"}, "started /bin/sh, process 42"),
        ("session", {"sessionId": "s-1", "model": "sonnet"}, "session s-1, model sonnet"),
        ("session", {"sessionId": "s-1", "model": None}, "session s-1"),
        ("message", {"text": "I looked\nand found\x1b[2J it"}, "I looked and found\\x1b[2J it"),
        ("tool", {"name": "Edit", "summary": "src/a.py", "id": "t1"}, "tool  Edit src/a.py"),
        (
            "todo",
            {"items": [{"title": "look", "state": "completed"}, {"title": "fix", "state": "in_progress"}]},
            "todo  [x] look  [>] fix",
        ),
        ("todo", {"items": "odd"}, "todo  "),
        ("usage", {"costUsd": 1}, ""),
        ("ready", {}, "all dependencies have ended"),
        ("question", {"text": "which\none?", "options": ["a", "b"]}, "asks: which one? (a / b)"),
        ("question", {"text": "why?", "options": []}, "asks: why?"),
        ("answer", {"text": "b"}, "answered: b"),
        ("warning", {"text": "slow"}, "warning: slow"),
        (
            "preferences",
            {
                "choices": [
                    {"field": "agent", "value": "claude", "source": "default"},
                    {"field": "model", "value": "claude-sonnet-4-5", "source": "label"},
                ]
            },
            "preferences: agent claude (default), model sonnet-4-5 (label)",
        ),
        ("preferences", {"choices": "odd"}, "preferences: "),
        (
            "workspace",
            {"repository": "o/n", "base": "main", "baseCommit": "1" * 40, "branch": "work-1", "path": "/w/tree"},
            "workspace on branch work-1, from main at 1111111111",
        ),
        ("setup", {"command": "npm ci", "exitCode": 0, "seconds": 3.1}, "setup  npm ci · 3.1 s"),
        ("setup", {"command": "npm ci", "exitCode": 7, "seconds": 3.1}, "setup  npm ci · failed, exit code 7"),
        ("setup", {"carried": [".env", "a\nb"]}, "copied from your checkout: .env, a b"),
        ("prompt", {"characters": 12345}, "prompt of 12,345 characters"),
        ("prompt", {}, "prompt"),
        (
            "check",
            {"command": "make test", "ok": True, "passed": 17, "total": 17, "line": "17/17 · 1.2 s"},
            "check  make test · 17/17 · 1.2 s",
        ),
        ("check", {"command": "make test", "ok": False, "line": "exit 1"}, "check  make test · failed · exit 1"),
        (
            "commit",
            {"commit": "2" * 40, "files": 1, "additions": 10, "deletions": 2},
            "commit 2222222222, 1 file, +10 −2",
        ),
        ("push", {"branch": "work-1", "commit": "2" * 40}, "pushed work-1 at 2222222222"),
        ("pull_request", {"url": "https://x/1", "draft": False, "adopted": False}, "pull request https://x/1"),
        (
            "pull_request",
            {"url": "https://x/1", "draft": True, "adopted": True},
            "pull request https://x/1 (draft, already existed)",
        ),
        ("skipped", {"bytes": 12}, "12 bytes of output were dropped by the runner"),
        ("parked", {"until": "2026-01-02T03:04:05Z", "reason": "usage_limit"}, None),
        ("lost", {"runnerId": "runner-1"}, "runner lost: runner-1"),
        ("cancel_requested", {"reason": ""}, "cancel requested"),
        ("finished", {"state": "completed", "reason": "done", "message": ""}, "completed"),
        (
            "finished",
            {"state": "failed", "reason": "command_failed", "message": "it broke", "exitCode": 7},
            "failed (command_failed, exit code 7): it broke",
        ),
        ("from the future", {"x": 1}, ""),
    ],
)
def test_an_event_is_shown_in_one_line(kind: str, data: dict[str, Any], words: str | None) -> None:
    line = format_event(
        {"id": 1, "taskId": "task-1", "attemptId": None, "kind": kind, "at": "2026-01-01T00:00:00Z", "data": data}
    )

    if words is None:
        assert line.startswith("parked (usage_limit) until 2026-01-0")
    else:
        assert line == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0s"), (0.44, "0.4s"), (59.9, "59s"), (61, "1m"), (3599, "59m"), (7500, "2h05"), (400_000, "4d")],
)
def test_a_length_of_time_is_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_usage_names_only_what_is_known() -> None:
    nothing: UsageData = {
        "inputTokens": 0,
        "outputTokens": 0,
        "cacheReadTokens": 0,
        "cacheWriteTokens": 0,
        "costUsd": 0.0,
        "turns": 0,
    }

    assert format_usage(nothing) == ""
    used: UsageData = {
        **nothing,
        "inputTokens": 1200,
        "cacheReadTokens": 300,
        "outputTokens": 50,
        "costUsd": 0.01234,
        "turns": 1,
    }
    assert format_usage(used) == "1,500 tokens in, 50 out, $0.0123, 1 turn"


@pytest.mark.parametrize(
    "model", ["claude-sonnet-4-5", "claude-opus-4-6-20260101", "claude-3-7-sonnet", "opus", "gpt-5.5", ""]
)
def test_a_model_is_shown_as_everywhere_else(model: str) -> None:
    assert format_model_name(model) == short_model_name(model)


def edit(**data: object) -> EventData:
    return {
        "id": 1,
        "taskId": "task-1",
        "kind": "tool",
        "at": "2026-03-04T12:00:00Z",
        "attemptId": None,
        "data": {"verb": "edit", **data},
    }


def test_what_an_agent_has_edited_is_one_sentence() -> None:
    edits = [
        edit(path="a.ts", additions=40, deletions=2),
        edit(path="a.ts", additions=1),
        edit(path="b.ts", additions=7),
    ]

    assert format_touched(edits) == "2 files touched · 48 lines added"
    assert format_touched([edit(path="a.ts", additions=1)]) == "1 file touched · 1 line added"
    assert format_touched([edit(additions=3), edit(additions=2)]) == "5 lines added"
    assert format_touched([]) == ""
