"""The context that all commands share: settings, relay client and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delegate.cli.render import terminal
from delegate.cli.render.terminal import OutputStyle, json_line
from delegate.client.client import Client
from delegate.config.paths import Home
from delegate.config.settings import ResolvedSetting, Settings, find_unknown_variables, resolve_settings, settings_from
from delegate.errors import DelegateError, InvalidField, Refused, escape

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from delegate.client.responses import TaskData

COMPLETION_VARIABLE = "_DELEGATE_COMPLETE"  # set by a shell that asks for completions
PAGE_MAX = 100  # rows that the relay returns at once
Row = TypeVar("Row")
Function = TypeVar("Function", bound=Callable[..., Any])  # Any: click passes the values of the options


@dataclass(kw_only=True)
class CommandContext:
    environ: Mapping[str, str]
    as_json: bool = False
    verbose: bool = False
    said_messages: set[str] = field(default_factory=set)

    @cached_property
    def resolved_settings(self) -> list[ResolvedSetting]:
        return resolve_settings(self.environ)

    @cached_property
    def settings(self) -> Settings:
        for name in find_unknown_variables(self.environ):
            self.say(f"{name} is not a setting and has no effect", "`delegate config show` lists the settings")
        return settings_from(self.resolved_settings)

    @property
    def home(self) -> Home:
        return Home(self.settings.home)

    def require_local(self, command: str, instead: str = "") -> None:
        """Refuse a command that is about the relay of this home; `instead` is for people who mean the other one."""
        if self.settings.is_local:
            return
        variable = next(one.variable for one in self.resolved_settings if one.name == "relay_url")
        leave = f"unset {variable} first" if variable else "use `delegate logout` first"
        why = f"`{command}` is for the relay of {self.home.root}, but {self.settings.relay_url} is set"
        raise Refused(why=f"{why}; {instead or leave}")

    def client(self) -> Client:
        """A client that starts the local relay if none runs."""
        return Client(self.settings, start=self._start_relay, notice=self.say_once)

    def client_of_running_relay(self) -> Client:
        return Client(self.settings, notice=self.say_once)

    def _start_relay(self, settings: Settings) -> None:
        if self.home.served.exists():  # a team's relay that restarts must find its home free
            raise ConnectionRefusedError("`delegate serve` is not running")
        from delegate.keeper.start import start  # noqa: PLC0415  needed only when no relay runs, and slow to load

        start(settings, runners=None, environ=self.environ, notice=self.say_once)

    def style(self) -> OutputStyle:
        colour = terminal.wants_colour(self.environ, sys.stdout)
        width, folds = terminal.width(self.environ), terminal.is_terminal(sys.stdout)
        return OutputStyle(width=width, colour=colour, now=datetime.now(UTC), wraps=folds)

    def print(self, lines: Iterable[str]) -> None:
        """Results, on standard output."""
        sys.stdout.write("".join(f"{line}\n" for line in lines))

    def print_result(self, value: object, lines: Iterable[str]) -> None:
        """One result: as JSON for programs, or as lines for people."""
        if self.as_json:
            self.print_json(value)
        else:
            self.print(lines)

    def print_json(self, value: object) -> None:
        self.print_json_lines([value])

    def print_json_lines(self, values: Iterable[object]) -> None:
        """On a terminal, control characters are escaped, which yields the same JSON."""
        lines = map(json_line, values)
        self.print(map(terminal.escape_json, lines) if terminal.is_terminal(sys.stdout) else lines)

    def print_task(self, task: TaskData) -> None:
        """Print the id of a task that was created or changed."""
        self.print_result(task, [task["taskId"]])

    def print_details(self, lines: Iterable[str]) -> None:
        """Details for people, not for programs; on standard error."""
        sys.stdout.flush()
        if sys.stderr is not None:
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def say(self, message: str, hint: str = "") -> None:
        """Print a message that is not a result, on standard error."""
        if sys.stderr is None:
            return
        sys.stderr.write(f"delegate: {escape(message)}\n" + (f"hint: {escape(hint)}\n" if hint else ""))
        sys.stderr.flush()

    def say_once(self, message: str) -> None:
        if message not in self.said_messages:
            self.said_messages.add(message)
            self.say(message)

    def print_error(self, error: DelegateError, *, as_json: bool) -> None:
        if not as_json:
            self.say(terminal.one_line(error.message), terminal.one_line(error.hint))
        elif sys.stderr is not None:
            problem = {"error": error.code, "message": error.message, "hint": error.hint}
            line = json_line(problem)
            sys.stderr.write(f"{terminal.escape_json(line) if terminal.is_terminal(sys.stderr) else line}\n")


class HintedUsage(click.UsageError):
    """A usage error with its own hint instead of a reference to the help."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _set_flag(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def set_flag(click_context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            setattr(click_context.find_object(CommandContext), name, True)

    return set_flag


def shared_options(function: Function) -> Function:
    """--json and -v, which every command takes."""
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_flag("verbose"),
        help="Show a traceback if the command fails.",
    )
    as_json = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_flag("as_json"),
        help="Print one JSON object per line.",
    )
    return as_json(verbose(function))


def command_options(function: Any) -> Any:  # Any: as click.pass_obj
    """The options of every command, and its context as the first argument."""
    return shared_options(click.pass_obj(function))


def complete_paths(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Let the shell itself complete an option's value: a "file" or a "dir"."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only when a shell completes a line

        return [CompletionItem(incomplete, type=kind)]

    return complete


def examples(*lines: str) -> str:
    """The examples at the end of a command's help; click must not rewrap them."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class WholeNumber(click.ParamType[int]):
    name = "integer"

    def __init__(self, low: int, high: int, what: str = "a whole number") -> None:
        self._low, self._high, self._what = low, high, what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # click's own
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not self._low <= number <= self._high:
            self.fail(f"must be {self._what} from {self._low:,} to {self._high:,}, not {value}", param, ctx)
        return number


def fetch_newest(page: Callable[[int, str | None], tuple[list[Row], str | None]], limit: int) -> tuple[list[Row], bool]:
    """Up to `limit` rows, newest first, and whether there are more; `page` takes a limit and a cursor, and returns the
    rows and the next cursor."""
    found: list[Row] = []
    cursor: str | None = None
    while True:
        rows, cursor = page(min(limit - len(found), PAGE_MAX), cursor)
        found += rows
        if cursor is None or len(found) >= limit:
            return found, cursor is not None


def check_encoding(field: str, *texts: str) -> None:
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise InvalidField(field=field, why="is not UTF-8 text")
