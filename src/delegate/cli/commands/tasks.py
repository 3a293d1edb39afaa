"""Commands for existing tasks: status, logs, cancel, retry."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from delegate.cli.context import (
    CommandContext,
    HintedUsage,
    WholeNumber,
    check_encoding,
    command_options,
    examples,
    fetch_newest,
)
from delegate.cli.render import terminal
from delegate.cli.render.status import task_table
from delegate.errors import DelegateError, IllegalMove

if TYPE_CHECKING:
    from delegate.client.client import Client
    from delegate.client.responses import TaskData

TAIL_MAX = 10_000  # the most lines that the relay returns
ENDED = {"completed", "failed", "cancelled"}
CANCEL_MARGIN = 20.0  # seconds beyond the agents' grace that a cancel waits for its task's end
CANCEL_POLL = 0.1
CANCELLING = "is being cancelled"  # why a cancelled task still runs, if nothing else delays it
ID_LIKE = re.compile(r"task-\S*")  # also a mistyped id: no reason starts like this
REASON_HINT = "write the reason as --reason TEXT"


@click.command(
    epilog=examples(
        "delegate status",
        "delegate status task-1f0c9a77e2",
        "delegate status --tree",
        "delegate status --tree task-1f0c9a77e2",
        "delegate status --json",
    )
)
@click.argument("task_id", metavar="[ID]", required=False)
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(1, 10_000),
    default=20,
    metavar="N",
    help="Show at most N tasks, from 1 to 10,000. [default: 20]",
)
@click.option("--tree", is_flag=True, help="Draw which task waits for which. With ID, draw all tasks connected to it.")
@command_options
def status(context: CommandContext, task_id: str | None, limit: int, tree: bool) -> None:
    """List the newest tasks, or show one with its timeline."""
    if tree and task_id is not None:
        _show_graph(context, task_id)
    elif task_id is not None:
        _show_task(context, task_id)
    else:
        _show_newest(context, limit, tree=tree)


def _show_newest(context: CommandContext, limit: int, *, tree: bool) -> None:
    tasks, more = fetch_newest(partial(_page, context.client()), limit)
    if context.as_json:
        context.print_json_lines(tasks)
    elif tasks:
        context.print(_draw_tree(context, tasks) if tree else task_table(tasks, context.style()))
        if more:
            context.say(f"only the newest {limit} are shown; -n shows more")
    else:
        context.say("there are no tasks yet", 'delegate run "fix the failing test"')


def _show_graph(context: CommandContext, task_id: str) -> None:
    graph = context.client().graph(task_id)
    if context.as_json:
        context.print_json_lines(graph["tasks"])
        return
    context.print(_draw_tree(context, graph["tasks"]))
    if graph["isCut"]:
        context.say(f"only {len(graph['tasks'])} of the tasks connected to {task_id} are shown")


def _draw_tree(context: CommandContext, tasks: list[TaskData]) -> list[str]:
    from delegate.cli.render.tree import ASCII, LINES, draw  # noqa: PLC0415  only needed for a tree

    marks = ASCII if terminal.is_ascii(context.environ, sys.stdout) else LINES
    return draw(tasks, context.style(), marks)


def _page(client: Client, limit: int, cursor: str | None) -> tuple[list[TaskData], str | None]:
    page = client.tasks(limit=limit, cursor=cursor)
    return page["tasks"], page["next"]


def _show_task(context: CommandContext, task_id: str) -> None:
    from delegate.cli.render.task_page import task_page  # noqa: PLC0415  the table needs none of it

    detail = context.client().task(task_id)
    if context.as_json:
        parts = {"checkpoint": detail["checkpoint"], "attempts": detail["attempts"], "timeline": detail["events"]}
        context.print_json({**detail["task"], **parts})
    else:
        context.print(task_page(detail, context.style()))


@click.command(
    epilog=examples(
        "delegate logs task-1f0c9a77e2",
        "delegate logs --tail 20 task-1f0c9a77e2",
        "delegate logs -f task-1f0c9a77e2",
        "delegate logs --raw task-1f0c9a77e2 > output.bin",
    )
)
@click.argument("task_id", metavar="ID")
@click.option(
    "--tail", type=WholeNumber(1, TAIL_MAX), metavar="N", help="Show only the last N lines, from 1 to 10,000."
)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the task ends.")
@click.option("--raw", is_flag=True, help="Print the output of the last attempt byte for byte.")
@command_options
def logs(context: CommandContext, task_id: str, tail: int | None, follow: bool, raw: bool) -> int:
    """Show a task's output, while it runs or afterwards."""
    from delegate.cli import follow as live  # noqa: PLC0415  only followers need it
    from delegate.cli.render.timeline import kept_on  # noqa: PLC0415  as above

    if follow + raw + (tail is not None) > 1:
        raise HintedUsage("choose one of --tail, -f and --raw", "`delegate logs --help` shows how it is used")
    if raw and context.as_json:
        raise HintedUsage(
            "choose one of --raw and --json", "raw bytes are not JSON; without --raw, each line is a JSON object"
        )
    client = context.client()
    detail = client.task(task_id)
    task = detail["task"]
    if runner := kept_on(detail["events"]):
        advice = f"`delegate runner privacy {task_id} --show full` on that machine shows it"
        context.say(f"the output of {task_id} is kept on {runner}", advice)
    if raw:
        _copy_raw(client, task_id)
        return 0
    if follow:
        return _show_to_end(context, client, task)
    if tail is None and task["status"] in ENDED:
        _show_to_end(context, client, task)
    elif task["agent"] == "shell":
        live.show_lines(context, client.output(task_id, tail))
    else:
        live.show_events(context, detail["events"], tail)
        live.say_question(context, task)
    return 0


def _show_to_end(context: CommandContext, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    try:
        ended = follow.follow(context, client, task)
    except KeyboardInterrupt:
        return follow.EXIT_INTERRUPTED
    if not context.as_json:
        follow.say_end(context, ended)
    return follow.exit_code(ended)


def _copy_raw(client: Client, task_id: str) -> None:
    for piece in client.raw_output(task_id):
        if sys.stdout is not None:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


@click.command(
    epilog=examples(
        "delegate cancel task-1f0c9a77e2",
        'delegate cancel task-1f0c9a77e2 "wrong branch"',
        'delegate cancel task-1f0c9a77e2 task-77e0c1ab3f --reason "wrong branch"',
    )
)
@click.argument("words", nargs=-1, required=True, metavar="ID… [REASON]")
@click.option("--reason", metavar="TEXT", help="The reason, shown with the tasks.")
@command_options
def cancel(context: CommandContext, words: tuple[str, ...], reason: str | None) -> int:
    """Stop tasks and every process they started. Words after the ids are the reason."""
    task_ids, why = split_ids_and_reason(words, reason)
    check_encoding("reason", why)
    client = context.client()
    asked, codes = [], [0]
    for task_id in task_ids:
        try:
            asked.append(client.cancel(task_id, why))
        except DelegateError as error:
            if error.exit_code != IllegalMove.exit_code:
                raise
            context.print_error(error, as_json=context.as_json)  # the other tasks are still cancelled
            codes.append(error.exit_code)
    deadline = time.monotonic() + context.settings.grace.total_seconds() + CANCEL_MARGIN
    codes += [_report_cancel(context, _wait_for_end(context, client, task, deadline)) for task in asked]
    return max(codes)


def split_ids_and_reason(arguments: tuple[str, ...], reason: str | None) -> tuple[list[str], str]:
    """The first argument is an id, and so is each that looks like one; the reason follows them."""
    ids = [arguments[0], *(word for word in arguments[1:] if ID_LIKE.fullmatch(word))]
    rest = tuple(word for word in arguments[1:] if not ID_LIKE.fullmatch(word))
    if arguments != (*ids, *rest):
        raise HintedUsage(f"{ids[-1]} comes after the reason", f"{REASON_HINT}, or put it after all task ids")
    if rest and reason is not None:
        raise HintedUsage(f"{rest[0]!r} is not a task id, and --reason already gives the reason", REASON_HINT)
    return list(dict.fromkeys(ids)), " ".join(rest) if reason is None else reason


def _wait_for_end(context: CommandContext, client: Client, task: TaskData, deadline: float) -> TaskData:
    """The task when it has ended, or as it is at the deadline."""
    while task["status"] not in ENDED and time.monotonic() < deadline:
        if task["why"] not in {None, CANCELLING}:  # it publishes its work, or its runner is silent
            context.say_once(f"{task['taskId']} {task['why']}")
        time.sleep(CANCEL_POLL)
        task = client.task(task["taskId"])["task"]
    return task


def _report_cancel(context: CommandContext, task: TaskData) -> int:
    if context.as_json:
        context.print_json(task)
    elif task["status"] == "cancelled":
        context.print([f"{task['taskId']} {task['status']}"])
    elif task["status"] in ENDED:
        ended = f"{task['taskId']} had {task['status']} before it could be cancelled"
        context.say(f"{ended}: {terminal.one_line(task['message'])}" if task["message"] else ended)
    elif task["why"] not in {None, CANCELLING}:
        context.say_once(f"{task['taskId']} {task['why']}")
    else:
        context.say(f"{task['taskId']} will be cancelled when its runner reconnects")
    return IllegalMove.exit_code if task["status"] in ENDED - {"cancelled"} else 0


@click.command(epilog=examples("delegate retry task-1f0c9a77e2"))
@click.argument("task_id", metavar="ID")
@command_options
def retry(context: CommandContext, task_id: str) -> None:
    """Run an ended task again as a new task, and print the new id.

    A task that failed or was cancelled continues from where it stopped; a completed one starts over.
    """
    context.print_task(context.client().retry(task_id))
