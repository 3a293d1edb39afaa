"""Tasks as a person reads them: the table of many, the page of one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from delegate.cli import terminal
from delegate.cli.terminal import fit, one_line, pad
from delegate.cli.timeline import (
    COMMIT_SHOWN,
    clock,
    day,
    event_words,
    model_shown,
    moment,
    preferences,
    size_of_change,
    span,
    spent,
)

if TYPE_CHECKING:
    from delegate.answers import AttemptData, RelayData, ResultData, TaskData, TaskDetail

STATUS_COLOURS = {
    "queued": "yellow",
    "waiting": "yellow",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
GAP = "  "
PROMPT_MIN = 20  # columns a prompt needs beside the other cells; with fewer every task becomes a block
PROMPT_SHOWN = 400  # characters of a prompt or a summary on the page of its task
MODES = {
    "in_place": "",
    "worktree": "in a fresh worktree, to a branch",
    "pull_request": "in a fresh worktree, to a pull request",
}
HEADINGS = ("TASK", "STATUS", "P", "AGENT", "AGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where the text goes: how wide, in colour or not, and when it is read."""

    width: int
    colour: bool
    now: datetime

    def paint(self, text: str, colour: str) -> str:
        return terminal.painted(text, colour) if self.colour and colour else text


def json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def task_table(tasks: Sequence[TaskData], look: Look) -> list[str]:
    rows = [_cells(task, look.now) for task in tasks]
    widths = [max(map(terminal.cells, column)) for column in zip(HEADINGS, *rows, strict=True)]
    room = look.width - sum(widths) - len(GAP) * len(widths)
    if room < PROMPT_MIN:
        return [line for task in tasks for line in _block(task, look)]
    lines = [_row(HEADINGS, widths, "PROMPT")]
    for task, row in zip(tasks, rows, strict=True):
        line = _row(row, widths, fit(one_line(task["title"] or task["prompt"]), room))
        lines.append(_paint_status(line, task["status"], widths[0] + len(GAP), look))
        if note := note_of(task):
            lines.append(look.paint(fit(f"  {note}", look.width), "dim"))
    return lines


def _cells(task: TaskData, now: datetime) -> tuple[str, ...]:
    age = span((now - moment(task["createdAt"])).total_seconds())
    return one_line(task["taskId"]), task["status"], task["priority"], one_line(task["agent"]), age


def _row(row: Iterable[str], widths: Iterable[int], last: str) -> str:
    return GAP.join([*(pad(cell, width) for cell, width in zip(row, widths, strict=True)), last]).rstrip()


def rows_in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(terminal.cells, column)) for column in zip(*rows, strict=True)]
    return [_row(row[:-1], widths[:-1], row[-1]) for row in rows]


def _paint_status(line: str, status: str, start: int, look: Look) -> str:
    end = start + len(status)
    return line[:start] + look.paint(line[start:end], STATUS_COLOURS.get(status, "")) + line[end:]


def _block(task: TaskData, look: Look) -> list[str]:
    task_id, *cells = _cells(task, look.now)
    lines = [task_id, f"  {' '.join(cells)}", f"  {one_line(task['title'] or task['prompt'])}"]
    if note := note_of(task):
        lines.append(f"  {note}")
    return [fit(line, look.width) for line in lines]


def note_of(task: TaskData) -> str:
    """Why the task waits, or how it ended when it did not end well."""
    if task["why"]:
        return f"why: {one_line(task['why'])}"
    if task["status"] == "completed" or not task["reason"]:
        return ""
    reason = "" if task["reason"] == task["status"] else task["reason"]
    return ": ".join(one_line(words) for words in (reason, task["message"] or "") if words)


def task_page(detail: TaskDetail, look: Look) -> list[str]:
    task = detail["task"]
    status = look.paint(task["status"], STATUS_COLOURS.get(task["status"], ""))
    facts = _facts(task, detail["attempts"], look.now)
    label_width = max(map(len, facts))
    lines = [f"{one_line(task['taskId'])}{GAP}{status}", ""]
    lines += [f"  {pad(label, label_width)}  {value}" for label, value in facts.items()]
    timeline = [(clock(event["at"]), event_words(event)) for event in detail["events"]]
    lines += ["", *(f"  {look.paint(at, 'dim')}  {words}" for at, words in timeline if words)]
    return lines


def _facts(task: TaskData, attempts: Sequence[AttemptData], now: datetime) -> dict[str, str]:
    limits = {"budget": task["maxBudgetUsd"] and f"${task['maxBudgetUsd']:g}", "turns at most": task["maxTurns"]}
    facts = {
        "prompt": _cut(task["prompt"]),
        "added": _cut(task["context"] or ""),
        "title": task["title"],
        "issue": _issue(task),
        "agent": " ".join(filter(None, (task["agent"], model_shown(task["model"] or ""), task["effort"]))),
        "decided": preferences(task["choices"]),
        "directory": task["workingDirectory"],
        "repository": task["repository"],
        "mode": MODES[task["mode"]],
        **_result(task["result"]),
        "why": task["why"],
        "reason": _reason(task),
        "message": task["message"],
        "hint": task["advice"],
        "submitted": f"{day(task['createdAt'])}, {task['priority']}",
        "ran": _ran(task, attempts, now),
        "not before": task["notBefore"] and day(task["notBefore"]),
        "used": spent(task["usage"]),
        "session": task["sessionId"],
        "retry of": task["retryOf"],
        **{label: value and str(value) for label, value in limits.items()},
    }
    return {label: one_line(value) for label, value in facts.items() if value}


def _cut(text: str) -> str:
    if len(text) <= PROMPT_SHOWN:
        return text
    return f"{text[:PROMPT_SHOWN]}… ({len(text):,} characters)"


def _issue(task: TaskData) -> str:
    issue = task["issue"]
    return "" if issue is None else " ".join(filter(None, (issue["key"], issue["title"], issue["url"])))


def _result(result: ResultData | None) -> dict[str, str | None]:
    """What came of a task, for people: where it is, how large it is, and whether it was checked."""
    if result is None:
        return {}
    at = f" at {result['commit'][:COMMIT_SHOWN]}" if result["commit"] else ""
    return {
        "branch": f"{result['branch']}{at}" if result["branch"] else None,
        "pull request": result["pullRequest"],
        "change": size_of_change(result) if result["files"] else None,
        "checks": f"{result['checksPassed']}/{result['checksTotal']} passed" if result["checksTotal"] else None,
        "kept": "work that was not pushed; `delegate workspaces` lists it" if result["isKept"] else None,
        "summary": _cut(result["summary"]),
    }


def _reason(task: TaskData) -> str:
    if not task["reason"] or task["status"] == "completed":
        return ""
    return task["reason"] if task["exitCode"] is None else f"{task['reason']}, exit code {task['exitCode']}"


def _ran(task: TaskData, attempts: Sequence[AttemptData], now: datetime) -> str:
    if not task["startedAt"]:
        return ""
    end = moment(task["finishedAt"]) if task["finishedAt"] else now
    took = span((end - moment(task["startedAt"])).total_seconds())
    where = f" on {attempts[-1]['runnerId']}" if attempts else ""
    return f"{took}{where}, attempt {task['attempt']}"


def relay_page(url: str, relay: RelayData, look: Look) -> list[str]:
    counts = ", ".join(f"{number} {state}" for state, number in relay["tasks"].items() if number)
    facts: Mapping[str, str] = {
        "relay": f"{url} (process {relay['pid']}, version {one_line(relay['version'])})",
        "database": one_line(relay["database"]),
        "tasks": counts or "none",
        "spent": _budget(relay),
        "runners": "" if relay["runners"] else "none",
    }
    lines = [f"{pad(label, 8)}  {value}" for label, value in facts.items() if value]
    if not relay["runners"]:
        return lines
    rows = [
        (
            one_line(runner["id"]),
            one_line(runner["name"]),
            str(runner["pid"]),
            runner["state"],
            one_line(runner["taskId"] or ", ".join(runner["agents"])),
        )
        for runner in relay["runners"]
    ]
    table = rows_in_columns([("RUNNER", "NAME", "PROCESS", "STATE", "TASK OR AGENTS"), *rows])
    return [*lines, "", *(fit(line, look.width) for line in table)]


def _budget(relay: RelayData) -> str:
    if relay["dailyBudgetUsd"] is not None:
        return f"${relay['spentTodayUsd']:.2f} of ${relay['dailyBudgetUsd']:.2f} today"
    return f"${relay['spentTodayUsd']:.2f} today" if relay["spentTodayUsd"] else ""
