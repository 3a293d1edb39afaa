"""Writes what a runner does with its tasks, for people: one JSON line per fact, from the same events as the timeline.

`delegate runner logs` formats the lines. The log never leaves the machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from delegate.config.home_files import PRIVATE_FILE, make_directory
from delegate.errors import DelegateError
from delegate.model import EventKind, Outcome
from delegate.placement import Origin, repository_key, shorten
from delegate.preferences.models import short_model_name
from delegate.runner.assignment import Assignment
from delegate.states import AttemptState

LOG_MAX = 10 * 1024 * 1024  # bytes; a longer log is renamed when the next task begins, and one old file is kept
PATH_SHOWN = 60  # characters
MODEL_NAME = re.compile(r"[A-Za-z0-9._:/@\[\]-]{1,100}")
RECEIVED = {Origin.LINEAR: "webhook received", Origin.SCHEDULE: "schedule fired", Origin.PERSON: "task received"}
PROGRAMS = {"claude": "claude code", "codex": "codex", "shell": "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    level: str  # info, ok, exec, tool, git, warn or fail
    message: str
    fields: dict[str, object] = field(default_factory=dict)


class TaskLog:
    """The log of one slot. A log that cannot be written does not stop a task."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, entry: LogEntry, task_id: str, at: datetime) -> None:
        line = {"at": at.isoformat(), "level": entry.level, "message": entry.message, "taskId": task_id, **entry.fields}
        with suppress(OSError, DelegateError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, PRIVATE_FILE), "ab", buffering=0) as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def begin(self) -> None:
        with suppress(OSError, DelegateError):
            make_directory(self._path.parent)
            if self._path.exists() and self._path.stat().st_size > LOG_MAX:
                self._path.replace(self._path.with_suffix(".old.jsonl"))

    def touch(self) -> None:
        """The time of the file is when the relay last answered."""
        with suppress(OSError):
            self._path.touch(mode=PRIVATE_FILE)


def received(assignment: Assignment) -> LogEntry:
    issue = {"issue": assignment.issue.key} if assignment.issue else {}
    repository = {"repo": shorten(repository_key(assignment.repository))} if assignment.repository else {}
    return LogEntry(level="info", message=RECEIVED[assignment.origin], fields={**issue, **repository})


def claimed(assignment: Assignment, runner: str) -> LogEntry:
    return LogEntry(level="ok", message="claimed job", fields={"runner": runner, "attempt": assignment.number})


def ended(outcome: Outcome, assignment: Assignment, *, is_posted: bool | None) -> Iterator[LogEntry]:
    """The relay has the end, and Linear, if the task came from there, has it or gets it later."""
    if outcome.state is not AttemptState.COMPLETED or is_posted is None:
        yield _reported(outcome)
    if is_posted is not None:
        message = "posted to linear" if is_posted else "queued for linear"
        fields = {"issue": assignment.issue.key} if assignment.issue else {}
        yield LogEntry(level="ok" if is_posted else "info", message=message, fields=dict(fields))


def _reported(outcome: Outcome) -> LogEntry:
    fields: dict[str, object] = {"state": str(outcome.state), "reason": str(outcome.reason)}
    if outcome.state is AttemptState.COMPLETED:
        return LogEntry(level="ok", message="reported to the relay", fields=fields)
    if outcome.state in (AttemptState.FAILED, AttemptState.LOST):
        return LogEntry(level="fail", message=outcome.message or "failed", fields=fields)
    return LogEntry(level="info", message=outcome.message or "reported to the relay", fields=fields)


def entry_of(kind: EventKind, data: dict[str, object], assignment: Assignment) -> LogEntry | None:
    """The line of an event; None for one that the log does not show."""
    build = BUILDERS.get(kind)
    return None if build is None else build(data, assignment)


def _worktree(data: dict[str, object], _: Assignment) -> LogEntry:
    return LogEntry(level="info", message="creating worktree", fields={"branch": data.get("branch")})


def _started(_: dict[str, object], assignment: Assignment) -> LogEntry | None:
    """Agents are shown when their session opens."""
    return LogEntry(level="exec", message="command started") if assignment.agent == "shell" else None


def _session(data: dict[str, object], assignment: Assignment) -> LogEntry:
    program = PROGRAMS.get(assignment.agent, assignment.agent)
    told = str(data.get("model") or "")  # by the agent, which may write anything there
    model = short_model_name(told if MODEL_NAME.fullmatch(told) else assignment.model or "")
    fields = {"model": model, "thinking": assignment.effort}
    return LogEntry(
        level="exec", message=f"{program} session opened", fields={key: value for key, value in fields.items() if value}
    )


def _tool(data: dict[str, object], _: Assignment) -> LogEntry:
    path = data.get("path")
    target = shorten_path(path) if isinstance(path, str) else str(data.get("summary", ""))
    counts: dict[str, object] = {key: data[key] for key in ("additions", "deletions") if key in data}
    return LogEntry(level="tool", message=str(data.get("verb", "call")), fields={"target": target, **counts})


def _check(data: dict[str, object], _: Assignment) -> LogEntry:
    is_ok, seconds = data.get("ok") is True, data.get("seconds")
    counts = f" {data['passed']}/{data['total']}" if data.get("total") else ""
    took = f" {seconds:.1f}s" if isinstance(seconds, int | float) else ""
    what = "tests" if counts else "check"
    fields = {} if is_ok and counts else {"command": data.get("command")}
    verdict = "passed" if is_ok else "failed"
    return LogEntry(level="ok" if is_ok else "fail", message=f"{what} {verdict}{counts}{took}", fields=fields)


def _setup(data: dict[str, object], _: Assignment) -> LogEntry | None:
    if "command" not in data:
        return None
    is_ok = data.get("exitCode") == 0
    return LogEntry(
        level="info" if is_ok else "fail",
        message="setup done" if is_ok else "setup failed",
        fields={"command": data["command"]},
    )


def _push(data: dict[str, object], _: Assignment) -> LogEntry:
    subject, files, added = data.get("subject"), data.get("files"), data.get("additions")
    counts = f"{files} file{'' if files == 1 else 's'} touched · {added} line{'' if added == 1 else 's'} added"
    change: dict[str, object] = {"change": counts} if files else {}
    if subject:
        return LogEntry(level="git", message="commit", fields={"target": subject, **change})
    return LogEntry(level="git", message="push", fields={"target": data.get("branch"), **change})


def _pull_request(data: dict[str, object], _: Assignment) -> LogEntry:
    repository = "/".join(urlsplit(str(data.get("url", ""))).path.split("/")[1:3])
    verb = "updated" if data.get("adopted") is True else "opened"
    if not data.get("number"):  # without a forge
        return LogEntry(level="ok", message=f"pr {verb}", fields={"target": data.get("url")})
    return LogEntry(level="ok", message=f"pr {verb} #{data.get('number')}", fields={"target": repository})


def _warning(data: dict[str, object], _: Assignment) -> LogEntry:
    return LogEntry(level="warn", message=str(data.get("text", "")))


BUILDERS = {
    EventKind.WORKSPACE: _worktree,
    EventKind.STARTED: _started,
    EventKind.SESSION: _session,
    EventKind.TOOL: _tool,
    EventKind.CHECK: _check,
    EventKind.SETUP: _setup,
    EventKind.PUSH: _push,
    EventKind.PULL_REQUEST: _pull_request,
    EventKind.WARNING: _warning,
}


def shorten_path(path: str) -> str:
    """A long path without its middle: `lib/…/limits.ts`."""
    parts = path.split("/")
    return path if len(path) <= PATH_SHOWN or len(parts) < 3 else f"{parts[0]}/…/{parts[-1]}"
