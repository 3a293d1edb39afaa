"""The entry point of the `delegate` command. `mcp start` skips the CLI imports, because an MCP client waits for it."""

from __future__ import annotations

import sys

BRIDGE = ["mcp", "start"]
VERBOSE = {"-v", "--verbose"}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:2] == BRIDGE and set(arguments[2:]) <= VERBOSE:
        from delegate.mcp_bridge.run import run  # noqa: PLC0415  loads a tenth of the CLI's modules

        return run(verbose=len(arguments) > 2)
    from delegate.cli.main import main as command_line  # noqa: PLC0415

    return command_line()
