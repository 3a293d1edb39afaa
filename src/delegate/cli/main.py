"""The entry point: runs the command, and turns an error into one line and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from delegate import __version__
from delegate.cli.context import COMPLETION_VARIABLE, CommandContext, HintedUsage, examples, shared_options
from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.errors import DelegateError, DiskFull, Refused, Reported

# A command's module is loaded when the command is used: loading all of them takes longer than `delegate status`.
COMMANDS = {
    "run": "commands.submit",
    "delegate": "commands.submit",
    "status": "commands.tasks",
    "logs": "commands.tasks",
    "cancel": "commands.tasks",
    "retry": "commands.tasks",
    "resume": "commands.results",
    "answer": "commands.results",
    "schedule": "commands.schedules",
    "pipeline": "commands.schedules",
    "diff": "commands.results",
    "prompt": "commands.results",
    "mcp": "commands.mcp",
    "linear": "commands.linear",
    "workspaces": "commands.workspaces",
    "runner": "commands.runners",
    "up": "commands.serve",
    "down": "commands.serve",
    "info": "commands.serve",
    "serve": "commands.serve",
    "login": "commands.people",
    "logout": "commands.people",
    "whoami": "commands.people",
    "user": "commands.people",
    "token": "commands.people",
    "audit": "commands.people",
    "purge": "commands.people",
    "config": "commands.config",
    "backup": "commands.backup",
    "restore": "commands.backup",
    "doctor": "commands.doctor",
    "completion": "commands.completion",
    "demo": "demo.demo",
}
EXIT_USAGE, EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE = 2, 70, 130, 141
OUTPUT_ERRORS = {errno.EPIPE, *DISK_FULL_ERRORS}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's own signature
        return [*COMMANDS, "help"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"delegate.cli.{COMMANDS[cmd_name]}")
        command: click.Command = vars(module)[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            name = error.command_name
            raise click.exceptions.NoSuchCommand(name, possibilities=self.list_commands(ctx), ctx=ctx) from error


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples('delegate run "fix the failing test in tests/test_parser.py"', "delegate status"),
)
@click.version_option(__version__, prog_name="delegate")
@shared_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Hand tasks to coding agents, and get checked results back."""
    if ctx.invoked_subcommand is None:
        _show_help(ctx)


def _commands_after(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The commands that may follow those on the line."""
    click_context = ctx.find_root()
    for word in ctx.params.get("words") or ():
        command = click_context.command
        found = command.get_command(click_context, word) if isinstance(command, click.Group) else None
        if found is None:
            return []
        click_context = click.Context(found, info_name=word, parent=click_context)
    command = click_context.command
    known = command.list_commands(click_context) if isinstance(command, click.Group) else []
    return [name for name in known if name.startswith(incomplete)]


@cli.command("help", epilog=examples("delegate help", "delegate help logs", "delegate help schedule create"))
@click.argument("words", nargs=-1, metavar="[COMMAND]…", shell_complete=_commands_after)
@shared_options
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """List the commands, or show the help of one."""
    click_context = ctx.find_root()
    for word in words:
        if not isinstance(click_context.command, click.Group):
            path = click_context.command_path
            missing = f"{path.removeprefix('delegate ')} {word}"
            raise HintedUsage(f"no such command {missing!r}", f"`{path} --help` shows how it is used")
        name, found, _ = click_context.command.resolve_command(click_context, [word])
        if found is not None:
            click_context = click.Context(found, info_name=name, parent=click_context)
    _show_help(click_context)


def _show_help(click_context: click.Context) -> None:
    context = click_context.ensure_object(CommandContext)
    if context.as_json:
        context.print_json({"command": click_context.command_path, "help": click_context.get_help()})
    else:
        click.echo(click_context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    context = CommandContext(environ=os.environ)
    if sys.stdout is None:
        closed = Refused(why="standard output is closed; redirect it, to /dev/null if the result is not needed")
        context.print_error(closed, as_json="--json" in given)
        return closed.exit_code
    try:
        code = _run_completion(context) if COMPLETION_VARIABLE in context.environ else _run(context, given)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = EXIT_CLOSED_PIPE
    except OSError as error:
        _discard_output()
        full = DiskFull(why=f"standard output cannot be written ({error.strerror})")
        context.print_error(full, as_json=context.as_json)
        code = full.exit_code
    gc.freeze()  # garbage collection at exit takes a tenth of the time of `delegate status`
    return code


def _run_completion(context: CommandContext) -> int:
    from delegate.cli.commands.completion import complete  # noqa: PLC0415  only when a shell completes a line

    return complete(cli, context)


def _run(context: CommandContext, given: list[str]) -> int:
    as_json = "--json" in given
    try:
        with cli.make_context("delegate", given, obj=context) as click_context:
            result = cli.invoke(click_context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.UsageError as error:
        return _show_usage(context, error, as_json=as_json)
    except DelegateError as error:
        if context.verbose:
            _show_traceback()
        context.print_error(error, as_json=context.as_json)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        context.say("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:  # the top of the program: shown with -v
        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS:
            raise  # not a defect: the reader of the output has gone, or the disk is full
        if context.verbose:
            _show_traceback()
        context.print_error(_defect(error), as_json=as_json)
        return EXIT_DEFECT


def _show_usage(context: CommandContext, error: click.UsageError, *, as_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group without a command: the message is its help
        click.echo(error.message)
        return 0
    context.print_error(_usage(error), as_json=as_json)
    return EXIT_USAGE


def _usage(error: click.UsageError) -> Reported:
    path = error.ctx.command_path if error.ctx else "delegate"
    hint = f"`{path} --help` shows how it is used"
    if isinstance(error, click.exceptions.NoSuchCommand):
        close = [f"`{path} {name}`" for name in error.possibilities or ()]
        listed = "`delegate help`" if path == "delegate" else f"`{path} --help`"
        hint = f"did you mean {' or '.join(close)}?" if close else f"{listed} lists the commands"
        text = error.message
    elif isinstance(error, HintedUsage):
        hint, text = error.hint, error.message
    else:
        text = error.format_message()
    message = (text[:1].lower() + text[1:]).rstrip(".")
    return Reported(code="usage", message=message, hint=hint, exit_code=EXIT_USAGE)


def _defect(error: Exception) -> Reported:
    return Reported(
        code="defect",
        message=f"this is a bug in Delegate: {type(error).__name__}: {error}",
        hint="run it again with -v to see a traceback, and please report it",
        exit_code=EXIT_DEFECT,
    )


def _show_traceback() -> None:
    import traceback  # noqa: PLC0415  needed only with -v

    traceback.print_exc()


def _prepare_streams() -> None:
    """Open closed standard streams, so that no later file takes their place; make every character printable."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard what Python still buffers: the reader has gone, and a flush at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
