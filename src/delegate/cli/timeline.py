"""Events in words: the timeline of a task, and what an agent is doing while it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from delegate.cli.terminal import one_line

if TYPE_CHECKING:
    from delegate.answers import EventData, UsageData

QUIET = {"submitted", "claimed", "started", "finished", "usage", "session"}  # what a follower need not be told
TODO_MARKS = {"completed": "x", "in_progress": ">"}
Data = Mapping[str, Any]  # Any: each kind of event has its own data, shown here and nowhere else


def moment(text: str) -> datetime:
    """A time of the relay on the clock of the reader."""
    return datetime.fromisoformat(text).astimezone()


def clock(text: str) -> str:
    return moment(text).strftime("%H:%M:%S")


def day(text: str) -> str:
    return moment(text).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A length of time in at most five characters: 0.4s, 59s, 3m, 2h05, 4d."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 60:
        return f"{int(seconds)}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m"
    if seconds < 86_400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02}"
    return f"{int(seconds // 86_400)}d"


def spent(usage: UsageData) -> str:
    """What the agent used, in words; empty when it told nothing."""
    words = []
    if usage["inputTokens"] or usage["outputTokens"]:
        cached = usage["cacheReadTokens"] + usage["cacheWriteTokens"]
        words.append(f"{usage['inputTokens'] + cached:,} tokens in, {usage['outputTokens']:,} out")
    if usage["costUsd"]:
        words.append(f"${usage['costUsd']:.4f}")
    if usage["turns"]:
        words.append("1 turn" if usage["turns"] == 1 else f"{usage['turns']} turns")
    return ", ".join(words)


def event_words(event: EventData) -> str:
    """One event as a line; empty for what no reader needs."""
    say = WORDS.get(event["kind"])
    return "" if say is None else say(event["data"])


def _claimed(data: Data) -> str:
    return f"claimed by {_text(data, 'runnerId')}, attempt {_text(data, 'attempt')}"


def _started(data: Data) -> str:
    return f"started {_text(data, 'argv0')}, process {_text(data, 'pid')}"


def _session(data: Data) -> str:
    model = _text(data, "model")
    return f"session {_text(data, 'sessionId')}" + (f", model {model}" if model else "")


def _tool(data: Data) -> str:
    return f"tool  {_text(data, 'name')} {_text(data, 'summary')}".rstrip()


def _todo(data: Data) -> str:
    items = data.get("items")
    entries = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    marks = (f"[{TODO_MARKS.get(_text(item, 'state'), ' ')}] {_text(item, 'title')}" for item in entries)
    return f"todo  {'  '.join(marks)}"


def _parked(data: Data) -> str:
    until = _text(data, "until")
    return f"parked ({_text(data, 'reason')})" + (f" until {day(until)}" if until else "")


def _finished(data: Data) -> str:
    state, reason, message = _text(data, "state"), _text(data, "reason"), _text(data, "message")
    code = data.get("exitCode")
    words = [] if reason in {"", "done", state} else [reason]
    if isinstance(code, int) and code:
        words.append(f"exit code {code}")
    ending = f"{state} ({', '.join(words)})" if words else state
    return f"{ending}: {message}" if message and message != reason else ending


def _with(label: str, key: str) -> Callable[[Data], str]:
    def words(data: Data) -> str:
        value = _text(data, key)
        return f"{label}: {value}" if value else label

    return words


def _text(data: Data, key: str) -> str:
    value = data.get(key)
    return "" if value is None else one_line(str(value))


WORDS: dict[str, Callable[[Data], str] | None] = {
    "submitted": lambda _: "submitted",
    "claimed": _claimed,
    "started": _started,
    "session": _session,
    "message": lambda data: _text(data, "text"),
    "tool": _tool,
    "todo": _todo,
    "usage": None,  # the sum stands at the top of the page
    "warning": _with("warning", "text"),
    "output": None,  # has its own command
    "skipped": lambda data: f"{_text(data, 'bytes')} bytes of output were dropped on the runner",
    "released": _with("handed back to the queue", "message"),
    "parked": _parked,
    "lost": _with("lost with its runner", "runnerId"),
    "cancel_requested": _with("cancel requested", "reason"),
    "finished": _finished,
}
