"""Formats the task table, lists of facts and the relay page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from delegate.cli.render import terminal
from delegate.cli.render.terminal import fit, one_line, pad
from delegate.cli.render.timeline import format_duration, parse_time

if TYPE_CHECKING:
    from delegate.client.responses import QuestionData, RelayData, TaskData

ABOVE = "(above)"  # in a tree, instead of the status of a task that is already drawn
# Of tasks, of schedules and of their runs.
STATUS_COLOURS = {
    "queued": "yellow",
    "waiting": "yellow",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "active": "blue",
    "paused": "yellow",
    "expired": "dim",
    "started": "blue",
    "missed": "yellow",
    "overlapped": "yellow",
    "refused": "red",
    ABOVE: "dim",
}
GAP = "  "
NOTE_MAX = 400  # columns of a note, on as many lines as that takes
PROMPT_MIN = 20  # columns a prompt needs beside the other cells; with fewer every task becomes a block
HEADINGS = ("TASK", "STATUS", "P", "AGENT", "AGE")
RUNNER_HEADINGS = ("RUNNER", "NAME", "PROCESS", "STATE")
LABEL = 8  # columns of the longest label about the relay


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStyle:
    """How to format text: width, colour, and the current time."""

    width: int
    colour: bool
    now: datetime
    wraps: bool = False  # on a terminal, long text continues below its start; elsewhere a fact is one line

    def paint(self, text: str, colour: str) -> str:
        return terminal.paint(text, colour) if self.colour and colour and text else text

    def wrap_text(self, text: str, indent: int) -> list[str]:
        """Text that starts in column `indent`, wrapped at the edge; words and paths are not broken."""
        room = self.width - indent
        if not self.wraps or room < PROMPT_MIN or terminal.cells(text) <= room:
            return [text]
        from textwrap import wrap  # noqa: PLC0415  needed only for long text on a terminal

        return wrap(text, room, break_long_words=False, break_on_hyphens=False)

    def paint_status(self, text: str) -> str:
        return paint_status_at(text, 0, text, self)


def json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of a table; the second cell is its status."""

    cells: Sequence[str]
    text: str
    note: str


def format_table(headings: Sequence[str], last: str, entries: Sequence[TableRow], style: OutputStyle) -> list[str]:
    """A table with free text in its last column; on a narrow terminal, a block for each row."""
    rows = [entry.cells for entry in entries]
    widths = [max(map(terminal.cells, column)) for column in zip(headings, *rows, strict=True)]
    room = style.width - sum(widths) - len(GAP) * len(widths)
    if room < PROMPT_MIN:
        return [line for entry in entries for line in _block(entry, style)]
    lines = [_row(headings, widths, last)]
    for entry in entries:
        line = _row(entry.cells, widths, fit(entry.text, room))
        lines.append(paint_status_at(line, widths[0] + len(GAP), entry.cells[1], style))
        lines += _note(entry, style)
    return lines


def _note(entry: TableRow, style: OutputStyle) -> list[str]:
    """The note under a row; a terminal shows all of it, because the end often matters most."""
    indent, room = "  ", style.width - 2
    lines = terminal.fold(fit(entry.note, NOTE_MAX), room) if style.wraps and room > 1 else [entry.note]
    return [style.paint(fit(f"{indent}{line}", style.width), "dim") for line in lines if line]


def _row(row: Iterable[str], widths: Iterable[int], last: str) -> str:
    return GAP.join([*(pad(cell, width) for cell, width in zip(row, widths, strict=True)), last]).rstrip()


def paint_status_at(line: str, start: int, status: str, style: OutputStyle) -> str:
    """Paint each word of the status that begins at `start`, even if the line was cut inside it."""
    word, gap, further = status.partition(" ")
    end = start + len(word)
    colour = STATUS_COLOURS.get(word) or STATUS_COLOURS.get(word.strip("()"), "")
    rest = paint_status_at(line[end:], len(gap), further, style) if further else line[end:]
    return line[:start] + style.paint(line[start:end], colour) + rest


def _block(entry: TableRow, style: OutputStyle) -> list[str]:
    name, status, *cells = entry.cells
    state = fit(f"  {' '.join(filter(None, (status, *cells)))}", style.width)
    lines = [fit(name, style.width), paint_status_at(state, 2, status, style)]
    lines += [fit(f"  {entry.text}", style.width)] if entry.text else []
    return [*lines, *_note(entry, style)]


def task_table(tasks: Sequence[TaskData], style: OutputStyle) -> list[str]:
    entries = [TableRow(cells=_cells(task, style.now), text=task_name(task), note=task_note(task)) for task in tasks]
    return format_table(HEADINGS, "PROMPT", entries, style)


def _cells(task: TaskData, now: datetime) -> tuple[str, ...]:
    age = format_duration((now - parse_time(task["createdAt"])).total_seconds())
    return one_line(task["taskId"]), task["status"], task["priority"], one_line(task["agent"]), age


def task_name(task: TaskData) -> str:
    return one_line(task["title"] or task["prompt"])


def task_note(task: TaskData) -> str:
    """What a task asks, why it waits, or how it ended if it did not complete."""
    if asked := open_questions(task):
        return f"asks: {one_line(asked[-1]['text'])}"
    if task["why"]:
        return f"why: {one_line(task['why'])}"
    if task["status"] == "completed" or not task["reason"]:
        return ""
    reason = "" if task["reason"] == task["status"] else task["reason"]
    return ": ".join(one_line(words) for words in (reason, task["message"] or "") if words)


def open_questions(task: TaskData) -> list[QuestionData]:
    """The questions without an answer; an ended task has none."""
    is_over = task["status"] in {"completed", "failed", "cancelled"}
    return [question for question in task["questions"] if question["answer"] is None and not is_over]


def fact_lines(facts: Mapping[str, str | Sequence[str] | None], style: OutputStyle) -> list[str]:
    """Labels and values, one below the other; the lines of one fact are aligned."""
    known = {label: [value] if isinstance(value, str) else value for label, value in facts.items() if value}
    width = max(map(len, known), default=0)
    lines = []
    for label, values in known.items():
        folded = [line for value in values for line in style.wrap_text(one_line(value), width + 4)]
        lines += [f"  {pad(name, width)}  {line}".rstrip() for name, line in zip_longest([label], folded, fillvalue="")]
    return lines


def rows_in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(terminal.cells, column)) for column in zip(*rows, strict=True)]
    return [_row(row[:-1], widths[:-1], row[-1]) for row in rows]


def relay_page(url: str, relay: RelayData, style: OutputStyle) -> list[str]:
    counts = ", ".join(f"{number} {state}" for state, number in relay["tasks"].items() if number)
    facts: Mapping[str, str] = {
        "relay": f"{url} (process {relay['pid']}, version {one_line(relay['version'])})",
        "database": one_line(relay["database"]),
        "tasks": counts or "none",
        "spent": _budget(relay),
        "runners": "" if relay["runners"] else "none",
    }
    lines = [
        f"{pad(start, LABEL)}  {line}"
        for label, value in facts.items()
        if value
        for start, line in zip_longest([label], style.wrap_text(value, LABEL + 2), fillvalue="")
    ]
    if not relay["runners"]:
        return lines
    runners = [
        TableRow(
            cells=(one_line(runner["id"]), one_line(runner["name"]), str(runner["pid"]), runner["state"]),
            text=one_line(runner["taskId"] or ", ".join(runner["agents"])),
            note="",
        )
        for runner in relay["runners"]
    ]
    return [*lines, "", *format_table(RUNNER_HEADINGS, "TASK OR AGENTS", runners, style)]


def _budget(relay: RelayData) -> str:
    if relay["dailyBudgetUsd"] is not None:
        return f"${relay['spentTodayUsd']:.2f} of ${relay['dailyBudgetUsd']:.2f} today"
    return f"${relay['spentTodayUsd']:.2f} today" if relay["spentTodayUsd"] else ""
