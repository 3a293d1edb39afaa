"""Parses streams of JSON lines, and converts untrusted values."""

from __future__ import annotations

import json

from delegate.model import Stream
from delegate.wire.basics import SEQ_MAX

LINE_MAX = 16 * 1024 * 1024  # bytes; longer lines are kept as output, but not parsed
STDERR_KEPT = 4096  # bytes of its end, for the error of a program that could not start
AMOUNT_MAX = 1e15  # larger numbers are invalid


class JsonLines:
    """Accepts bytes in any pieces, buffers at most one line, and skips what is not a JSON object."""

    def __init__(self) -> None:
        self.parse_errors = 0
        self._pieces: list[bytes] = []
        self._held = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[dict[str, object]]:
        *whole, rest = data.split(b"\n")
        found: list[dict[str, object]] = []
        for piece in whole:
            self._hold(piece)
            found += self.finish()
        self._hold(rest)
        return found

    def finish(self) -> list[dict[str, object]]:
        """Parses the buffered line at the end of the stream."""
        line = b"".join(self._pieces).strip()
        self._pieces.clear()
        self._held = 0
        self._skipping = False
        if not line:
            return []
        value = _parse(line)
        if isinstance(value, dict):
            return [value]
        self.parse_errors += 1
        return []

    def _hold(self, piece: bytes) -> None:
        if self._skipping or not piece:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > LINE_MAX:
            self._pieces.clear()
            self._skipping = True
            self.parse_errors += 1


class Streams:
    """The output of a program that prints JSON lines: objects on stdout, errors on stderr."""

    def __init__(self) -> None:
        self._lines = JsonLines()
        self._stderr = b""

    @property
    def parse_errors(self) -> int:
        return self._lines.parse_errors

    @property
    def stderr(self) -> str:
        return self._stderr.decode("utf-8", "replace")

    def feed(self, stream: Stream, data: bytes) -> list[dict[str, object]]:
        if stream is Stream.STDOUT:
            return self._lines.feed(data)
        self._stderr = (self._stderr + data[-STDERR_KEPT:])[-STDERR_KEPT:]
        return []

    def finish(self) -> list[dict[str, object]]:
        return self._lines.finish()


def _parse(line: bytes) -> object:
    if not line.startswith(b"{"):
        return None  # a flood of plain text must be cheap
    # Invalid UTF-8 damages only its characters, not the line.
    text = line.decode("utf-8", "replace")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def as_object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), SEQ_MAX)


def as_amount(value: object) -> float:
    """Dollars, seconds or fractions: never negative, never infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= AMOUNT_MAX:
        return 0.0
    return float(value)


def make_storable(text: str, limit: int) -> str:
    """Text that every database and JSON writer accepts: no NUL, no lone surrogates, shortened with an ellipsis."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")


def one_line(text: str, limit: int) -> str:
    words = " ".join(text[: limit * 4].split())
    if not words.isprintable():
        words = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
    return make_storable(words, limit)


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
