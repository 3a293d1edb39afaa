"""The commands `delegate` and `run`, and the options they share with schedules and pipelines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.context import (
    CommandContext,
    Function,
    HintedUsage,
    WholeNumber,
    check_encoding,
    command_options,
    complete_paths,
    examples,
)
from delegate.cli.option_types import TIMEOUT, Dollars, TaskIds
from delegate.cli.render import terminal
from delegate.cli.text_input import read_prompt
from delegate.config import home_files, values
from delegate.errors import DelegateError, InvalidField, Refused, Reported
from delegate.preferences.names import repository_url
from delegate.preferences.remotes import RemoteUnclear, choose_remotes, is_path, without_login

if TYPE_CHECKING:
    from delegate.client.client import Client
    from delegate.client.responses import TaskData
    from delegate.config.settings import ResolvedSetting

GIT_TIMEOUT = 10.0  # seconds; the repository may be on a slow disk
# The settings that are defaults of a task, and the request fields that they set.
TASK_DEFAULTS = {
    "default_agent": "defaultAgent",
    "task_timeout_ms": "timeout",
    "max_output_buffer": "maxOutputBuffer",
}
SCHEDULE_OPTIONS = {"--at", "--cron", "--after", "--timezone", "--missed-run-policy", "--max-runs", "--expires-at"}
# Why a pipeline does not take these options of a single task.
NOT_IN_PIPELINES = {
    "--depends-on": "the steps of a pipeline wait for each other",
    "--continue-from": "each step of a pipeline continues from the previous one",
    "--on-dependency-failure": "a step that fails stops the rest of a pipeline",
    "--title": "a step of a pipeline is named after its prompt",
    "--prompt-file": "the steps of a pipeline are its arguments; - reads one from standard input",
}
# Options whose request field has another name.
FIELD_NAMES = {"cron": "cronExpression", "at": "scheduledAt", "after": "afterSchedule"}
CAMEL = re.compile(r"\b[a-z]+[A-Z][A-Za-z]+\b")
STEP = re.compile(r"\bsteps\.(\d+)(?:\.|: )")
FIELD = re.compile(r"^((?:step \d+: )?)([A-Za-z]+)(?:\.\d+)?(?=: )")


class PromptCommand(click.Command):
    """Takes a prompt and options, and replaces the names of request fields in errors by those options."""

    def invoke(self, ctx: click.Context) -> Any:  # Any: click's own
        try:
            return super().invoke(ctx)
        except DelegateError as error:
            reported = Reported(
                code=error.code,
                message=self._use_option_names(error.message),
                hint=self._use_option_names(error.hint),
                exit_code=error.exit_code,
            )
            raise reported from error

    def _use_option_names(self, text: str) -> str:
        """Replace the names of request fields by the options that the user types."""
        names = {
            FIELD_NAMES.get(param.name or "", to_camel_case(param.name or "")): max(param.opts, key=len)
            for param in self.params
            if isinstance(param, click.Option)
        }
        text = STEP.sub(lambda found: f"step {int(found[1]) + 1}: ", text)
        text = FIELD.sub(lambda found: found[1] + names[found[2]] if found[2] in names else found[0], text)
        return CAMEL.sub(lambda found: names.get(found[0], found[0]), text)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dashed = any(word.startswith("-") and " " in word for word in args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if dashed or isinstance(error, click.NoSuchOption):
                if hint := self._other_command_hint(error):
                    raise HintedUsage(error.message, hint) from error
                advice = f'put -- before a prompt that starts with a dash: {ctx.command_path} -- "-…"'
                raise HintedUsage(error.format_message(), advice) from error
            raise

    def _other_command_hint(self, error: click.UsageError) -> str | None:
        """Which command takes an option that this one does not."""
        option = error.option_name if isinstance(error, click.NoSuchOption) else ""
        if option in SCHEDULE_OPTIONS:
            return f"`delegate schedule create` runs a task later, and takes {option}"
        if option in NOT_IN_PIPELINES:
            return f"{NOT_IN_PIPELINES[option]}; `delegate run` takes {option}"
        return None


def parse_single_task(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Refuse several ids: click would silently use the last one."""
    ids = {part.strip() for part in ",".join(given).split(",") if part.strip()}
    if len(ids) > 1:
        raise click.BadParameter(f"takes one task, not {len(ids)}; --depends-on takes several")
    return next(iter(ids), None)


def combine_options(options: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


# Options of every task, including those of schedules and pipelines.
work_options = combine_options(
    [
        click.option("-p", "--priority", type=click.Choice(["P0", "P1", "P2"]), help="P0 runs first. [default: P2]"),
        click.option(
            "-w",
            "--working-directory",
            metavar="DIR",
            shell_complete=complete_paths("dir"),
            help="Where the agent works. [default: the current directory]",
        ),
        click.option("--worktree", is_flag=True, help="Work in a fresh worktree, and push the result to a branch."),
        click.option("--pr", is_flag=True, help="Like --worktree, and open a pull request."),
        click.option("--repository", metavar="REPO", help="Repository to work in: owner/name, a URL or a path."),
        click.option(
            "--base", metavar="BRANCH", help="Branch to start from. [default: the repository's default branch]"
        ),
        click.option(
            "--label",
            "labels",
            multiple=True,
            help="Set a preference as an issue label does, such as delegate:codex. May be repeated.",
        ),
        click.option(
            "-a",
            "--agent",
            help="claude, codex, shell or acp:<command>. [default: claude, unless configured otherwise]",
        ),
        click.option("-m", "--model", help="The agent's model."),
        click.option(
            "-e",
            "--effort",
            type=click.Choice(["minimal", "low", "medium", "high", "xhigh", "max"]),
            help="How much the agent thinks. Not every model has every level.",
        ),
        click.option(
            "-t",
            "--timeout",
            type=TIMEOUT,
            metavar="TIME",
            help="Time limit of an attempt, such as 90s, 30m or 2h, or in milliseconds. "
            "[default: 30m, unless configured otherwise]",
        ),
        click.option(
            "-b",
            "--max-output-buffer",
            type=WholeNumber(*values.OUTPUT_RANGE, "a number of bytes"),
            metavar="BYTES",
            help="Bytes of output to keep for each attempt, from 1,024 to 1,073,741,824. "
            "[default: 10 MiB, unless configured otherwise]",
        ),
        click.option(
            "--max-budget-usd",
            type=Dollars(),
            metavar="USD",
            help="Stop the agent when it has spent this much: more than 0, at most 1,000,000.",
        ),
        click.option(
            "--max-turns",
            type=WholeNumber(1, 10_000),
            metavar="N",
            help="Stop the agent after this many turns, from 1 to 10,000.",
        ),
        click.option(
            "--permission-mode",
            type=click.Choice(["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"]),
            help="What the agent may do without asking. [default: everything; codex only in its sandbox]",
        ),
        click.option("--runner", metavar="NAME", help="Let only this runner take the task."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="TAG",
            help="Let only runners with this tag take it. May be repeated.",
        ),
        click.option("--rerun", is_flag=True, help="Let a shell task run again when its runner is lost."),
    ]
)
# Options that make no sense for the steps of a pipeline, which have a fixed order.
one_task_options = combine_options(
    [
        click.option("--title", help="Title of the task. [default: the first line of the prompt]"),
        click.option(
            "--prompt-file", metavar="FILE", shell_complete=complete_paths("file"), help="Read the prompt from a file."
        ),
        click.option(
            "--depends-on",
            type=TaskIds(),
            multiple=True,
            metavar="ID,…",
            help="Wait until these tasks have completed. May be repeated.",
        ),
        click.option(
            "--continue-from",
            type=TaskIds(),
            multiple=True,
            callback=parse_single_task,
            metavar="ID",
            help="Wait for this task, and continue its work, in its session if it has one.",
        ),
        click.option(
            "--on-dependency-failure",
            type=click.Choice(["cancel", "run"]),
            help="What to do if a dependency does not complete. [default: cancel]",
        ),
    ]
)


@click.command(
    "run",
    cls=PromptCommand,
    epilog=examples(
        'delegate run "fix the failing test in tests/test_parser.py"',
        'delegate run --pr "rate limit the runner endpoints"',
        'delegate run --pr --repository owner/name --base main "update the changelog"',
        'delegate run "npm test" --depends-on task-1f0c9a77e2',
        'delegate run "fix what the tests found" --continue-from task-1f0c9a77e2',
        'delegate run -a shell -f "make test"',
        "delegate run -p P0 -t 2h --prompt-file plan.md",
        "git diff | delegate run -",
    ),
)
@click.argument("words", nargs=-1, metavar="PROMPT…")
@work_options
@one_task_options
@click.option(
    "-f", "--follow", is_flag=True, help="Show the task's output until it ends, then exit with its exit code."
)
@command_options
def run(
    context: CommandContext, /, words: tuple[str, ...], prompt_file: str | None, follow: bool, **options: Any
) -> int:
    """Hand a task to an agent, and print the task's id.

    Several words are joined into one prompt; a single - reads it from standard input.
    """
    fields = request_fields(context, options)
    request = {"prompt": read_prompt(words, prompt_file), **fields}
    client = context.client()
    task = client.submit(request)
    if follow:
        return _follow_to_end(context, client, task)
    context.print_task(task)
    return 0


delegate = PromptCommand(
    "delegate",
    params=run.params,
    callback=run.callback,
    short_help="The same as `delegate run`.",
    help="Hand a task to an agent, and print the task's id. The same as `delegate run`.",
    epilog=examples('delegate delegate "npm run build" -a shell'),
)


def request_fields(context: CommandContext, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as request fields: those that were given, the location, and the caller's own defaults."""
    for name, value in options.items():
        if isinstance(value, str | tuple):
            check_encoding(to_camel_case(name), *value)
    given = {name: value for name, value in options.items() if value not in (None, False, ())}
    location = location_fields(context, given.pop("working_directory", None), given.pop("repository", None))
    if "repository" not in location and ("pr" in given or "worktree" in given):
        location = choose_remote(context, location)
    if "depends_on" in given:
        listed = ",".join(given["depends_on"]).split(",")
        given["depends_on"] = list(dict.fromkeys(part.strip() for part in listed if part.strip()))
    return {**caller_defaults(context), **location, **{to_camel_case(name): value for name, value in given.items()}}


def caller_defaults(context: CommandContext) -> dict[str, Any]:
    """The caller's settings that the relay cannot know: it read its own when it started."""
    return {TASK_DEFAULTS[one.name]: one.value for one in context.resolved_settings if is_sent(context, one)}


def is_sent(context: CommandContext, one: ResolvedSetting) -> bool:
    """Whether to send this setting: the local relay reads the file of this home itself, a remote one does not."""
    is_explicit = one.variable is not None or (one.is_in_file and not context.settings.is_local)
    return is_explicit and one.name in TASK_DEFAULTS


def to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def location_fields(context: CommandContext, directory: str | None, repository: str | None) -> dict[str, str]:
    """A directory of this machine, or a repository that any machine can fetch."""
    if repository is None:
        return {"workingDirectory": existing_directory(directory), "machine": home_files.machine_id(context.home)}
    given = {} if directory is None else {"workingDirectory": existing_directory(directory)}
    if repository.startswith(("/", "./", "../")) or repository in {".", ".."}:
        path = existing_directory(repository, "repository")
        return {**given, "repository": path, "machine": home_files.machine_id(context.home)}
    return {**given, "repository": repository}


def choose_remote(context: CommandContext, location: dict[str, str]) -> dict[str, str]:
    """Ask for the remote if git's settings choose none; without a terminal, refuse with the candidates.

    A relay elsewhere gets the remote itself, so that any runner that accepts the repository can take the task.
    """
    directory = location["workingDirectory"]
    listed = _read_git(context, directory, "config", "--list", "-z")
    branch = _read_git(context, directory, "symbolic-ref", "-q", "--short", "HEAD").strip()
    pairs = (entry.partition("\n") for entry in listed.split("\0"))
    try:
        chosen = choose_remotes([(name, value) for name, _, value in pairs], branch)
    except RemoteUnclear as unclear:
        choice = f"choose one with `git config branch.{branch}.remote NAME`, or " if branch else ""
        if not terminal.is_terminal(sys.stdin):
            raise Refused(why=f"{directory} {unclear}: {choice}name a repository with --repository") from unclear
        context.say(f"{directory} {unclear}")
        context.print_details(f"  {name}  {values.mask_login(url)}" for name, url in unclear.candidates.items())
        name = click.prompt("Remote for this task", type=click.Choice(sorted(unclear.candidates)), err=True)
        url = unclear.candidates[name]
        return location_fields(context, None, repository_url(url) if ":" in url else str(Path(directory, url)))
    if not context.settings.is_local and chosen is None and not _read_git(context, directory, "rev-parse", "--git-dir"):
        why = f"{directory} is not in a git repository; change to a clone, or name a repository with --repository"
        raise Refused(why=why)
    if context.settings.is_local or chosen is None or is_path(chosen.fetch):
        return location
    return {"repository": without_login(chosen.fetch)}


def _read_git(context: CommandContext, directory: str, *arguments: str) -> str:
    """Git's output; empty when it fails: the runner examines the repository again, and says what is wrong."""
    import subprocess  # noqa: PLC0415  most tasks need no git here

    env = {name: value for name, value in context.environ.items() if name not in {"GIT_DIR", "GIT_WORK_TREE"}}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, env=env, capture_output=True, timeout=GIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else ""


def existing_directory(given: str | None, field: str = "workingDirectory") -> str:
    if given == "":
        raise InvalidField(field=field, why="is empty; name a directory, or leave it out for the current one")
    try:
        path = os.path.abspath(given or ".")
    except FileNotFoundError:
        raise InvalidField(field="working directory", why="the current directory no longer exists") from None
    if not Path(path).is_dir():
        problem = "is not a directory" if Path(path).exists() else "does not exist"
        raise InvalidField(field=field, why=f"{path} {problem}")
    check_encoding(field, path)
    return path


def _follow_to_end(context: CommandContext, client: Client, task: TaskData) -> int:
    from delegate.cli import follow  # noqa: PLC0415  only followers need it

    task_id = task["taskId"]
    if not context.as_json:
        context.say(f"{task_id} submitted")
    try:
        ended = follow.follow(context, client, task)
    except KeyboardInterrupt:
        context.say(
            f"{task_id} keeps running in the background",
            f"`delegate logs -f {task_id}` follows it, `delegate cancel {task_id}` stops it",
        )
        return follow.EXIT_INTERRUPTED
    if context.as_json:
        context.print_json(ended)
    else:
        follow.say_end(context, ended)
    return follow.exit_code(ended)
