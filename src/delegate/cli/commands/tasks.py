"""The commands about tasks that are there: status, logs, cancel, retry."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from delegate.cli.context import Door, HintedUsage, examples, shared_options
from delegate.cli.pagination import newest
from delegate.cli.render import terminal
from delegate.cli.render.output import task_table
from delegate.cli.text_input import check_encoding
from delegate.errors import DelegateError, IllegalMove

if TYPE_CHECKING:
    from delegate.client.client import Client
    from delegate.client.responses import TaskData

TAIL_MAX = 10_000  # lines the relay gives at most
ENDED = {"completed", "failed", "cancelled"}
CANCEL_MARGIN = 20.0  # seconds beyond the agents' grace that a cancel waits for its task's end
CANCEL_POLL = 0.1
ID_LIKE = re.compile(r"task-\S*")  # also when it is mistyped: nobody's reason begins so
SAY_WHY = "write the reason as --reason TEXT"


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
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=20, help="How many tasks; 20 if not set.")
@click.option("--tree", is_flag=True, help="Draw which task waits for which; with ID, all around it.")
@shared_options
@click.pass_obj
def status(door: Door, task_id: str | None, limit: int, tree: bool) -> None:
    """List the newest tasks, or show one with its timeline."""
    if tree and task_id is not None:
        _show_graph(door, task_id)
    elif task_id is not None:
        _show_task(door, task_id)
    else:
        _show_newest(door, limit, tree=tree)


def _show_newest(door: Door, limit: int, *, tree: bool) -> None:
    tasks, more = newest(partial(_page, door.client()), limit)
    if door.as_json:
        door.print_json_lines(tasks)
    elif tasks:
        door.print(_drawn(door, tasks) if tree else task_table(tasks, door.look()))
        if more:
            door.say(f"these are the newest {limit}; -n shows more")
    else:
        door.say("there are no tasks yet", 'delegate delegate "say what is to be done"')


def _show_graph(door: Door, task_id: str) -> None:
    graph = door.client().graph(task_id)
    if door.as_json:
        door.print_json_lines(graph["tasks"])
        return
    door.print(_drawn(door, graph["tasks"]))
    if graph["isCut"]:
        door.say(f"there are more: these are {len(graph['tasks'])} tasks around {task_id}")


def _drawn(door: Door, tasks: list[TaskData]) -> list[str]:
    from delegate.cli.render.tree import ASCII, LINES, draw  # noqa: PLC0415  only needed for a tree

    marks = ASCII if terminal.is_ascii(door.environ, sys.stdout) else LINES
    return draw(tasks, door.look(), marks)


def _page(client: Client, limit: int, cursor: str | None) -> tuple[list[TaskData], str | None]:
    page = client.tasks(limit=limit, cursor=cursor)
    return page["tasks"], page["next"]


def _show_task(door: Door, task_id: str) -> None:
    from delegate.cli.render.task_page import task_page  # noqa: PLC0415  the table needs none of it

    detail = door.client().task(task_id)
    if door.as_json:
        parts = {"checkpoint": detail["checkpoint"], "attempts": detail["attempts"], "timeline": detail["events"]}
        door.print_json({**detail["task"], **parts})
    else:
        door.print(task_page(detail, door.look()))


@click.command(
    epilog=examples(
        "delegate logs task-1f0c9a77e2",
        "delegate logs --tail 20 task-1f0c9a77e2",
        "delegate logs -f task-1f0c9a77e2",
        "delegate logs --raw task-1f0c9a77e2 > output.bin",
    )
)
@click.argument("task_id", metavar="ID")
@click.option("--tail", type=click.IntRange(1, TAIL_MAX), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task ends.")
@click.option("--raw", is_flag=True, help="The exact bytes of the last attempt.")
@shared_options
@click.pass_obj
def logs(door: Door, task_id: str, tail: int | None, follow: bool, raw: bool) -> int:
    """Show what a task has printed or done, during the run and after it."""
    from delegate.cli import follow as live  # noqa: PLC0415  only followers need it

    if follow + raw + (tail is not None) > 1:
        raise HintedUsage("choose one of --tail, -f and --raw", "`delegate logs --help` shows how it is used")
    if raw and door.as_json:
        raise HintedUsage("choose one of --raw and --json", "exact bytes are no JSON; without --raw each line is")
    client = door.client()
    if raw:
        _copy_raw(client, task_id)
        return 0
    detail = client.task(task_id)
    task = detail["task"]
    if follow:
        return _show_to_end(door, client, task)
    if tail is None and task["status"] in ENDED:
        _show_to_end(door, client, task)
    elif task["agent"] == "shell":
        live.show_lines(door, client.output(task_id, tail))
    else:
        live.show_events(door, detail["events"], tail)
        live.say_question(door, task)
    return 0


def _show_to_end(door: Door, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    try:
        ended = follow.follow(door, client, task)
    except KeyboardInterrupt:
        return follow.EXIT_INTERRUPTED
    if not door.as_json:
        follow.say_end(door, ended)
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
@click.option("--reason", metavar="TEXT", help="Why; it is shown with the tasks.")
@shared_options
@click.pass_obj
def cancel(door: Door, words: tuple[str, ...], reason: str | None) -> int:
    """Stop tasks, with every process they have started; words that are no ids of tasks say why."""
    task_ids, why = named_and_why(words, reason)
    check_encoding("reason", why)
    client = door.client()
    asked, codes = [], [0]
    for task_id in task_ids:
        try:
            asked.append(client.cancel(task_id, why))
        except DelegateError as error:
            if error.exit_code != IllegalMove.exit_code:
                raise
            door.complain(error, as_json=door.as_json)  # of this one; the others are cancelled all the same
            codes.append(error.exit_code)
    deadline = time.monotonic() + door.settings.grace.total_seconds() + CANCEL_MARGIN
    codes += [_tell_cancelled(door, _ended(client, task, deadline)) for task in asked]
    return max(codes)


def named_and_why(words: tuple[str, ...], reason: str | None) -> tuple[list[str], str]:
    """The first word names a task, and so does each that looks like it; the reason comes after all of them."""
    ids = [words[0], *(word for word in words[1:] if ID_LIKE.fullmatch(word))]
    rest = tuple(word for word in words[1:] if not ID_LIKE.fullmatch(word))
    if words != (*ids, *rest):
        raise HintedUsage(f"{ids[-1]} stands after the reason", f"{SAY_WHY}, and the tasks before it")
    if rest and reason is not None:
        raise HintedUsage(f"{rest[0]!r} is no id of a task, and --reason says why already", SAY_WHY)
    return list(dict.fromkeys(ids)), " ".join(rest) if reason is None else reason


def _ended(client: Client, task: TaskData, deadline: float) -> TaskData:
    """The task at its end, or as it is when the time is over."""
    while task["status"] not in ENDED and time.monotonic() < deadline:
        time.sleep(CANCEL_POLL)
        task = client.task(task["taskId"])["task"]
    return task


def _tell_cancelled(door: Door, task: TaskData) -> int:
    if door.as_json:
        door.print_json(task)
    elif task["status"] == "cancelled":
        door.print([f"{task['taskId']} {task['status']}"])
    elif task["status"] in ENDED:
        door.say(f"{task['taskId']} had {task['status']} before it could be cancelled")
    else:
        door.say(f"{task['taskId']} will be cancelled when its runner is heard of again")
    return IllegalMove.exit_code if task["status"] in ENDED - {"cancelled"} else 0


@click.command(epilog=examples("delegate retry task-1f0c9a77e2"))
@click.argument("task_id", metavar="ID")
@shared_options
@click.pass_obj
def retry(door: Door, task_id: str) -> None:
    """Run an ended task again as a new task, and print the new id.

    One that failed or was cancelled goes on from what it left behind; one that completed starts anew.
    """
    door.print_task(door.client().retry(task_id))
