"""`delegate runner`: machines that run tasks for a relay elsewhere."""

from __future__ import annotations

from importlib import import_module

import click

from delegate.cli.context import examples, shared_options

# The module of each command is loaded when the command is used.
MODULES = {
    "list": "runner_list",
    "token": "runner_list",
    "drain": "runner_list",
    "resume": "runner_list",
    "revoke": "runner_list",
    "rename": "runner_list",
    "privacy": "runner_privacy",
    "logs": "runner_logs",
    "pair": "runner_pair",
    "start": "runner_machine",
    "status": "runner_machine",
    "stop": "runner_machine",
    "unpair": "runner_machine",
}


class RunnerGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        module = vars(import_module(f"delegate.cli.commands.{MODULES[cmd_name]}"))
        command: click.Command = module.get(f"{cmd_name}_runners") or module[cmd_name]
        return command


@click.group(
    cls=RunnerGroup,
    epilog=examples("delegate runner list", "delegate runner token --name studio", "delegate runner drain studio"),
)
@shared_options
def runner() -> None:
    """Pair machines with a relay, and manage them."""
