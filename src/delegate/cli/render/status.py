"""Formats what `delegate status` and `delegate info` print: the task table and the relay page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from delegate.cli.render.terminal import OutputStyle, TableRow, format_duration, format_table, one_line, pad, parse_time

if TYPE_CHECKING:
    from delegate.client.responses import QuestionData, RelayData, RunnerCountsData, TaskData

HEADINGS = ("TASK", "STATUS", "P", "AGENT", "AGE")
PROCESS_HEADINGS = ("NAME", "STATE", "PROCESS")
LABEL = 8  # columns of the longest label about the relay


def task_table(tasks: Sequence[TaskData], style: OutputStyle) -> list[str]:
    entries = [TableRow(cells=_cells(task, style.now), text=task_name(task), note=task_note(task)) for task in tasks]
    return format_table(HEADINGS, "PROMPT", entries, style)


def _cells(task: TaskData, now: datetime) -> tuple[str, ...]:
    age = format_duration((now - parse_time(task["createdAt"])).total_seconds())
    return one_line(task["taskId"]), task["status"], task["priority"], one_line(task["agent"]), age


def task_name(task: TaskData) -> str:
    return one_line(task["title"] or task["prompt"])


def task_note(task: TaskData) -> str:
    """What a task asks, why it waits, how it ended if it did not complete, or what it left unpublished."""
    if asked := open_questions(task):
        return f"asks: {one_line(asked[-1]['text'])}"
    if task["why"]:
        return f"why: {one_line(task['why'])}"
    if task["status"] == "completed" or not task["reason"]:
        is_kept = task["result"] is not None and task["result"]["isKept"]
        return one_line(task["message"] or "") if is_kept else ""
    reason = "" if task["reason"] == task["status"] else task["reason"]
    return ": ".join(one_line(words) for words in (reason, task["message"] or "") if words)


def open_questions(task: TaskData) -> list[QuestionData]:
    """The questions without an answer; an ended task has none."""
    is_over = task["status"] in {"completed", "failed", "cancelled"}
    return [question for question in task["questions"] if question["answer"] is None and not is_over]


def relay_page(url: str, relay: RelayData, style: OutputStyle) -> list[str]:
    counts = ", ".join(f"{number} {state}" for state, number in relay["tasks"].items() if number)
    facts: Mapping[str, str] = {
        "relay": f"{url} (process {relay['pid']}, version {one_line(relay['version'])})",
        "database": one_line(relay["database"]),
        "tasks": counts or "none",
        "spent": _budget(relay),
        "runners": format_counts(relay["runners"]),
    }
    lines = [
        f"{pad(start, LABEL)}  {line}"
        for label, value in facts.items()
        if value
        for start, line in zip_longest([label], style.wrap_text(value, LABEL + 2), fillvalue="")
    ]
    if not relay["processes"]:
        return lines
    processes = [
        TableRow(
            cells=(one_line(runner["name"]), runner["state"], str(runner["pid"])),
            text=one_line(runner["taskId"] or ", ".join(runner["agents"])),
            note="",
        )
        for runner in relay["processes"]
    ]
    return [*lines, "", *format_table(PROCESS_HEADINGS, "TASK OR AGENTS", processes, style)]


def format_counts(counts: RunnerCountsData) -> str:
    """The head line of the runners: "3 online · 1 claiming · 2 idle", without zeros."""
    shown = {"online": counts["online"], "claiming": counts["claiming"], "idle": counts["idle"]}
    named = " · ".join(f"{number} {name}" for name, number in shown.items() if number)
    return named or (f"none of {counts['total']} online" if counts["total"] else "none")


def _budget(relay: RelayData) -> str:
    if relay["dailyBudgetUsd"] is not None:
        return f"${relay['spentTodayUsd']:.2f} of ${relay['dailyBudgetUsd']:.2f} today"
    return f"${relay['spentTodayUsd']:.2f} today" if relay["spentTodayUsd"] else ""
