"""Reads text that people type or pipe in: prompts, contexts, answers, reasons."""

from __future__ import annotations

import sys
from pathlib import Path

from delegate.cli.context import check_encoding
from delegate.errors import InvalidField

PROMPT_MAX = 250_000  # as model.PROMPT_MAX, which is slow to load; a test compares them
BYTES_PER_CHARACTER = 4
EMPTY_HINTS = {"answer": "write what the agent needs to know"}  # by field


def read_prompt(arguments: tuple[str, ...], prompt_file: str | None) -> str:
    if arguments and prompt_file:
        raise InvalidField(field="prompt", why="give it as arguments or with --prompt-file, not both")
    if prompt_file:
        return check_text("prompt", _read_text_file(Path(prompt_file)))
    return read_text("prompt", arguments)


def read_text(field: str, arguments: tuple[str, ...]) -> str:
    """Several words make one text; a single - is all of standard input."""
    if arguments != ("-",):
        return check_text(field, " ".join(arguments))
    return check_text(field, _decode(field, _read_stdin(field)))


def read_value(field: str) -> str:
    """All of standard input as the value of a setting, without the final line break."""
    text = _decode(field, _read_stdin(field)).removesuffix("\r")
    if not text:
        raise InvalidField(field=field, why="is empty: standard input has no data")
    return text


def _read_stdin(field: str) -> bytes:
    if sys.stdin is None:
        raise InvalidField(field=field, why="- reads standard input, which is closed")
    return sys.stdin.buffer.read(PROMPT_MAX * BYTES_PER_CHARACTER + 1)


def _read_text_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decode("prompt", file.read(PROMPT_MAX * BYTES_PER_CHARACTER + 1))
    except OSError as error:
        raise InvalidField(field="promptFile", why=f"{path}: {(error.strerror or str(error)).lower()}") from error


def _decode(field: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        # Only text that is too long anyway is cut in the middle of a character.
        if len(data) > PROMPT_MAX * BYTES_PER_CHARACTER:
            return " " * (PROMPT_MAX + 1)
        raise InvalidField(field=field, why="is not UTF-8 text") from error


def check_text(field: str, text: str) -> str:
    if len(text) > PROMPT_MAX:
        raise InvalidField(field=field, why=f"has more than {PROMPT_MAX:,} characters; put the rest into a file")
    if not text.strip():
        raise InvalidField(field=field, why=f"is empty; {EMPTY_HINTS.get(field, 'describe what the agent should do')}")
    check_encoding(field, text)
    return text
