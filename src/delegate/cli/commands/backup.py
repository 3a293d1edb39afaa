"""Commands for the database file: backup and restore."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from delegate.cli.context import CommandContext, command_options, complete_paths, examples
from delegate.cli.render import terminal
from delegate.config import home_files
from delegate.errors import Refused


@click.command(epilog=examples("delegate backup", "delegate backup /mnt/safe/delegate.db"))
@click.argument("path", required=False, shell_complete=complete_paths("file"))
@command_options
def backup(context: CommandContext, path: str | None) -> None:
    """Back up the database, and print the path of the copy. The relay may be running."""
    from delegate.store.backup import backup as save  # noqa: PLC0415  the store takes long to load

    context.require_local("delegate backup", "run it on the machine of that relay")
    if path and not Path(path).parent.is_dir():
        raise Refused(why=f"directory {Path(path).absolute().parent} does not exist; create it first")
    try:
        _print_path(context, save(context.settings, Path(path) if path else None))
    except OSError as error:
        raise home_files.explain_write_error(Path(path) if path else context.home.backups, error) from error


@click.command(epilog=examples("delegate restore", "delegate restore --yes /mnt/safe/delegate.db"))
@click.argument("file", required=False, shell_complete=complete_paths("file"))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options
def restore(context: CommandContext, file: str | None, yes: bool) -> None:
    """Replace the database with FILE or the newest backup. The old database is kept beside it."""
    from delegate.store.backup import restore as put_back  # noqa: PLC0415  the store takes long to load

    context.require_local("delegate restore", "run it on the machine of that relay")
    lock = home_files.lock_home(context.home, timeout=1.0)
    try:
        if not yes:
            _confirm(context, file)
        _print_path(context, put_back(context.settings, Path(file) if file else None))
    except OSError as error:
        raise home_files.explain_write_error(context.home.database, error) from error
    finally:
        os.close(lock)


def _confirm(context: CommandContext, file: str | None) -> None:
    if not terminal.is_terminal(sys.stdin):
        raise Refused(why="this replaces the database; add --yes to confirm")
    what = file or "the newest backup"
    click.confirm(f"Replace {context.home.database} with {what}? Everything since then is lost.", abort=True, err=True)


def _print_path(context: CommandContext, path: Path) -> None:
    context.print_result({"path": str(path)}, [str(path)])
