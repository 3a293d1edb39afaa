"""Commands for work that runs later: the group `schedule`, and `pipeline`."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.commands.submit import PromptCommand, one_task_options, request_fields, work_options
from delegate.cli.context import (
    CommandContext,
    HintedUsage,
    WholeNumber,
    check_encoding,
    command_options,
    examples,
    fetch_newest,
    shared_options,
)
from delegate.cli.datetimes import is_skipped_time, parse_datetime
from delegate.cli.option_types import Duration
from delegate.cli.render.schedule_page import next_lines, pipeline_table, schedule_page, schedule_table
from delegate.cli.text_input import read_prompt, read_text
from delegate.schedule.zones import zone_named

if TYPE_CHECKING:
    from delegate.client.client import Client
    from delegate.client.responses import ScheduleData

HISTORY_MAX = 100
STEPS = (2, 20)  # as schedule.PIPELINE_STEPS, which is slow to load; a test compares them
DELAY_MAX_MS = 366 * 86_400_000
STATUSES = ["active", "paused", "completed", "expired", "failed", "cancelled"]


@click.group(
    epilog=examples(
        'delegate schedule create "back up the database" --cron "0 2 * * *" --timezone America/New_York',
        "delegate schedule list",
        "delegate schedule get schedule-1f0c9a77e2",
    ),
)
@shared_options
def schedule() -> None:
    """Run tasks later, once or repeatedly. The relay starts them, even if you are not logged in."""


@schedule.command(
    cls=PromptCommand,
    epilog=examples(
        'delegate schedule create "back up the database" --cron "0 2 * * *" --timezone America/New_York',
        'delegate schedule create "deploy to production" --at 2030-02-19T08:00:00Z',
        'delegate schedule create "look at the logs again" --at +2h',
        'delegate schedule create "tidy up" --after schedule-1f0c9a77e2',
        'delegate schedule create -a shell "make report" --cron "0 9 * * 1-5" --missed-run-policy catchup',
    ),
)
@click.argument("words", nargs=-1, metavar="PROMPT…")
@click.option("--cron", metavar="FIELDS", help='Run repeatedly: "minute hour day month weekday".')
@click.option(
    "--at", metavar="TIME", help="Run once, at a time such as 2030-02-19T08:00, or after a delay such as +2h."
)
@click.option("--after", metavar="ID", help="Run when a run of this schedule has completed.")
@click.option("--timezone", metavar="ZONE", default="UTC", help="Time zone, such as America/New_York. [default: UTC]")
@click.option(
    "--missed-run-policy",
    type=click.Choice(["skip", "catchup", "fail"]),
    help="What to do when a run could not start in time. [default: skip]",
)
@click.option(
    "--max-runs", type=WholeNumber(1, 1_000_000_000), metavar="N", help="End the schedule after this many runs."
)
@click.option("--expires-at", metavar="TIME", help="Start no run at or after this time.")
@work_options
@one_task_options
@command_options
def create(context: CommandContext, /, words: tuple[str, ...], prompt_file: str | None, **options: Any) -> None:
    """Run a task later, and print the schedule's id.

    Several words are joined into one prompt; a single - reads it from standard input.
    """
    timing = timing_of(context, options, datetime.now(UTC))
    request = {"prompt": read_prompt(words, prompt_file), **timing, **request_fields(context, options)}
    made = context.client().schedule(request)["schedule"]
    if context.as_json:
        context.print_json(made)
        return
    context.print([made["scheduleId"]])
    context.print_details(next_lines(made, context.style()))


def timing_of(context: CommandContext, options: dict[str, Any], now: datetime) -> dict[str, object]:
    """Take the timing out of the options, as the relay expects it."""
    cron, at, after = options.pop("cron"), options.pop("at"), options.pop("after")
    zone, expires = options.pop("timezone"), options.pop("expires_at")
    check_encoding("timezone", zone)
    check_encoding("cronExpression", cron or "")
    if cron is None and at is None and after is None:
        advice = 'add --cron "0 2 * * *" for every night at 2:00, --at +2h, or --after ID for another schedule'
        raise HintedUsage("no time is set for the schedule", advice)
    if cron is not None and at is not None:
        raise HintedUsage("choose one of --cron and --at", "--cron runs repeatedly, --at once")
    zone_named(zone)
    at, expires = (
        _parse_datetime(context, "scheduledAt", at, zone, now),
        _parse_datetime(context, "expiresAt", expires, zone, now),
    )
    timing = {
        "scheduleType": "one_time" if cron is None else "cron",
        "cronExpression": cron,
        "scheduledAt": at,
        "timezone": zone,
        "expiresAt": expires,
        "afterSchedule": after,
    }
    return {name: value for name, value in timing.items() if value is not None}


def _parse_datetime(context: CommandContext, field: str, typed: str | None, zone: str, now: datetime) -> str | None:
    if typed is None:
        return None
    meant = parse_datetime(field, typed, zone, now)
    if is_skipped_time(typed, zone):
        context.say(f"{typed.strip()} is skipped by the clocks of {zone}; using {meant}")
    return meant


@schedule.command(
    "list",
    epilog=examples(
        "delegate schedule list", "delegate schedule list --status active", "delegate schedule list --json"
    ),
)
@click.option("--status", type=click.Choice(STATUSES), help="List only schedules with this status.")
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(1, 10_000),
    default=20,
    metavar="N",
    help="Show at most N schedules, from 1 to 10,000. [default: 20]",
)
@command_options
def list_(context: CommandContext, status: str | None, limit: int) -> None:
    """List the newest schedules. Each is shown with its next run, or the reason why there is none."""
    schedules, more = fetch_newest(partial(_page, context.client(), status), limit)
    if context.as_json:
        context.print_json_lines(schedules)
    elif schedules:
        context.print(schedule_table(schedules, context.style()))
        if more:
            context.say(f"only the newest {limit} are shown; -n shows more")
    elif status:
        context.say(f"there are no schedules with status {status}", "`delegate schedule list` shows all")
    else:
        context.say(
            "there are no schedules yet", 'delegate schedule create "update the dependencies" --cron "0 2 * * *"'
        )


def _page(client: Client, status: str | None, limit: int, cursor: str | None) -> tuple[list[ScheduleData], str | None]:
    page = client.schedules(limit=limit, status=status, cursor=cursor)
    return page["schedules"], page["next"]


@schedule.command(
    epilog=examples("delegate schedule get schedule-1f0c9a77e2", "delegate schedule get -n 100 schedule-1f0c9a77e2")
)
@click.argument("schedule_id", metavar="ID")
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(1, HISTORY_MAX),
    default=10,
    metavar="N",
    help="Show at most N runs, from 1 to 100. [default: 10]",
)
@command_options
def get(context: CommandContext, schedule_id: str, limit: int) -> None:
    """Show a schedule and the outcome of its runs."""
    detail = context.client().schedule_in_full(schedule_id, limit)
    context.print_result({**detail["schedule"], "history": detail["history"]}, schedule_page(detail, context.style()))


@schedule.command(
    epilog=examples(
        "delegate schedule pause schedule-1f0c9a77e2",
        'delegate schedule pause schedule-1f0c9a77e2 --reason "holidays"',
    )
)
@click.argument("schedule_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the schedule.")
@command_options
def pause(context: CommandContext, schedule_id: str, reason: str) -> None:
    """Pause a schedule until it is resumed. A task that is running continues."""
    check_encoding("reason", reason)
    _print_schedule(context, context.client().pause_schedule(schedule_id, reason))


@schedule.command(epilog=examples("delegate schedule resume schedule-1f0c9a77e2"))
@click.argument("schedule_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the schedule.")
@command_options
def resume(context: CommandContext, schedule_id: str, reason: str) -> None:
    """Resume a paused schedule. It continues with its next scheduled time."""
    check_encoding("reason", reason)
    _print_schedule(context, context.client().resume_schedule(schedule_id, reason))


@schedule.command(
    epilog=examples(
        "delegate schedule cancel schedule-1f0c9a77e2", "delegate schedule cancel --cancel-tasks schedule-1f0c9a77e2"
    )
)
@click.argument("schedule_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the schedule.")
@click.option("--cancel-tasks", is_flag=True, help="Also cancel those of its tasks that have not ended.")
@command_options
def cancel(context: CommandContext, schedule_id: str, reason: str, cancel_tasks: bool) -> None:
    """End a schedule for good. Its tasks continue unless --cancel-tasks is given."""
    check_encoding("reason", reason)
    response = context.client().cancel_schedule(schedule_id, reason, cancel_tasks=cancel_tasks)
    if context.as_json:
        context.print_json({**response["schedule"], "tasks": response["tasks"]})
        return
    _print_schedule(context, response["schedule"])
    # A running task is still being stopped: its runner reports when its processes have ended.
    context.print(
        f"{task['taskId']} {'is being cancelled' if task['status'] == 'running' else task['status']}"
        for task in response["tasks"]
    )


def _print_schedule(context: CommandContext, changed: ScheduleData) -> None:
    if context.as_json:
        context.print_json(changed)
        return
    context.print([f"{changed['scheduleId']} {changed['status']}"])
    context.print_details(next_lines(changed, context.style()))


@click.command(
    cls=PromptCommand,
    epilog=examples(
        'delegate pipeline "npm run build" "npm test" "npm run deploy" -a shell',
        'delegate pipeline "build it" "test what you have built" --delay 30s',
    ),
)
@click.argument("prompts", nargs=-1, metavar="PROMPT PROMPT…")
@click.option(
    "--delay",
    type=Duration(0, DELAY_MAX_MS, "0 ms to 31,622,400,000 ms (366 days)"),
    default=0,
    metavar="TIME",
    help="How long a step waits after the end of the previous one, such as 30s, 5m or 2h.",
)
@work_options
@command_options
def pipeline(context: CommandContext, /, prompts: tuple[str, ...], delay: int, **options: Any) -> None:
    """Run tasks in sequence, each continuing from the previous one.

    A step that fails stops the rest.

    Each argument is the prompt of one step; a single - reads one of them from standard input.
    """
    low, high = STEPS
    if not low <= len(prompts) <= high:
        hint = 'put quotes around each prompt: delegate pipeline "build it" "test it"'
        raise HintedUsage(f"a pipeline has {low} to {high} steps, not {len(prompts)}", hint)
    if prompts.count("-") > 1:
        raise HintedUsage("only one step can be read from standard input", "write the others as arguments")
    fields = request_fields(context, options)
    texts = [read_text(f"step {number}", (prompt,)) for number, prompt in enumerate(prompts, 1)]
    steps = [
        {"prompt": text, **fields, **({"delay": delay} if number and delay else {})}
        for number, text in enumerate(texts)
    ]
    made = context.client().pipeline(steps)
    context.print_result(made, pipeline_table(made, context.style()))
