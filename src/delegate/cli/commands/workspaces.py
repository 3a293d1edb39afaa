"""`delegate workspaces`: lists, restores and drops work that was not pushed, without the relay."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delegate.cli.context import CommandContext, command_options, examples, shared_options
from delegate.cli.render import terminal
from delegate.cli.render.terminal import OutputStyle, format_duration, one_line, rows_in_columns
from delegate.config import home_files
from delegate.config.paths import Home
from delegate.errors import InvalidField, NoSuchWorkspace, Refused

if TYPE_CHECKING:
    from delegate.runner.workspaces.kept import KeptWork

HEADINGS = ("WORKSPACE", "SIZE", "AGE", "FILES", "BRANCH", "REPOSITORY", "ALSO")


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "delegate workspaces",
        "delegate workspaces restore task-1f0c9a77e2 ~/rescued",
        "delegate workspaces drop task-1f0c9a77e2",
    ),
)
@shared_options
@click.pass_context
def workspaces(click_context: click.Context) -> None:
    """List, restore or drop work that was never pushed."""
    if click_context.invoked_subcommand is None:
        _list(click_context.ensure_object(CommandContext))


def _list(context: CommandContext) -> None:
    from delegate.runner.workspaces.kept import list_kept  # noqa: PLC0415  the runner takes long to load

    kept = [one for home in _homes(context) for one in list_kept(home)]
    if context.as_json:
        context.print_json_lines(map(kept_data, kept))
    elif kept:
        context.print(kept_table(kept, context.style()))
    else:
        where = "" if context.settings.is_local else " on this machine"
        context.say(f"no work is kept{where}: everything was pushed, or nothing was changed")
    for home in _homes(context):
        if home.workspaces.is_dir() and any(home.workspaces.iterdir()) and not home_files.is_held(home.keeper_lock):
            context.say(f"worktrees of tasks that have not ended are in {home.workspaces}; no runner uses them now")


def _homes(context: CommandContext) -> list[Home]:
    """The home, and those of the runners that are paired with relays elsewhere: each keeps its own work."""
    return [context.home, *(Home(path) for path in sorted((context.home.root / "profiles").glob("*/")))]


def _find(context: CommandContext, name: str) -> tuple[Home, KeptWork]:
    from delegate.runner.workspaces.kept import find_kept  # noqa: PLC0415  the runner takes long to load

    for home in _homes(context):
        with suppress(NoSuchWorkspace):
            return home, find_kept(home, name)
    raise NoSuchWorkspace(name=name)


def kept_table(kept: list[KeptWork], style: OutputStyle) -> list[str]:
    rows = [
        (
            one_line(one.lineage),
            format_size(one.size),
            format_duration((style.now - one.at).total_seconds()),
            str(one.files),
            one_line(one.branch),
            one_line(one.repository),
            one_line(", ".join(one.elsewhere)),
        )
        for one in kept
    ]
    return [terminal.fit(line, style.width) for line in rows_in_columns([HEADINGS, *rows])]


def kept_data(kept: KeptWork) -> dict[str, object]:
    return {
        "lineage": kept.lineage,
        "taskIds": list(kept.task_ids),
        "repository": kept.repository,
        "branch": kept.branch,
        "size": kept.size,
        "at": kept.at.isoformat(),
        "files": kept.files,
        "elsewhere": list(kept.elsewhere),
    }


def format_size(size: int) -> str:
    """In at most six characters: 0 kB, 12 kB, 1.2 MB, 340 GB."""
    number, unit = size / 1000, "kB"
    for larger in ("MB", "GB"):
        if number >= 999.5:
            number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if number < 9.95 and unit != "kB" else f"{number:.0f} {unit}"


@workspaces.command(
    epilog=examples(
        "delegate workspaces restore task-1f0c9a77e2", "delegate workspaces restore task-1f0c9a77e2 ~/rescued"
    )
)
@click.argument("name", metavar="ID")
@click.argument("directory", metavar="[DIR]", required=False)
@command_options
def restore(context: CommandContext, name: str, directory: str | None) -> None:
    """Create a repository from kept work, and print its path. Without DIR, it is named after its branch."""
    import anyio  # noqa: PLC0415  slow to load

    home, kept = _find(context, name)
    target = Path(os.path.abspath(directory or kept.branch.replace("/", "-")))
    anyio.run(_restore, context, home, kept.lineage, target)
    context.print_result({**kept_data(kept), "path": str(target)}, [str(target)])
    if not context.as_json:
        context.say(f"{kept.lineage} is still kept", f"`delegate workspaces drop {kept.lineage}` removes it for good")


async def _restore(context: CommandContext, home: Home, lineage: str, target: Path) -> None:
    from delegate.runner.git.program import GitFailed, read_git  # noqa: PLC0415  the runner takes long to load
    from delegate.runner.workspaces.kept import make_restore_scratch, restore  # noqa: PLC0415  the same

    try:
        with make_restore_scratch(home) as scratch:
            git = await read_git(context.environ, scratch)
            await restore(git, home, lineage, target)
    except GitFailed as failure:
        raise Refused(why=failure) from failure
    except OSError as error:
        why = f"{target} cannot be written: {(error.strerror or str(error)).lower()}"
        raise InvalidField(field="directory", why=why) from error


@workspaces.command(
    epilog=examples("delegate workspaces drop task-1f0c9a77e2", "delegate workspaces drop --yes task-1f0c9a77e2")
)
@click.argument("name", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options
def drop(context: CommandContext, name: str, yes: bool) -> None:
    """Delete kept work for good."""
    from delegate.runner.workspaces.kept import drop  # noqa: PLC0415  the runner takes long to load

    home, kept = _find(context, name)
    if not yes:
        _confirm(kept)
    drop(home, kept.lineage)
    context.print_result(kept_data(kept), [f"{kept.lineage} dropped"])


def _confirm(kept: KeptWork) -> None:
    if not terminal.is_terminal(sys.stdin):
        raise Refused(why="this deletes the only copy of the work; add --yes to confirm")
    files = "1 changed file" if kept.files == 1 else f"{kept.files} changed files"
    click.confirm(f"Remove {kept.lineage} ({files}, {format_size(kept.size)}) for good?", abort=True, err=True)
