"""The commands about what came of a task, and how it goes on: diff, prompt, resume, answer."""

from __future__ import annotations

import sys

import click

from delegate.cli.context import CommandContext, examples, shared_options
from delegate.cli.render import terminal
from delegate.cli.text_input import check_text, read_text
from delegate.errors import escape

# The first that fits; a file's heading looks like a changed line.
LINE_COLOURS = (
    (
        ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode", "rename ", "copy "),
        "bold",
    ),
    (("@@",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
)


@click.command(epilog=examples("delegate diff task-1f0c9a77e2", "delegate diff task-1f0c9a77e2 | git apply"))
@click.argument("task_id", metavar="ID")
@shared_options
@click.pass_obj
def diff(context: CommandContext, task_id: str) -> None:
    """Show what a task has changed, against the commit it started from."""
    change = context.client().change(task_id)
    if context.as_json:
        context.print_json(change)
        return
    if terminal.is_terminal(sys.stdout):
        show = paint_line if context.style().colour else escape_line
        context.print(map(show, lines_of(change["patch"])))
    else:
        _print_exactly(change["patch"])
    if change["isCut"]:
        context.say(
            "the change is longer than what is kept here", "the branch has all of it: `delegate status` names it"
        )


def lines_of(text: str) -> list[str]:
    """Where git ends them, and nowhere else."""
    return text.removesuffix("\n").split("\n") if text else []


def paint_line(line: str) -> str:
    colour = next((colour for starts, colour in LINE_COLOURS if line.startswith(starts)), "")
    return terminal.paint(escape_line(line), colour) if colour else escape_line(line)


def escape_line(line: str) -> str:
    """A foreign line for a terminal: as it is, without what would drive it."""
    return "\t".join(escape(part) for part in line.split("\t"))


def _print_exactly(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


@click.command(epilog=examples("delegate prompt task-1f0c9a77e2"))
@click.argument("task_id", metavar="ID")
@shared_options
@click.pass_obj
def prompt(context: CommandContext, task_id: str) -> None:
    """Show what the agent was told: the request with all that Delegate has put around it."""
    given = context.client().prompt(task_id)
    if context.as_json:
        context.print_json(given)
        return
    if not given["isRendered"]:
        context.say(f"{task_id} was given as it stands here, or has not begun yet")
    if terminal.is_terminal(sys.stdout):
        context.print(map(escape_line, lines_of(given["text"])))
    else:
        _print_exactly(f"{given['text']}\n")


@click.command(
    epilog=examples(
        "delegate resume task-1f0c9a77e2",
        'delegate resume task-1f0c9a77e2 --context "use the table of the tests, not a new one"',
    )
)
@click.argument("task_id", metavar="ID")
@click.option("--context", metavar="TEXT", help="What the agent is to know or to do differently.")
@shared_options
@click.pass_obj
def resume(command_context: CommandContext, task_id: str, context: str | None) -> None:
    """Go on where an ended task stopped: a new task with its session and its work; prints the new id."""
    added = None if context is None else check_text("context", context)
    command_context.print_task(command_context.client().resume(task_id, added))


@click.command(
    epilog=examples(
        "delegate answer task-1f0c9a77e2 PostgreSQL",
        'delegate answer task-1f0c9a77e2 "use the table of the tests"',
        "delegate answer task-1f0c9a77e2 - < decision.md",
    )
)
@click.argument("task_id", metavar="ID")
@click.argument("words", nargs=-1, metavar="TEXT…")
@shared_options
@click.pass_obj
def answer(context: CommandContext, task_id: str, words: tuple[str, ...]) -> None:
    """Answer what a task's agent has asked; it goes on with the answer in the same session.

    Several words make one answer; a single - reads it from standard input. `delegate status ID` shows the question.
    """
    task = context.client().answer(task_id, read_text("answer", words))
    if context.as_json:
        context.print_json(task)
    else:
        context.print([f"{task['taskId']} answered"])
