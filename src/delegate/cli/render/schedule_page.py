"""Schedules as people read them: the table of many, the page of one, the steps of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from delegate.cli.render.output import GAP, Entry, Look, fact_lines, listing
from delegate.cli.render.terminal import fit, one_line
from delegate.cli.render.timeline import moment, span
from delegate.errors import InvalidSchedule
from delegate.schedule.zones import zone_named

if TYPE_CHECKING:
    from delegate.client.responses import PipelineData, RunData, ScheduleData, ScheduleDetail

HEADINGS = ("SCHEDULE", "STATUS", "NEXT", "WHEN")
WHEN_MAX = 16  # columns for a cron expression in the table
PROMPT_SHOWN = 400
STOPPED = {"expired", "failed"}  # not by the one who asks: the message says by what
RUN_HEADINGS = ("DUE", "OUTCOME", "TASK")
# How the last run ended, where the status alone would let it seem to have ended well.
TOLD_OUTCOMES = {
    "started": "task started",
    "failed": "task failed",
    "cancelled": "task cancelled",
    "missed": "missed",
    "overlapped": "overlapped",
    "refused": "refused",
}
LATE = 60.0  # seconds after its time from which a run was late
INDENT = "  "


def schedule_table(schedules: Sequence[ScheduleData], look: Look) -> list[str]:
    return listing(HEADINGS, "PROMPT", [_entry(schedule, look) for schedule in schedules], look)


def _entry(schedule: ScheduleData, look: Look) -> Entry:
    next_run = schedule["nextRunAt"]
    cells = (
        one_line(schedule["scheduleId"]),
        _status(schedule),
        from_now(next_run, look.now) if next_run else "",
        fit(_when(schedule), WHEN_MAX),
    )
    return Entry(cells=cells, words=one_line(schedule["prompt"]), note=_note(schedule))


def _status(schedule: ScheduleData) -> str:
    outcome = TOLD_OUTCOMES.get(schedule["lastOutcome"] or "")
    return f"{schedule['status']} ({outcome})" if outcome else schedule["status"]


def _when(schedule: ScheduleData) -> str:
    if schedule["cronExpression"]:
        return one_line(schedule["cronExpression"])
    return "after another" if schedule["afterSchedule"] else "once"


def _note(schedule: ScheduleData) -> str:
    if schedule["why"]:
        return f"why: {one_line(schedule['why'])}"
    return one_line(schedule["message"] or "")


def next_lines(schedule: ScheduleData, look: Look) -> list[str]:
    """The next runs in the schedule's own zone, or why there is none yet."""
    lines = [_next(text, schedule["timezone"], look) for text in schedule["nextRuns"]]
    why = schedule["message"] if schedule["status"] in STOPPED else schedule["why"]
    if not lines and why:
        lines = [one_line(why)]
    return [fit(f"  {line}", look.width) for line in lines]


def _next(text: str, zone: str, look: Look) -> str:
    due = ": due now" if moment(text) <= look.now else ""
    return f"{shown_moment(text, zone)}, {from_now(text, look.now)}{due}"


def schedule_page(detail: ScheduleDetail, look: Look) -> list[str]:
    schedule = detail["schedule"]
    lines = [f"{one_line(schedule['scheduleId'])}{GAP}{look.paint_status(_status(schedule))}", ""]
    lines += fact_lines(_facts(schedule, look), look)
    if not detail["history"]:
        return lines
    return [*lines, "", *_history(detail["history"], schedule["timezone"], look)]


def _facts(schedule: ScheduleData, look: Look) -> dict[str, str | Sequence[str] | None]:
    task, zone = schedule["task"], schedule["timezone"]
    prompt, runs = schedule["prompt"], str(schedule["runs"])
    at, expires = schedule["scheduledAt"], schedule["expiresAt"]
    return {
        "prompt": prompt if len(prompt) <= PROMPT_SHOWN else f"{prompt[:PROMPT_SHOWN]}… ({len(prompt):,} characters)",
        "agent": " ".join(str(task[name]) for name in ("agent", "model", "effort") if task.get(name)),
        "directory": str(task.get("workingDirectory") or ""),
        "repository": str(task.get("repository") or ""),
        "cron": schedule["cronExpression"] and f"{schedule['cronExpression']} in {zone}",
        "at": at and shown_moment(at, zone),
        "after": _after(schedule),
        "next": [_next(text, zone, look) for text in schedule["nextRuns"]],
        "why": schedule["why"],
        "message": schedule["message"],
        "if missed": schedule["missedRunPolicy"],
        "runs": runs if schedule["maxRuns"] is None else f"{runs} of {schedule['maxRuns']}",
        "expires": expires and shown_moment(expires, zone),
        "pipeline": schedule["pipeline"],
        "created": shown_moment(schedule["createdAt"], zone),
        "ended": schedule["endedAt"] and shown_moment(schedule["endedAt"], zone),
    }


def _after(schedule: ScheduleData) -> str:
    if not schedule["afterSchedule"]:
        return ""
    delay = f", {_delay(schedule)} after its end" if schedule["delay"] else ""
    return f"{schedule['afterSchedule']}{delay}"


def _history(runs: Sequence[RunData], zone: str, look: Look) -> list[str]:
    inside = replace(look, width=look.width - len(INDENT))
    return [f"{INDENT}{line}" for line in listing(RUN_HEADINGS, "", [_run(run, zone) for run in runs], inside)]


def _run(run: RunData, zone: str) -> Entry:
    missed = f"{run['missed']} more passed over" if run["missed"] else ""
    reason = "" if run["reason"] in {None, run["outcome"]} else run["reason"]
    told = [] if run["outcome"] == "completed" else [reason, run["message"]]
    return Entry(
        cells=(shown_moment(run["occurrence"], zone), run["outcome"], one_line(run["taskId"] or "")),
        words=", ".join(_course(run)) if run["taskId"] else "",
        note="; ".join(filter(None, [missed, ": ".join(one_line(words) for words in told if words)])),
    )


def _course(run: RunData) -> list[str]:
    """How the task of a run went: late, and how long."""
    late = (moment(run["at"]) - moment(run["occurrence"])).total_seconds()
    told = [f"{span(late)} late"] if late >= LATE else []
    if run["finishedAt"]:
        told.append(f"took {span((moment(run['finishedAt']) - moment(run['at'])).total_seconds())}")
    return told


def pipeline_table(made: PipelineData, look: Look) -> list[str]:
    """The steps in their order; each is a schedule of its own."""
    entries = [
        Entry(
            cells=(one_line(step["scheduleId"]), _status(step), _starts(step)), words=one_line(step["prompt"]), note=""
        )
        for step in made["steps"]
    ]
    return listing(("STEP", "STATUS", "STARTS"), "PROMPT", entries, look)


def _starts(step: ScheduleData) -> str:
    if not step["afterSchedule"]:
        return "now"
    return f"{_delay(step)} later" if step["delay"] else "then"


def _delay(schedule: ScheduleData) -> str:
    seconds = schedule["delay"] / 1000
    return f"{seconds:g}s" if seconds < 60 else span(seconds)


def shown_moment(text: str, zone: str) -> str:
    """Thu 2026-02-19 02:00 EST; the seconds only when there are some."""
    moment = datetime.fromisoformat(text).astimezone(_zone_or_utc(zone))
    seconds = f":{moment:%S}" if moment.second else ""
    return f"{moment:%a %Y-%m-%d %H:%M}{seconds} {moment.tzname()}"


def _zone_or_utc(name: str) -> tzinfo:
    """The relay may know zones that this machine does not."""
    try:
        return zone_named(name)
    except InvalidSchedule:
        return UTC


def from_now(text: str, now: datetime) -> str:
    """in 5h12, or 3m ago"""
    seconds = (datetime.fromisoformat(text) - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"
