"""`delegate completion`: prints the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class, shell_complete

from delegate.cli.context import COMPLETION_VARIABLE, CommandContext, command_options, examples

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "delegate"


@click.command(
    epilog=examples(
        'eval "$(delegate completion bash)"',
        'delegate completion zsh > "${fpath[1]}/_delegate"',
        "delegate completion fish > ~/.config/fish/completions/delegate.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@command_options
def completion(context: CommandContext, shell: str) -> None:
    """Print the completion script for a shell."""
    found = get_completion_class(shell)
    assert found is not None  # click knows all three
    cli = click.get_current_context().find_root().command
    script = found(cli, {}, PROGRAM, COMPLETION_VARIABLE).source().strip()
    context.print_result({"shell": shell, "script": script}, [script])


def complete(cli: click.Command, context: CommandContext) -> int:
    """Respond to a completion request from a shell."""
    return shell_complete(cli, {"obj": context}, PROGRAM, COMPLETION_VARIABLE, context.environ[COMPLETION_VARIABLE])
