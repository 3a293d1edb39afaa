"""Handing work in: `delegate` and `run`, and the options they share with schedules and pipelines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delegate import home, settings_values
from delegate.cli.door import Door, Function, HintedUsage, examples, shared_options
from delegate.cli.words import check_encoding, read_prompt
from delegate.errors import InvalidField

if TYPE_CHECKING:
    from delegate.answers import TaskData
    from delegate.client import Client


class Duration(click.ParamType[int]):
    """Milliseconds, or a number with its unit."""

    name = "duration"

    def __init__(self, low: int, high: int, told: str) -> None:
        self._low, self._high, self._told = low, high, told

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # click's own
        try:
            milliseconds = settings_values.parse_duration_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._low <= milliseconds <= self._high:
            self.fail(f"must be from {self._told}, not {milliseconds:,}", param, ctx)
        return milliseconds


TIMEOUT = Duration(*settings_values.TIMEOUT_RANGE_MS, "1,000 ms (1s) to 86,400,000 ms (24h)")


LATER = {"--at", "--cron", "--after", "--timezone", "--missed-run-policy", "--max-runs", "--expires-at"}
ONE_TASK = {"--depends-on", "--continue-from", "--on-dependency-failure", "--title", "--prompt-file"}


class PromptCommand(click.Command):
    """A prompt that starts with a dash looks like an option; the error says how to write it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dashed = any(word.startswith("-") and " " in word for word in args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if dashed or isinstance(error, click.NoSuchOption):
                if elsewhere := self._elsewhere(error):
                    raise HintedUsage(error.message, elsewhere) from error
                advice = f'put -- before a prompt that starts with a dash: {ctx.command_path} -- "-…"'
                raise HintedUsage(error.format_message(), advice) from error
            raise

    def _elsewhere(self, error: click.UsageError) -> str | None:
        """Which command takes an option that this one does not."""
        option = error.option_name if isinstance(error, click.NoSuchOption) else ""
        if option in LATER:
            return f"`delegate schedule create` runs a task later, and takes {option}"
        if option in ONE_TASK:
            return f"the steps of a pipeline wait for each other; `delegate run` takes {option}"
        return None


class TaskIds(click.ParamType[str]):
    """Ids, of which several may stand together with commas between them."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # click's own
        if not any(part.strip() for part in str(value).split(",")):
            self.fail("is empty; name a task, as `delegate status` lists them", param, ctx)
        return str(value)


def together(options: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


# How the work is done; for every task, whoever starts it and when.
work_options = together(
    [
        click.option(
            "-p", "--priority", type=click.Choice(["P0", "P1", "P2"]), help="P0 goes first; P2 is the default."
        ),
        click.option(
            "-w", "--working-directory", metavar="DIR", help="Where the agent works; the present directory if not set."
        ),
        click.option("--worktree", is_flag=True, help="Work in a fresh worktree; the work ends on a pushed branch."),
        click.option("--pr", is_flag=True, help="The same, and a pull request."),
        click.option("--repository", metavar="REPO", help="Instead of a directory: owner/name, an address or a path."),
        click.option("--base", metavar="BRANCH", help="Where a worktree starts; the default branch if not set."),
        click.option("--label", "labels", multiple=True, help="As on an issue, like delegate:codex; may be repeated."),
        click.option("-a", "--agent", help="claude, codex, shell or acp:<command>; claude if nobody says otherwise."),
        click.option("-m", "--model", help="The agent's model."),
        click.option("-e", "--effort", type=click.Choice(["minimal", "low", "medium", "high", "xhigh", "max"])),
        click.option("-t", "--timeout", type=TIMEOUT, metavar="TIME", help="As 30m, 90s, or milliseconds."),
        click.option(
            "-b",
            "--max-output-buffer",
            type=click.IntRange(*settings_values.OUTPUT_RANGE),
            metavar="BYTES",
            help="Output that is kept.",
        ),
        click.option(
            "--max-budget-usd", type=click.FloatRange(0, 1e6, min_open=True), metavar="USD", help="A hard stop."
        ),
        click.option("--max-turns", type=click.IntRange(1, 10_000), metavar="N", help="A hard stop."),
        click.option(
            "--permission-mode", type=click.Choice(["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"])
        ),
        click.option("--rerun", is_flag=True, help="A shell task may run again when its runner is lost."),
    ]
)
# What makes no sense for the steps of a pipeline, which have an order of their own.
one_task_options = together(
    [
        click.option("--title", help="What the work is called; the prompt's first line if not set."),
        click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file."),
        click.option(
            "--depends-on",
            type=TaskIds(),
            multiple=True,
            metavar="ID,…",
            help="Wait until these tasks have completed; may be repeated.",
        ),
        click.option(
            "--continue-from", metavar="ID", help="The same, and go on from what that task leaves: its session, if any."
        ),
        click.option(
            "--on-dependency-failure",
            type=click.Choice(["cancel", "run"]),
            help="When one of them does not end well; cancel if not set.",
        ),
    ]
)


@click.command(
    "delegate",
    cls=PromptCommand,
    epilog=examples(
        'delegate delegate "fix the failing test in tests/test_parser.py"',
        'delegate delegate --pr "rate limit the runner endpoints"',
        'delegate delegate --pr --repository owner/name --base main "update the changelog"',
        'delegate delegate "npm test" --depends-on task-1f0c9a77e2',
        'delegate delegate "mend what the tests found" --continue-from task-1f0c9a77e2',
        'delegate delegate -a shell -f "make test"',
        "delegate delegate -p P0 -t 2h --prompt-file plan.md",
        "git diff | delegate delegate -",
    ),
)
@click.argument("words", nargs=-1, metavar="PROMPT…")
@work_options
@one_task_options
@click.option("-f", "--follow", is_flag=True, help="Show its output until it ends, then exit as it did.")
@shared_options
@click.pass_obj
def delegate(door: Door, /, words: tuple[str, ...], prompt_file: str | None, follow: bool, **wanted: Any) -> int:
    """Hand a piece of work to an agent, and print the task's id.

    Several words make one prompt; a single - reads it from standard input.
    """
    wish = wish_of(door, wanted)
    request = {"prompt": read_prompt(words, prompt_file), **wish}
    client = door.client()
    task = client.submit(request)
    if follow:
        return _follow_to_end(door, client, task)
    door.print_task(task)
    return 0


run = PromptCommand(
    "run",
    params=delegate.params,
    callback=delegate.callback,
    short_help="Hand a piece of work to an agent: short for `delegate delegate`.",
    help="Hand a piece of work to an agent, and print the task's id: a short form of `delegate delegate`.",
    epilog=examples('delegate run "npm run build" -a shell', 'delegate run "npm test" --depends-on task-1f0c9a77e2'),
)


def wish_of(door: Door, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the relay takes them: those that were given, and where the work is."""
    for name, value in wanted.items():
        if isinstance(value, str | tuple):
            check_encoding(spoken(name), *value)
    given = {name: value for name, value in wanted.items() if value not in (None, False, ())}
    place = place_of(door, given.pop("working_directory", None), given.pop("repository", None))
    if "depends_on" in given:
        listed = ",".join(given["depends_on"]).split(",")
        given["depends_on"] = list(dict.fromkeys(part.strip() for part in listed if part.strip()))
    return {**place, **{camel(name): value for name, value in given.items()}}


def spoken(name: str) -> str:
    return name.replace("_", " ")


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def place_of(door: Door, directory: str | None, repository: str | None) -> dict[str, str]:
    """A directory of this machine, or a repository that any machine can fetch."""
    if repository is None:
        return {"workingDirectory": existing_directory(directory), "machine": home.machine_id(door.home)}
    given = {} if directory is None else {"workingDirectory": existing_directory(directory)}
    if repository.startswith(("/", "./", "../")):
        return {**given, "repository": os.path.abspath(repository), "machine": home.machine_id(door.home)}
    return {**given, "repository": repository}


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


def _follow_to_end(door: Door, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    task_id = task["taskId"]
    if not door.as_json:
        door.say(f"{task_id} submitted")
    try:
        ended = follow.follow(door, client, task)
    except KeyboardInterrupt:
        door.say(f"{task_id} goes on", f"`delegate logs -f {task_id}` follows it, `delegate cancel {task_id}` stops it")
        return follow.EXIT_INTERRUPTED
    if door.as_json:
        door.print_json(ended)
    else:
        follow.say_end(door, ended)
    return follow.exit_code(ended)
