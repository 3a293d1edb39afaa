"""Commands for the runners of a relay: list them, invite a machine, and give them orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delegate.cli.context import CommandContext, WholeNumber, command_options, examples, fetch_newest
from delegate.cli.render.runner_page import runner_table
from delegate.cli.render.status import format_counts

if TYPE_CHECKING:
    from delegate.client.responses import RunnerCountsData, RunnerData

LIMIT = 20


@click.command("list", epilog=examples("delegate runner list", "delegate runner list --json"))
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(1, 10_000),
    default=LIMIT,
    metavar="N",
    help="Show at most this many. [default: 20]",
)
@command_options
def list_runners(context: CommandContext, limit: int) -> None:
    """List the relay's runners, by name: state, slots, tasks, last result, version and agents."""
    client = context.client()
    counts: list[RunnerCountsData] = []

    def page(size: int, cursor: str | None) -> tuple[list[RunnerData], str | None]:
        found = client.runners(limit=size, cursor=cursor)
        counts.append(found["counts"])
        return found["runners"], found["next"]

    found, has_more = fetch_newest(page, limit)
    if context.as_json:
        context.print_json_lines(found)
        return
    context.print([format_counts(counts[-1]), *([""] if found else []), *runner_table(found, context.style())])
    if has_more:
        context.say(f"there are {counts[-1]['total']} runners; `--limit` shows more")


@click.command(epilog=examples("delegate runner token --name studio"))
@click.option("--name", required=True, metavar="NAME", help="Name of the new runner: letters, digits, dots, - and _.")
@command_options
def token(context: CommandContext, name: str) -> None:
    """Print the command that pairs a machine. It works once, within 15 minutes."""
    invited = context.client().pairing_token(name)
    if context.as_json:
        context.print_json(invited)
        return
    context.print([invited["command"]])
    context.say(
        f"run this on the machine that becomes {name}, within 15 minutes; it works once",
        f"where Delegate is not installed: {invited['installCommand']}",
    )


@click.command(epilog=examples("delegate runner drain studio"))
@click.argument("name")
@command_options
def drain(context: CommandContext, name: str) -> None:
    """Let a runner finish its tasks, and give it no new ones."""
    drained = context.client().order_runner(name, "drain")
    busy = drained["slots"]["busy"]
    rest = f"finishes {busy} task{'s' if busy > 1 else ''} and takes no new ones" if busy else "takes no tasks"
    _report(context, drained, f"{drained['name']} {rest}; `delegate runner resume {drained['name']}` ends this")


@click.command(epilog=examples("delegate runner resume studio"))
@click.argument("name")
@command_options
def resume(context: CommandContext, name: str) -> None:
    """End a drain: the runner takes tasks again."""
    resumed = context.client().order_runner(name, "resume")
    _report(context, resumed, f"{resumed['name']} takes tasks")


@click.command(epilog=examples("delegate runner revoke studio"))
@click.argument("name")
@command_options
def revoke(context: CommandContext, name: str) -> None:
    """Refuse a runner from now on. Its agents are stopped; its tasks are queued again or end."""
    revoked = context.client().order_runner(name, "revoke")
    _report(context, revoked, f"{revoked['name']} is revoked; to use that machine again, pair it again")


@click.command(epilog=examples("delegate runner rename studio attic"))
@click.argument("name")
@click.argument("new_name")
@command_options
def rename(context: CommandContext, name: str, new_name: str) -> None:
    """Give a runner another name."""
    renamed = context.client().order_runner(name, "rename", name=new_name)
    _report(context, renamed, f"{name} is now {renamed['name']}")


def _report(context: CommandContext, runner: RunnerData, sentence: str) -> None:
    context.print_result(runner, [sentence])
