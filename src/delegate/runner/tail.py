"""The last lines of an attempt, as a person would retell them: for its checkpoint."""

from __future__ import annotations

from collections import deque

from delegate.model import EventKind

LINES = 50
LINE_MAX = 500


class Tail:
    """`speaks_to_people`: its output is lines for a person; a program that speaks JSON is retold by its facts."""

    def __init__(self, *, speaks_to_people: bool) -> None:
        self._speaks_to_people = speaks_to_people
        self._lines: deque[str] = deque(maxlen=LINES)
        self._open = b""
        self.model: str | None = None  # that the agent says it uses

    def output(self, data: bytes) -> None:
        if not self._speaks_to_people:
            return
        *whole, self._open = (self._open + data[-LINES * LINE_MAX :]).split(b"\n")
        self._lines.extend(_told(line.decode(errors="replace")) for line in whole[-LINES:])
        self._open = self._open[-LINE_MAX:]

    def fact(self, kind: EventKind, data: dict[str, object]) -> None:
        if kind is EventKind.SESSION and isinstance(model := data.get("model"), str):
            self.model = model
        if kind is EventKind.MESSAGE:
            self._lines.extend(_told(line) for line in str(data.get("text", "")).splitlines()[-LINES:])
        elif kind is EventKind.TOOL:
            self._lines.append(_told(f"[{data.get('name', '')}] {data.get('summary', '')}"))

    def lines(self) -> tuple[str, ...]:
        rest = [_told(self._open.decode(errors="replace"))] if self._open.strip() else []
        return (*self._lines, *rest)[-LINES:]


def _told(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)[:LINE_MAX]
