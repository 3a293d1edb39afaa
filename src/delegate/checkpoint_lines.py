"""The last lines of an attempt, as a person would retell them: for its checkpoint. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from delegate.model import EventKind

LINES = 50
LINE_MAX = 500  # characters


def event_lines(kind: EventKind, data: Mapping[str, object]) -> list[str]:
    """What an agent said or did, in lines. Its output is JSON, so that its events must tell it."""
    if kind is EventKind.MESSAGE:
        return str(data.get("text", "")).splitlines()
    if kind is EventKind.TOOL:
        return [f"[{data.get('name', '')}] {data.get('summary', '')}".rstrip()]
    return []


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """As many as a checkpoint keeps, safe to show on a terminal."""
    return tuple(_replace_unprintable(line[:LINE_MAX]) for line in lines[-LINES:])


def _replace_unprintable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)


class CheckpointTail:
    """`speaks_to_people`: its output is lines for a person; a program that speaks JSON is retold by its facts."""

    def __init__(self, *, is_plain_text: bool) -> None:
        self._is_plain_text = is_plain_text
        self._lines: deque[str] = deque(maxlen=LINES)
        self._open = b""
        self.model: str | None = None  # that the agent says it uses

    def output(self, data: bytes) -> None:
        if not self._is_plain_text:
            return
        *whole, self._open = (self._open + data[-LINES * LINE_MAX :]).split(b"\n")
        self._lines.extend(last_lines([line.decode(errors="replace") for line in whole[-LINES:]]))
        self._open = self._open[-LINE_MAX:]

    def fact(self, kind: EventKind, data: dict[str, object]) -> None:
        if kind is EventKind.SESSION and isinstance(model := data.get("model"), str):
            self.model = model
        self._lines.extend(last_lines(event_lines(kind, data)))

    def lines(self) -> tuple[str, ...]:
        rest = last_lines([self._open.decode(errors="replace")]) if self._open.strip() else ()
        return (*self._lines, *rest)[-LINES:]
