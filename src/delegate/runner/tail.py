"""The last lines of an attempt, as a person would retell them: for its checkpoint."""

from __future__ import annotations

from collections import deque

from delegate.model import EventKind
from delegate.retelling import LINE_MAX, LINES, last_lines, retold


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
        self._lines.extend(last_lines([line.decode(errors="replace") for line in whole[-LINES:]]))
        self._open = self._open[-LINE_MAX:]

    def fact(self, kind: EventKind, data: dict[str, object]) -> None:
        if kind is EventKind.SESSION and isinstance(model := data.get("model"), str):
            self.model = model
        self._lines.extend(last_lines(retold(kind, data)))

    def lines(self) -> tuple[str, ...]:
        rest = last_lines([self._open.decode(errors="replace")]) if self._open.strip() else ()
        return (*self._lines, *rest)[-LINES:]
