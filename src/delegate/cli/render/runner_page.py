"""Formats what `delegate runner list` prints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from delegate.cli.render.terminal import OutputStyle, TableRow, format_duration, format_table, one_line, parse_time

if TYPE_CHECKING:
    from delegate.client.responses import RunnerData

HEADINGS = ("RUNNER", "STATE", "BUSY", "VERSION")
WITH_AGE = {"idle", "silent", "offline"}


def runner_table(runners: Sequence[RunnerData], style: OutputStyle) -> list[str]:
    rows = [
        TableRow(cells=_cells(runner, style.now), text=_text(runner, style.now), note=_note(runner))
        for runner in runners
    ]
    return format_table(HEADINGS, "TASKS OR AGENTS", rows, style) if rows else []


def _cells(runner: RunnerData, now: datetime) -> tuple[str, ...]:
    slots = runner["slots"]
    return one_line(runner["name"]), describe_state(runner, now), _of(slots["busy"], slots["total"]), _version(runner)


def describe_state(runner: RunnerData, now: datetime) -> str:
    """The state; of a runner that has not been seen lately, with the time since then."""
    if runner["state"] not in WITH_AGE:
        return runner["state"]
    age = format_duration((now - parse_time(runner["seenAt"])).total_seconds())
    return f"{runner['state']} · {age}"


def _of(busy: int, total: int) -> str:
    return f"{busy} of {total}"


def _version(runner: RunnerData) -> str:
    return one_line(runner["version"]) + (" (upgrade available)" if runner["upgradeAvailable"] else "")


def _text(runner: RunnerData, now: datetime) -> str:
    if runner["tasks"]:
        return ", ".join(f"{one_line(task['taskId'])} {one_line(task['title'])}" for task in runner["tasks"])
    agents = ", ".join(one_line(agent["name"]) for agent in runner["agents"]) or "no agents"
    return f"{agents}{_last(runner, now)}"


def _last(runner: RunnerData, now: datetime) -> str:
    last = runner["lastResult"]
    if last is None:
        return ""
    age = format_duration((now - parse_time(last["finishedAt"])).total_seconds())
    return f"; last: {one_line(last['taskId'])} {last['state']} {age} ago"


def _note(runner: RunnerData) -> str:
    logged_out = [agent["name"] for agent in runner["agents"] if agent["isLoggedIn"] is False]
    notes = [
        one_line(runner["problem"] or ""),
        f"not logged in: {', '.join(map(one_line, logged_out))}" if logged_out else "",
        f"tags: {', '.join(map(one_line, runner['tags']))}" if runner["tags"] else "",
    ]
    return "; ".join(note for note in notes if note)
