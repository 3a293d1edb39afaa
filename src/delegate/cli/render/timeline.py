"""Formats events as text: a task's timeline, and the progress of an agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from delegate.cli.render.terminal import one_line, parse_time

if TYPE_CHECKING:
    from delegate.client.responses import EventData, UsageData

QUIET_KINDS = {
    "submitted",
    "triggered",
    "ready",
    "claimed",
    "started",
    "finished",
    "usage",
    "session",
    "prompt",
}  # not shown to followers
COMMIT_SHOWN = 10
SHORT_MODEL = re.compile(r"^claude-([a-z]+-\d)")
TODO_MARKS = {"completed": "x", "in_progress": ">"}
Data = Mapping[str, Any]  # Any: each kind of event has its own data, shown here and nowhere else


def format_clock(text: str) -> str:
    return parse_time(text).strftime("%H:%M:%S")


def format_day(text: str) -> str:
    return parse_time(text).strftime("%Y-%m-%d %H:%M:%S")


def format_usage(usage: UsageData) -> str:
    """What the agent used, as text; empty when it reported nothing."""
    parts = []
    if usage["inputTokens"] or usage["outputTokens"]:
        cached = usage["cacheReadTokens"] + usage["cacheWriteTokens"]
        parts.append(f"{usage['inputTokens'] + cached:,} tokens in, {usage['outputTokens']:,} out")
    if usage["costUsd"]:
        parts.append(f"${usage['costUsd']:.4f}")
    if usage["turns"]:
        parts.append("1 turn" if usage["turns"] == 1 else f"{usage['turns']} turns")
    return ", ".join(parts)


def format_event(event: EventData) -> str:
    """One event as a line; empty for an event that is not shown."""
    formatter = FORMATTERS.get(event["kind"])
    return "" if formatter is None else formatter(event["data"])


def _format_claimed(data: Data) -> str:
    kept = "; its texts are kept there" if "privacy" in data else ""
    return f"claimed by {_text(data, 'runner') or _text(data, 'runnerId')}, attempt {_text(data, 'attempt')}{kept}"


def _format_started(data: Data) -> str:
    program = _text(data, "argv0")
    return f"started {f'{program}, ' if program else ''}process {_text(data, 'pid')}"


def _format_session(data: Data) -> str:
    model = _text(data, "model")
    return f"session {_text(data, 'sessionId')}" + (f", model {model}" if model else "")


def _format_tool(data: Data) -> str:
    """A runner that keeps texts to itself sends a path instead of the summary."""
    what = _text(data, "summary") or _text(data, "path")
    return " ".join(filter(None, (f"tool  {_text(data, 'name') or _text(data, 'verb')}", what, _line_counts(data))))


def _line_counts(data: Data) -> str:
    marks = (("additions", "+"), ("deletions", "−"))
    return " ".join(f"{mark}{data[key]}" for key, mark in marks if isinstance(data.get(key), int))


def _format_todo(data: Data) -> str:
    entries = _entries(data, "items")
    marks = (f"[{TODO_MARKS.get(_text(item, 'state'), ' ')}] {_text(item, 'title')}" for item in entries)
    return f"todo  {'  '.join(marks)}"


def _format_question(data: Data) -> str:
    options = data.get("options")
    listed = [one_line(str(option)) for option in options] if isinstance(options, list) else []
    return f"asks: {_text(data, 'text')}" + (f" ({' / '.join(listed)})" if listed else "")


def _format_preferences(data: Data) -> str:
    return f"preferences: {format_choices(_entries(data, 'choices'))}"


def _format_workspace(data: Data) -> str:
    if not _text(data, "branch"):
        return f"workspace at {_short(data, 'baseCommit')}"
    return f"workspace on branch {_text(data, 'branch')}, from {_text(data, 'base')} at {_short(data, 'baseCommit')}"


def _format_setup(data: Data) -> str:
    carried = data.get("carried")
    if isinstance(carried, list):
        return f"copied from your checkout: {', '.join(one_line(str(name)) for name in carried)}"
    code = data.get("exitCode")
    failure = "stopped: timed out" if code is None else f"failed, exit code {code}"
    ending = f"{_text(data, 'seconds')} s" if code == 0 else failure
    return f"setup  {_text(data, 'command') or 'command'} · {ending}"


def _format_check(data: Data) -> str:
    """A runner that keeps texts to itself sends neither the command nor its line."""
    verdict = "" if data.get("ok") is True else "failed · "
    counts = f"{_text(data, 'passed')}/{_text(data, 'total')} passed" if data.get("total") else "passed"
    line = _text(data, "line") or counts
    return f"check  {_text(data, 'command') or 'command'} · {verdict}{line}"


def _format_commit(data: Data) -> str:
    return f"commit {_short(data, 'commit')}, {format_change_size(data)}"


def _format_push(data: Data) -> str:
    return f"pushed {_text(data, 'branch')} at {_short(data, 'commit')}"


def _format_pull_request(data: Data) -> str:
    words = [word for word, key in (("draft", "draft"), ("already existed", "adopted")) if data.get(key) is True]
    return f"pull request {_text(data, 'url')}" + (f" ({', '.join(words)})" if words else "")


def _format_prompt(data: Data) -> str:
    count = data.get("characters")
    return f"prompt of {count:,} characters" if isinstance(count, int) else "prompt"


def format_choices(choices: Iterable[Mapping[str, Any]]) -> str:  # Any: as in Data
    """The chosen preferences and their sources: agent codex (label), base main (.delegate.toml)."""
    choice_texts = [(_text(one, "field"), _text(one, "value"), _text(one, "source")) for one in choices]
    shown = [
        (field, format_model_name(value) if field == "model" else value, source)
        for field, value, source in choice_texts
    ]
    return ", ".join(f"{field} {value} ({source})" for field, value, source in shown)


def format_model_name(model: str) -> str:
    """The same as `preferences.models.short_model_name`, which is slow to load."""
    return SHORT_MODEL.sub(r"\1", model)


def format_touched(events: Iterable[EventData]) -> str:
    """What an agent has edited so far: 2 files touched · 48 lines added."""
    edits = [event["data"] for event in events if event["kind"] == "tool" and event["data"].get("verb") == "edit"]
    files = {_text(data, "path") or _text(data, "summary") for data in edits}
    added = sum(data["additions"] for data in edits if isinstance(data.get("additions"), int))
    touched = "" if "" in files else f"{len(files)} file{'' if len(files) == 1 else 's'} touched · "  # or kept private
    return f"{touched}{added} line{'' if added == 1 else 's'} added" if edits else ""


def format_change_size(data: Data) -> str:
    files = data.get("files")
    return f"{files} file{'' if files == 1 else 's'}, +{_text(data, 'additions')} −{_text(data, 'deletions')}"


def _format_skipped(data: Data) -> str:
    size = _text(data, "bytes")
    if data.get("kept") is not True:
        return f"{size} bytes of output were dropped by the runner"
    return f"{size} bytes of output are kept on the runner's machine" if data.get("bytes") else ""


def kept_on(events: Iterable[EventData]) -> str:
    """The name of the last runner, if the texts of its attempt are kept on its machine; else empty."""
    claimed = [event["data"] for event in events if event["kind"] == "claimed"]
    return _text(claimed[-1], "runner") if claimed and "privacy" in claimed[-1] else ""


def _format_parked(data: Data) -> str:
    until = _text(data, "until")
    return f"parked ({_text(data, 'reason')})" + (f" until {format_day(until)}" if until else "")


def _format_released(data: Data) -> str:
    message = _text(data, "message")
    return (
        message
        if _text(data, "reason") == "question"
        else _label_formatter("handed back to the queue", "message")(data)
    )


def _format_finished(data: Data) -> str:
    state, reason, message = _text(data, "state"), _text(data, "reason"), _text(data, "message")
    code = data.get("exitCode")
    words = [] if reason in {"", "done", state} else [reason]
    if isinstance(code, int) and code:
        words.append(f"exit code {code}")
    ending = f"{state} ({', '.join(words)})" if words else state
    return f"{ending}: {message}" if message and message != reason else ending


def _label_formatter(label: str, key: str) -> Callable[[Data], str]:
    def format_data(data: Data) -> str:
        value, whose = _text(data, key), _with_person(label, data)
        return f"{whose}: {value}" if value else whose

    return format_data


def _with_person(label: str, data: Data) -> str:
    person = _text(data, "by")
    return f"{label} by {person}" if person else label


def _entries(data: Data, key: str) -> list[Data]:
    found = data.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _short(data: Data, key: str) -> str:
    """An abbreviated commit id."""
    return _text(data, key)[:COMMIT_SHOWN]


def _text(data: Data, key: str) -> str:
    value = data.get(key)
    return "" if value is None else one_line(str(value))


FORMATTERS: dict[str, Callable[[Data], str] | None] = {
    "submitted": lambda data: _with_person("submitted", data),
    "triggered": lambda data: f"received from {_text(data, 'from')}: {_text(data, 'because')}",
    "ready": lambda _: "all dependencies have ended",
    "claimed": _format_claimed,
    "started": _format_started,
    "session": _format_session,
    "message": lambda data: _text(data, "text"),
    "tool": _format_tool,
    "todo": _format_todo,
    "usage": None,  # the total is at the top of the page
    "question": _format_question,
    "answer": _label_formatter("answered", "text"),
    "warning": _label_formatter("warning", "text"),
    "preferences": _format_preferences,
    "workspace": _format_workspace,
    "setup": _format_setup,
    "prompt": _format_prompt,
    "check": _format_check,
    "commit": _format_commit,
    "push": _format_push,
    "pull_request": _format_pull_request,
    "output": None,  # shown by `delegate logs`
    "skipped": _format_skipped,
    "released": _format_released,
    "parked": _format_parked,
    "lost": _label_formatter("runner lost", "runnerId"),
    "cancel_requested": _label_formatter("cancel requested", "reason"),
    "finished": _format_finished,
}
