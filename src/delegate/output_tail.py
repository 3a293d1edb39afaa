"""Collects the last lines of an attempt's output for its checkpoint. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from delegate.model import EventKind

LINES = 50
LINE_MAX = 500  # characters


def event_lines(kind: EventKind, data: Mapping[str, object]) -> list[str]:
    """Return what an agent said or did as lines. Its raw output is JSON, so the events are used instead."""
    if kind is EventKind.MESSAGE:
        return str(data.get("text", "")).splitlines()
    if kind is EventKind.TOOL:
        return [f"[{data.get('name', '')}] {data.get('summary', '')}".rstrip()]
    return []


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return as many lines as a checkpoint keeps, safe to print on a terminal."""
    return tuple(_replace_unprintable(line[:LINE_MAX]) for line in lines[-LINES:])


def _replace_unprintable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)


class CheckpointTail:
    """The last lines of one attempt: from its output if `is_plain_text`, else from its events."""

    def __init__(self, *, is_plain_text: bool) -> None:
        self._is_plain_text = is_plain_text
        self._lines: deque[str] = deque(maxlen=LINES)
        self._open = b""
        self.model: str | None = None  # as reported by the agent

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
