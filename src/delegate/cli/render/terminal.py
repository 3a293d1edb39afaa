"""Formats text for the terminal: width, colours, tables, times, and untrusted text made safe to show."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import TextIO

from delegate.errors import escape

DEFAULT_WIDTH = 120  # columns when the output is not a terminal and COLUMNS is not set
COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2"}
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


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def wants_colour(environ: Mapping[str, str], stream: TextIO | None) -> bool:
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def width(environ: Mapping[str, str]) -> int:
    if environ.get("COLUMNS", "").isdigit() and int(environ["COLUMNS"]):
        return int(environ["COLUMNS"])
    if not is_terminal(sys.stdout):
        return DEFAULT_WIDTH
    return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_WIDTH


def is_ascii(environ: Mapping[str, str], stream: TextIO | None) -> bool:
    """Whether only ASCII can be drawn: the user's locale says so, or the stream cannot write more."""
    # Python itself sets LC_CTYPE to C.UTF-8 where the locale is C, so this value says nothing about the terminal.
    kind = environ.get("LC_CTYPE", "").replace("C.UTF-8", "")
    locale = environ.get("LC_ALL") or kind or environ.get("LANG", "")
    encoding = (stream.encoding or "") if stream is not None else ""
    return locale in {"C", "POSIX"} or encoding.lower().replace("-", "") not in {"utf8", ""}


def paint(text: str, *colours: str) -> str:
    return f"\x1b[{';'.join(COLOURS[colour] for colour in colours)}m{text}\x1b[0m"


def one_line(text: str) -> str:
    """Untrusted text on one line: white space collapsed, other unprintable characters escaped."""
    return escape(" ".join(text.split()))


def escape_json(line: str) -> str:
    """The same JSON, with unprintable characters escaped."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def cells(text: str) -> int:
    """The number of columns the text takes."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415  slow to load, and most text is ASCII

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, columns: int, mark: str = "…") -> str:
    """The text, cut visibly when it is wider than the columns."""
    if cells(text) <= columns:
        return text
    kept, room = "", columns - 1
    for character in text:
        room -= cells(character)
        if room < 0:
            break
        kept += character
    return f"{kept}{mark}" if columns > 0 else ""


def fold(text: str, columns: int) -> list[str]:
    """The text on as many lines as it takes; a word that is wider than a line is broken."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if cells(longer) <= columns:
            line = longer
            continue
        *full, line = [*([line] if line else []), *_pieces(word, columns)]
        lines += full
    return [*lines, *([line] if line else [])]


def _pieces(word: str, columns: int) -> list[str]:
    pieces = [""]
    for character in word:
        if cells(pieces[-1] + character) > columns:
            pieces.append("")
        pieces[-1] += character
    return pieces


def pad(text: str, columns: int) -> str:
    return text + " " * (columns - cells(text))


def parse_time(text: str) -> datetime:
    """A timestamp of the relay in local time."""
    return datetime.fromisoformat(text).astimezone()


def format_duration(seconds: float) -> str:
    """A length of time in at most five characters: 0.4s, 59s, 3m, 2h05, 4d."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 60:
        return f"{int(seconds)}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m"
    if seconds < 86_400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02}"
    return f"{int(seconds // 86_400)}d"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStyle:
    """How to format text: width, colour, and the current time."""

    width: int
    colour: bool
    now: datetime
    wraps: bool = False  # on a terminal, long text continues below its start; elsewhere a fact is one line

    def paint(self, text: str, colour: str) -> str:
        return paint(text, colour) if self.colour and colour and text else text

    def wrap_text(self, text: str, indent: int) -> list[str]:
        """Text that starts in column `indent`, wrapped at the edge; words and paths are not broken."""
        room = self.width - indent
        if not self.wraps or room < PROMPT_MIN or cells(text) <= room:
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
    widths = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
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
    lines = fold(fit(entry.note, NOTE_MAX), room) if style.wraps and room > 1 else [entry.note]
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
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    return [_row(row[:-1], widths[:-1], row[-1]) for row in rows]
