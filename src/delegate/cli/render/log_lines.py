"""Formats the log of a machine's runners: time, level, message and `key=value`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from delegate.cli.render.terminal import OutputStyle, format_duration, one_line, paint
from delegate.cli.render.timeline import format_clock

COLOURS = {"ok": "green", "exec": "cyan", "tool": "blue", "git": "bold", "warn": "yellow", "fail": "red"}
LEVEL_WIDTH = 4
QUOTED = {"repo", "branch", "model", "command"}  # always in quotes, as the values may be anything
PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")
OWN_FIELDS = {"at", "level", "message", "taskId", "target", "additions", "deletions"}
ONLINE_FOR, IDLE_FOR = timedelta(minutes=1), timedelta(days=1)
Entry = Mapping[str, Any]  # Any: a line of the log, as JSON has it


def head_line(name: str, version: str, answered_at: datetime | None, now: datetime) -> str:
    """`studio · delegate runner v0.8.3 · Online · 11s ago`."""
    runner = f"{name} · delegate runner v{version}"
    if answered_at is None:
        return f"{runner} · Offline"
    age = max(now - answered_at, timedelta())
    state = "Online" if age < ONLINE_FOR else "Idle" if age < IDLE_FOR else "Offline"
    return f"{runner} · {state} · {format_duration(age.total_seconds())} ago"


def log_line(entry: Entry, style: OutputStyle) -> str:
    level = str(entry.get("level", "info"))
    word = f"{level:<{LEVEL_WIDTH}}"
    shown = paint(word, COLOURS[level]) if style.colour and level in COLOURS else word
    time = style.paint(format_clock(str(entry["at"])), "dim")
    fields = [f"{key}={_value(key, value)}" for key, value in entry.items() if key not in OWN_FIELDS]
    return " ".join([time, shown, one_line(str(entry.get("message", ""))), *_target(entry), *fields])


def _target(entry: Entry) -> list[str]:
    """What a tool, a commit or a pull request is about, and the size of an edit."""
    target = [f'"{one_line(str(entry["target"]))}"'] if entry.get("target") else []
    marks = (("additions", "+"), ("deletions", "-"))
    return target + [f"{mark}{entry[key]}" for key, mark in marks if isinstance(entry.get(key), int)]


def _value(key: str, value: object) -> str:
    text = one_line(str(value))
    return text if key not in QUOTED and PLAIN.fullmatch(text) else f'"{text}"'
