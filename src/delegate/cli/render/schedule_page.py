"""Formats the schedule table, the page of one schedule and the steps of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from delegate.cli.render.terminal import (
    GAP,
    OutputStyle,
    TableRow,
    fact_lines,
    fit,
    format_duration,
    format_table,
    one_line,
    parse_time,
)
from delegate.errors import InvalidSchedule
from delegate.schedule.zones import zone_named

if TYPE_CHECKING:
    from delegate.client.responses import PipelineData, RunData, ScheduleData, ScheduleDetail

HEADINGS = ("SCHEDULE", "STATUS", "NEXT", "WHEN")
WHEN_MAX = 16  # columns for a cron expression in the table
PROMPT_SHOWN = 400
STOPPED = {"expired", "failed"}  # not by the user: the message says why
RUN_HEADINGS = ("DUE", "OUTCOME", "TASK")
# How the last run ended, where the status alone would suggest success.
OUTCOME_LABELS = {
    "started": "task started",
    "failed": "task failed",
    "cancelled": "task cancelled",
    "missed": "missed",
    "overlapped": "overlapped",
    "refused": "refused",
}
LATE_AFTER = 60.0  # seconds after its due time from which a run counts as late
INDENT = "  "


def schedule_table(schedules: Sequence[ScheduleData], style: OutputStyle) -> list[str]:
    return format_table(HEADINGS, "PROMPT", [_entry(schedule, style) for schedule in schedules], style)


def _entry(schedule: ScheduleData, style: OutputStyle) -> TableRow:
    next_run = schedule["nextRunAt"]
    cells = (
        one_line(schedule["scheduleId"]),
        _status(schedule),
        format_relative(next_run, style.now) if next_run else "",
        fit(_format_timing(schedule), WHEN_MAX),
    )
    return TableRow(cells=cells, text=one_line(schedule["prompt"]), note=_note(schedule))


def _status(schedule: ScheduleData) -> str:
    outcome = OUTCOME_LABELS.get(schedule["lastOutcome"] or "")
    return f"{schedule['status']} ({outcome})" if outcome else schedule["status"]


def _format_timing(schedule: ScheduleData) -> str:
    if schedule["cronExpression"]:
        return one_line(schedule["cronExpression"])
    return "after another" if schedule["afterSchedule"] else "once"


def _note(schedule: ScheduleData) -> str:
    if schedule["why"]:
        return f"why: {one_line(schedule['why'])}"
    return one_line(schedule["message"] or "")


def next_lines(schedule: ScheduleData, style: OutputStyle) -> list[str]:
    """The next runs in the schedule's own zone, or why there is none yet."""
    lines = [_format_next_run(text, schedule["timezone"], style) for text in schedule["nextRuns"]]
    why = schedule["message"] if schedule["status"] in STOPPED else schedule["why"]
    if not lines and why:
        lines = [one_line(why)]
    return [fit(f"  {line}", style.width) for line in lines]


def _format_next_run(text: str, zone: str, style: OutputStyle) -> str:
    due = ": due now" if parse_time(text) <= style.now else ""
    return f"{format_datetime(text, zone)}, {format_relative(text, style.now)}{due}"


def schedule_page(detail: ScheduleDetail, style: OutputStyle) -> list[str]:
    schedule = detail["schedule"]
    lines = [f"{one_line(schedule['scheduleId'])}{GAP}{style.paint_status(_status(schedule))}", ""]
    lines += fact_lines(_facts(schedule, style), style)
    if not detail["history"]:
        return lines
    return [*lines, "", *_history(detail["history"], schedule["timezone"], style)]


def _facts(schedule: ScheduleData, style: OutputStyle) -> dict[str, str | Sequence[str] | None]:
    task, zone = schedule["task"], schedule["timezone"]
    prompt, runs = schedule["prompt"], str(schedule["runs"])
    at, expires = schedule["scheduledAt"], schedule["expiresAt"]
    return {
        "prompt": prompt if len(prompt) <= PROMPT_SHOWN else f"{prompt[:PROMPT_SHOWN]}… ({len(prompt):,} characters)",
        "agent": " ".join(str(task[name]) for name in ("agent", "model", "effort") if task.get(name)),
        "directory": str(task.get("workingDirectory") or ""),
        "repository": str(task.get("repository") or ""),
        "cron": schedule["cronExpression"] and f"{schedule['cronExpression']} in {zone}",
        "at": at and format_datetime(at, zone),
        "after": _after(schedule),
        "next": [_format_next_run(text, zone, style) for text in schedule["nextRuns"]],
        "why": schedule["why"],
        "message": schedule["message"],
        "if missed": schedule["missedRunPolicy"],
        "runs": runs if schedule["maxRuns"] is None else f"{runs} of {schedule['maxRuns']}",
        "expires": expires and format_datetime(expires, zone),
        "pipeline": schedule["pipeline"],
        "created": format_datetime(schedule["createdAt"], zone),
        "ended": schedule["endedAt"] and format_datetime(schedule["endedAt"], zone),
    }


def _after(schedule: ScheduleData) -> str:
    if not schedule["afterSchedule"]:
        return ""
    delay = f", {_delay(schedule)} after its end" if schedule["delay"] else ""
    return f"{schedule['afterSchedule']}{delay}"


def _history(runs: Sequence[RunData], zone: str, style: OutputStyle) -> list[str]:
    inside = replace(style, width=style.width - len(INDENT))
    return [f"{INDENT}{line}" for line in format_table(RUN_HEADINGS, "", [_run(run, zone) for run in runs], inside)]


def _run(run: RunData, zone: str) -> TableRow:
    missed = f"{run['missed']} more skipped" if run["missed"] else ""
    reason = "" if run["reason"] in {None, run["outcome"]} else run["reason"]
    details = [] if run["outcome"] == "completed" else [reason, run["message"]]
    return TableRow(
        cells=(format_datetime(run["occurrence"], zone), run["outcome"], one_line(run["taskId"] or "")),
        text=", ".join(_run_details(run)) if run["taskId"] else "",
        note="; ".join(filter(None, [missed, ": ".join(one_line(text) for text in details if text)])),
    )


def _run_details(run: RunData) -> list[str]:
    """How late the task of a run started, and how long it took."""
    late = (parse_time(run["at"]) - parse_time(run["occurrence"])).total_seconds()
    details = [f"{format_duration(late)} late"] if late >= LATE_AFTER else []
    if run["finishedAt"]:
        details.append(
            f"took {format_duration((parse_time(run['finishedAt']) - parse_time(run['at'])).total_seconds())}"
        )
    return details


def pipeline_table(made: PipelineData, style: OutputStyle) -> list[str]:
    """The steps in order; each is a schedule."""
    entries = [
        TableRow(
            cells=(one_line(step["scheduleId"]), _status(step), _starts(step)), text=one_line(step["prompt"]), note=""
        )
        for step in made["steps"]
    ]
    return format_table(("STEP", "STATUS", "STARTS"), "PROMPT", entries, style)


def _starts(step: ScheduleData) -> str:
    if not step["afterSchedule"]:
        return "now"
    return f"{_delay(step)} later" if step["delay"] else "then"


def _delay(schedule: ScheduleData) -> str:
    seconds = schedule["delay"] / 1000
    return f"{seconds:g}s" if seconds < 60 else format_duration(seconds)


def format_datetime(text: str, zone: str) -> str:
    """Thu 2026-02-19 02:00 EST; with seconds only if they are not zero."""
    moment = datetime.fromisoformat(text).astimezone(_zone_or_utc(zone))
    seconds = f":{moment:%S}" if moment.second else ""
    return f"{moment:%a %Y-%m-%d %H:%M}{seconds} {moment.tzname()}"


def _zone_or_utc(name: str) -> tzinfo:
    """The relay may know zones that this machine does not."""
    try:
        return zone_named(name)
    except InvalidSchedule:
        return UTC


def format_relative(text: str, now: datetime) -> str:
    """in 5h12, or 3m ago"""
    seconds = (datetime.fromisoformat(text) - now).total_seconds()
    return f"in {format_duration(seconds)}" if seconds >= 0 else f"{format_duration(-seconds)} ago"
