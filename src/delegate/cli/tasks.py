"""The commands about tasks: delegate, status, logs, cancel, retry."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delegate import config, home
from delegate.cli.door import Door, HintedUsage, examples, shared_options
from delegate.cli.output import note_of, task_page, task_table
from delegate.errors import IllegalMove, InvalidField

if TYPE_CHECKING:
    from delegate.answers import TaskData
    from delegate.client import Client

PROMPT_MAX = 250_000  # as model.PROMPT_MAX, which is slow to load; a test compares them
BYTES_PER_CHARACTER = 4
PAGE_MAX = 100
TAIL_MAX = 10_000  # lines the relay gives at most
ENDED = {"completed", "failed", "cancelled"}
CANCEL_MARGIN = 20.0  # seconds beyond the agents' grace that a cancel waits for its task's end
CANCEL_POLL = 0.1
EXIT_INTERRUPTED = 130


class Duration(click.ParamType[int]):
    """Milliseconds, or a number with its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # click's own
        low, high = config.TIMEOUT_RANGE_MS
        try:
            milliseconds = config.parse_duration_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not low <= milliseconds <= high:
            self.fail(f"must be from {low:,} ms (1s) to {high:,} ms (24h), not {milliseconds:,}", param, ctx)
        return milliseconds


class PromptCommand(click.Command):
    """A prompt that starts with a dash looks like an option; the error says how to write it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dashed = any(word.startswith("-") and " " in word for word in args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if dashed or isinstance(error, click.NoSuchOption):
                advice = 'put -- before a prompt that starts with a dash: delegate delegate -- "-…"'
                raise HintedUsage(error.format_message(), advice) from error
            raise


@click.command(
    "delegate",
    cls=PromptCommand,
    epilog=examples(
        'delegate delegate "fix the failing test in tests/test_parser.py"',
        'delegate delegate --pr "rate limit the runner endpoints"',
        'delegate delegate --pr --repository owner/name --base main "update the changelog"',
        'delegate delegate -a shell -f "make test"',
        "delegate delegate -p P0 -t 2h --prompt-file plan.md",
        "git diff | delegate delegate -",
    ),
)
@click.argument("words", nargs=-1, metavar="PROMPT…")
@click.option("-p", "--priority", type=click.Choice(["P0", "P1", "P2"]), help="P0 goes first; P2 is the default.")
@click.option(
    "-w", "--working-directory", metavar="DIR", help="Where the agent works; the present directory if not set."
)
@click.option("--worktree", is_flag=True, help="Work in a fresh worktree; the work ends on a pushed branch.")
@click.option("--pr", is_flag=True, help="The same, and a pull request.")
@click.option("--repository", metavar="REPO", help="Instead of a directory: owner/name, an address or a path.")
@click.option("--base", metavar="BRANCH", help="Where a worktree starts; the default branch if not set.")
@click.option("--title", help="What the work is called; the prompt's first line if not set.")
@click.option("--label", "labels", multiple=True, help="As on an issue, like delegate:codex; may be repeated.")
@click.option("-a", "--agent", help="claude (the default), codex, shell or acp:<command>.")
@click.option("-m", "--model", help="The agent's model.")
@click.option("-e", "--effort", type=click.Choice(["minimal", "low", "medium", "high", "xhigh", "max"]))
@click.option("-t", "--timeout", type=Duration(), metavar="TIME", help="As 30m, 90s, or milliseconds.")
@click.option(
    "-b", "--max-output-buffer", type=click.IntRange(*config.OUTPUT_RANGE), metavar="BYTES", help="Output that is kept."
)
@click.option("--max-budget-usd", type=click.FloatRange(0, 1e6, min_open=True), metavar="USD", help="A hard stop.")
@click.option("--max-turns", type=click.IntRange(1, 10_000), metavar="N", help="A hard stop.")
@click.option(
    "--permission-mode", type=click.Choice(["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"])
)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file.")
@click.option("--rerun", is_flag=True, help="A shell task may run again when its runner is lost.")
@click.option("-f", "--follow", is_flag=True, help="Show its output until it ends, then exit as it did.")
@shared_options
@click.pass_obj
def delegate(
    door: Door,
    /,
    words: tuple[str, ...],
    working_directory: str | None,
    repository: str | None,
    prompt_file: str | None,
    follow: bool,
    **wanted: Any,
) -> int:
    """Hand a piece of work to an agent, and print the task's id.

    Several words make one prompt; a single - reads it from standard input.
    """
    request = {camel(name): value for name, value in wanted.items() if value not in (None, False, ())}
    for name, value in {**wanted, "repository": repository}.items():
        if isinstance(value, str | tuple):
            check_encoding(name, *value)
    prompt = read_prompt(words, prompt_file)
    place = place_of(door, working_directory, repository)
    client = door.client()
    task = client.submit({"prompt": prompt, **place, **request})
    if follow:
        return _follow_to_end(door, client, task)
    print_task(door, task)
    return 0


def place_of(door: Door, directory: str | None, repository: str | None) -> dict[str, str]:
    """A directory of this machine, or a repository that any machine can fetch."""
    if repository is None:
        return {"workingDirectory": existing_directory(directory), "machine": home.machine_id(door.home)}
    given = {} if directory is None else {"workingDirectory": existing_directory(directory)}
    if repository.startswith(("/", "./", "../")):
        return {**given, "repository": os.path.abspath(repository), "machine": home.machine_id(door.home)}
    return {**given, "repository": repository}


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def read_prompt(words: tuple[str, ...], prompt_file: str | None) -> str:
    if words and prompt_file:
        raise InvalidField(field="prompt", why="give it as words or as --prompt-file, not both")
    if prompt_file:
        text = _read_text_file(Path(prompt_file))
    elif words == ("-",):
        if sys.stdin is None:
            raise InvalidField(field="prompt", why="- reads standard input, which is closed")
        text = _decoded(sys.stdin.buffer.read(PROMPT_MAX * BYTES_PER_CHARACTER + 1))
    else:
        text = " ".join(words)
    return checked_words("prompt", text)


def _read_text_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decoded(file.read(PROMPT_MAX * BYTES_PER_CHARACTER + 1))
    except OSError as error:
        raise InvalidField(field="prompt file", why=f"{path}: {(error.strerror or str(error)).lower()}") from error


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        # A cut in the middle of a character only happens to text that is too long anyway.
        if len(data) > PROMPT_MAX * BYTES_PER_CHARACTER:
            return " " * (PROMPT_MAX + 1)
        raise InvalidField(field="prompt", why="is not UTF-8 text") from error


def checked_words(field: str, text: str) -> str:
    if len(text) > PROMPT_MAX:
        raise InvalidField(field=field, why=f"has more than {PROMPT_MAX:,} characters; put the rest into a file")
    if not text.strip():
        raise InvalidField(field=field, why="is empty; say what is to be done")
    check_encoding(field, text)
    return text


def check_encoding(field: str, *texts: str) -> None:
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise InvalidField(field=field, why="is not UTF-8 text")


def existing_directory(given: str | None) -> str:
    try:
        path = os.path.abspath(given or ".")
    except FileNotFoundError:
        raise InvalidField(field="working directory", why="the present directory does not exist any more") from None
    if not Path(path).is_dir():
        problem = "is not a directory" if Path(path).exists() else "does not exist"
        raise InvalidField(field="working directory", why=f"{path} {problem}")
    check_encoding("working directory", path)
    return path


def print_task(door: Door, task: TaskData) -> None:
    if door.as_json:
        door.print_json(task)
    else:
        door.print([task["taskId"]])


def _follow_to_end(door: Door, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    task_id = task["taskId"]
    if not door.as_json:
        door.say(f"{task_id} submitted")
    try:
        ended = follow.follow(door, client, task)
    except KeyboardInterrupt:
        door.say(f"{task_id} goes on", f"`delegate logs -f {task_id}` follows it, `delegate cancel {task_id}` stops it")
        return EXIT_INTERRUPTED
    if door.as_json:
        door.print_json(ended)
    else:
        _say_end(door, ended)
    return follow.exit_code(ended)


def _say_end(door: Door, task: TaskData) -> None:
    """What a follower has not seen: a bad end, or a good one that left nothing to look at."""
    result = task["result"]
    if task["status"] != "completed":
        door.say(f"{task['taskId']} {task['status']}: {note_of(task)}", task["advice"] or "")
    elif task["reason"] == "no_changes":
        door.say(f"{task['taskId']} completed: nothing was changed")
    if result is not None and result["isKept"]:
        door.say(f"work that was not pushed is kept; `delegate workspaces restore {task['taskId']}` brings it back")


@click.command(epilog=examples("delegate status", "delegate status task-1f0c9a77e2", "delegate status --json"))
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=20, help="How many tasks; 20 if not set.")
@shared_options
@click.pass_obj
def status(door: Door, task_id: str | None, limit: int) -> None:
    """List the newest tasks, or show one with its timeline."""
    if task_id is not None:
        _show_task(door, task_id)
        return
    tasks, more = _newest(door.client(), limit)
    if door.as_json:
        door.print_json_lines(tasks)
    elif tasks:
        door.print(task_table(tasks, door.look()))
        if more:
            door.say(f"these are the newest {limit}; -n shows more")
    else:
        door.say("there are no tasks yet", 'delegate delegate "say what is to be done"')


def _newest(client: Client, limit: int) -> tuple[list[TaskData], bool]:
    tasks: list[TaskData] = []
    cursor: str | None = None
    while True:
        page = client.tasks(limit=min(limit - len(tasks), PAGE_MAX), cursor=cursor)
        tasks += page["tasks"]
        cursor = page["next"]
        if cursor is None or len(tasks) >= limit:
            return tasks, cursor is not None


def _show_task(door: Door, task_id: str) -> None:
    detail = door.client().task(task_id)
    if door.as_json:
        door.print_json({**detail["task"], "attempts": detail["attempts"], "timeline": detail["events"]})
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
    client = door.client()
    if raw:
        _copy_raw(client, task_id)
        return 0
    detail = client.task(task_id)
    task = detail["task"]
    if follow or (tail is None and task["status"] in ENDED):
        return _show_to_end(door, client, task)
    if task["agent"] == "shell":
        live.show_lines(door, client.output(task_id, tail))
    else:
        live.show_events(door, detail["events"], tail)
    return 0


def _show_to_end(door: Door, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    try:
        ended = follow.follow(door, client, task)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not door.as_json:
        _say_end(door, ended)
    return 0


def _copy_raw(client: Client, task_id: str) -> None:
    for piece in client.raw_output(task_id):
        if sys.stdout is not None:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


@click.command(epilog=examples("delegate cancel task-1f0c9a77e2", 'delegate cancel task-1f0c9a77e2 "wrong branch"'))
@click.argument("task_id", metavar="ID")
@click.argument("reason", nargs=-1, metavar="[REASON]")
@shared_options
@click.pass_obj
def cancel(door: Door, task_id: str, reason: tuple[str, ...]) -> int:
    """Stop a task, with every process it has started."""
    check_encoding("reason", *reason)
    client = door.client()
    task = client.cancel(task_id, " ".join(reason))
    deadline = time.monotonic() + door.settings.grace.total_seconds() + CANCEL_MARGIN
    while task["status"] not in ENDED and time.monotonic() < deadline:
        time.sleep(CANCEL_POLL)
        task = client.task(task_id)["task"]
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
    print_task(door, door.client().retry(task_id))
