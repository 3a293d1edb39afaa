"""Formats the page of one task: its facts, its origin and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from delegate.cli.render.status import open_questions
from delegate.cli.render.terminal import GAP, OutputStyle, fact_lines, format_duration, one_line, parse_time
from delegate.cli.render.timeline import (
    COMMIT_SHOWN,
    format_change_size,
    format_choices,
    format_clock,
    format_day,
    format_event,
    format_model_name,
    format_touched,
    format_usage,
    kept_on,
)

if TYPE_CHECKING:
    from delegate.client.responses import (
        CheckpointData,
        EventData,
        QuestionData,
        ResultData,
        TaskData,
        TaskDetail,
    )

PROMPT_SHOWN = 400  # characters of a prompt or a summary
FILES_SHOWN = 5
MODES = {
    "in_place": "",
    "worktree": "in a fresh worktree, to a branch",
    "pull_request": "in a fresh worktree, to a pull request",
}


def task_page(detail: TaskDetail, style: OutputStyle) -> list[str]:
    task = detail["task"]
    lines = [f"{one_line(task['taskId'])}{GAP}{style.paint_status(task['status'])}", ""]
    if asked := open_questions(task):
        lines += [*_question(task["taskId"], asked, style), ""]
    lines += fact_lines(_facts(detail, style.now), style)
    lines.append("")
    for event in detail["events"]:
        lines += _event_lines(event, style)
    return lines


def _event_lines(event: EventData, style: OutputStyle) -> list[str]:
    text, at = format_event(event), format_clock(event["at"])
    indent = len(at) + 2 * len(GAP)
    first, *rest = style.wrap_text(text, indent)
    return [f"  {style.paint(at, 'dim')}  {first}", *(" " * indent + line for line in rest)] if text else []


def _question(task_id: str, asked: Sequence[QuestionData], style: OutputStyle) -> list[str]:
    """The agent's questions in full, and the command that answers them."""
    lines = []
    for question in asked:
        texts = [line for text in question["text"].strip().splitlines() for line in style.wrap_text(one_line(text), 2)]
        lines += [style.paint(f"  {text}".rstrip(), "bold") for text in texts]
        lines += [f"    · {one_line(option)}" for option in question["options"]]
    options = asked[-1]["options"] if len(asked) == 1 else []
    answer = f'"{one_line(options[0])}"' if options and _is_plain(options[0]) else "TEXT"
    return [*lines, "", f"  delegate answer {one_line(task_id)} {answer}"]


def _is_plain(text: str) -> bool:
    """Whether a shell leaves the text unchanged in double quotes."""
    return text.isprintable() and not set(text) & set('"$`\\!')


def _facts(detail: TaskDetail, now: datetime) -> dict[str, str | Sequence[str] | None]:
    task = detail["task"]
    return {
        "prompt": _shorten(task["prompt"]),
        "added": _shorten(task["context"] or ""),
        "title": task["title"],
        "issue": _issue(task),
        "agent": " ".join(filter(None, (task["agent"], format_model_name(task["model"] or ""), task["effort"]))),
        "decided": format_choices(task["choices"]),
        "directory": task["workingDirectory"],
        "repository": task["repository"],
        "mode": MODES[task["mode"]],
        **_lineage(task),
        **_result(task["result"], detail["events"]),
        "why": task["why"],
        "reason": _reason(task),
        "message": task["message"],
        "hint": task["advice"],
        "submitted": f"{format_day(task['createdAt'])}, {task['priority']}",
        "ran": _format_run_time(detail, now),
        "not before": task["notBefore"] and format_day(task["notBefore"]),
        "used": format_usage(task["usage"]),
        "session": task["sessionId"],
        "checkpoint": _checkpoint(detail["checkpoint"]),
        "answered": _answered_questions(task),
        "output": f"kept on {name}, with errors and diff" if (name := kept_on(detail["events"])) else None,
        "budget": f"${task['maxBudgetUsd']:g}" if task["maxBudgetUsd"] else None,
        "max turns": str(task["maxTurns"]) if task["maxTurns"] else None,
    }


def _shorten(text: str) -> str:
    if len(text) <= PROMPT_SHOWN:
        return text
    return f"{text[:PROMPT_SHOWN]}… ({len(text):,} characters)"


def _issue(task: TaskData) -> str:
    issue = task["issue"]
    return "" if issue is None else " ".join(filter(None, (issue["key"], issue["title"], issue["url"])))


def _lineage(task: TaskData) -> dict[str, str | Sequence[str] | None]:
    """The tasks and the schedule it comes from."""
    others = [one for one in task["dependsOn"] if one != task["continueFrom"]]
    in_spite = ", whether or not they complete" if task["onDependencyFailure"] == "run" else ""
    is_resumed = task["context"] is not None or (task["lineage"] != task["taskId"] and task["agent"] != "shell")
    return {
        "continues": task["continueFrom"],
        "depends on": f"{', '.join(others)}{in_spite}" if others else None,
        "resumes" if is_resumed else "retry of": _chain(task),
        "schedule": task["scheduleId"],
    }


def _chain(task: TaskData) -> str | None:
    first = task["parentTaskId"]
    if task["retryOf"] is None or first in {None, task["retryOf"]}:
        return task["retryOf"]
    return f"{task['retryOf']}, number {task['retryCount'] + 1} of the chain from {first}"


def _result(result: ResultData | None, events: Sequence[EventData]) -> dict[str, str | Sequence[str] | None]:
    """The result of a task: where it is, how large it is, and whether its checks passed; before, what was edited."""
    if result is None:
        return {"change": format_touched(events)}
    at = f" at {result['commit'][:COMMIT_SHOWN]}" if result["commit"] else ""
    return {
        "branch": f"{result['branch']}{at}" if result["branch"] else None,
        "pull request": result["pullRequest"],
        "change": format_change_size(result) if result["files"] else None,
        "checks": f"{result['checksPassed']}/{result['checksTotal']} passed" if result["checksTotal"] else None,
        "kept": "work that was not pushed; `delegate workspaces` lists it" if result["isKept"] else None,
        "summary": _shorten(result["summary"]),
    }


def _checkpoint(left: CheckpointData | None) -> str:
    """What the last attempt left for the next one."""
    if left is None:
        return ""
    commit = (left["commit"] or "")[:COMMIT_SHOWN]
    lines = len(left["outputTail"])
    parts = (
        " at ".join(filter(None, (left["branch"], commit))),
        _changed_files(left["dirtyFiles"]),
        f"the last {lines} line{'' if lines == 1 else 's'} of output" if lines else "",
    )
    return ", ".join(filter(None, parts))


def _changed_files(names: Sequence[str] | None) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:FILES_SHOWN]) + (", …" if len(names) > FILES_SHOWN else "")
    return f"{len(names)} changed file{'' if len(names) == 1 else 's'} ({shown})"


def _answered_questions(task: TaskData) -> list[str]:
    pairs = [(question["text"], question["answer"]) for question in task["questions"]]
    return [f"{_shorten(text)} → {_shorten(answer)}" for text, answer in pairs if answer is not None]


def _reason(task: TaskData) -> str:
    if not task["reason"] or task["status"] == "completed":
        return ""
    return task["reason"] if task["exitCode"] is None else f"{task['reason']}, exit code {task['exitCode']}"


def _format_run_time(detail: TaskDetail, now: datetime) -> str:
    """The total time of all attempts, without the time between them, and the last runner."""
    attempts = detail["attempts"]
    claimed = [event["data"].get("runner") for event in detail["events"] if event["kind"] == "claimed"]
    if not attempts:
        return ""
    ends = (parse_time(one["finishedAt"]) if one["finishedAt"] else now for one in attempts)
    took = sum((end - parse_time(one["startedAt"])).total_seconds() for one, end in zip(attempts, ends, strict=True))
    runner = (claimed and claimed[-1]) or attempts[-1]["runnerId"]
    return f"{format_duration(took)} on {runner}, attempt {attempts[-1]['number']}"
