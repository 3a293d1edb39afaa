"""Terminal width and colours, and untrusted text made safe to show."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from delegate.errors import escape

DEFAULT_WIDTH = 120  # columns when the output is not a terminal and COLUMNS is not set
COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2"}


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
