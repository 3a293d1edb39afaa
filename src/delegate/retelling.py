"""The last lines of an attempt, as a person would retell them: for its checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delegate.model import EventKind

LINES = 50
LINE_MAX = 500  # characters


def retold(kind: EventKind, data: Mapping[str, object]) -> list[str]:
    """What an agent said or did, in lines. Its output is JSON, so that its events must tell it."""
    if kind is EventKind.MESSAGE:
        return str(data.get("text", "")).splitlines()
    if kind is EventKind.TOOL:
        return [f"[{data.get('name', '')}] {data.get('summary', '')}".rstrip()]
    return []


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """As many as a checkpoint keeps, safe to show on a terminal."""
    return tuple(_plain(line[:LINE_MAX]) for line in lines[-LINES:])


def _plain(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)
