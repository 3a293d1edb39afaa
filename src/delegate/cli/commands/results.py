"""Commands for a task's result and its continuation: diff, prompt, resume, answer."""

from __future__ import annotations

import sys

import click

from delegate.cli.context import CommandContext, command_options, examples
from delegate.cli.render import terminal
from delegate.cli.text_input import check_text, read_text
from delegate.errors import escape

# The first match counts; a file's heading looks like a changed line.
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
@command_options
def diff(context: CommandContext, task_id: str) -> None:
    """Show what a task changed since the commit it started from."""
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
            "the change is too long to be shown in full", "the branch has all of it; `delegate status` shows its name"
        )


def lines_of(text: str) -> list[str]:
    """Split only at line feeds, as git does."""
    return text.removesuffix("\n").split("\n") if text else []


def paint_line(line: str) -> str:
    colour = next((colour for starts, colour in LINE_COLOURS if line.startswith(starts)), "")
    return terminal.paint(escape_line(line), colour) if colour else escape_line(line)


def escape_line(line: str) -> str:
    """Escape control characters in untrusted text, except tabs."""
    return "\t".join(escape(part) for part in line.split("\t"))


def _print_exactly(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


@click.command(epilog=examples("delegate prompt task-1f0c9a77e2"))
@click.argument("task_id", metavar="ID")
@command_options
def prompt(context: CommandContext, task_id: str) -> None:
    """Show the prompt that the agent received. It includes what Delegate added."""
    given = context.client().prompt(task_id)
    if context.as_json:
        context.print_json(given)
        return
    if not given["isRendered"]:
        context.say(f"{task_id} has not started yet, or its prompt was passed on unchanged")
    if terminal.is_terminal(sys.stdout):
        context.print(map(escape_line, lines_of(given["text"])))
    else:
        _print_exactly(f"{given['text']}\n")


@click.command(
    epilog=examples(
        "delegate resume task-1f0c9a77e2",
        'delegate resume task-1f0c9a77e2 --context "use the existing table, not a new one"',
    )
)
@click.argument("task_id", metavar="ID")
@click.option("--context", metavar="TEXT", help="What the agent should know or do differently.")
@command_options
def resume(command_context: CommandContext, task_id: str, context: str | None) -> None:
    """Continue an ended task as a new task, and print the new id.

    The new task keeps the session and the work of the old one.
    """
    added = None if context is None else check_text("context", context)
    command_context.print_task(command_context.client().resume(task_id, added))


@click.command(
    epilog=examples(
        "delegate answer task-1f0c9a77e2 PostgreSQL",
        'delegate answer task-1f0c9a77e2 "use the existing table"',
        "delegate answer task-1f0c9a77e2 - < decision.md",
    )
)
@click.argument("task_id", metavar="ID")
@click.argument("words", nargs=-1, metavar="TEXT…")
@command_options
def answer(context: CommandContext, task_id: str, words: tuple[str, ...]) -> None:
    """Answer an agent's question. The agent continues in the same session.

    Several words make one answer; a single - reads it from standard input. `delegate status ID` shows the question.
    """
    task = context.client().answer(task_id, read_text("answer", words))
    context.print_result(task, [f"{task['taskId']} answered"])
