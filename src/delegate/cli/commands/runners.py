"""`delegate runner`: machines that run tasks for a relay elsewhere."""

from __future__ import annotations

from importlib import import_module

import click

# The module of each command is loaded when the command is used.
MODULES = {
    "privacy": "runner_privacy",
    "logs": "runner_logs",
}


class RunnerGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        command: click.Command = vars(import_module(f"delegate.cli.commands.{MODULES[cmd_name]}"))[cmd_name]
        return command


@click.group(cls=RunnerGroup)
def runner() -> None:
    """Pair machines with a relay, and manage them."""
