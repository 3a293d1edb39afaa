"""The first lines of every command: a client of MCP waits for its server, so that one starts without the others."""

from __future__ import annotations

import sys

BRIDGE = ["mcp", "start"]
VERBOSE = {"-v", "--verbose"}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:2] == BRIDGE and set(arguments[2:]) <= VERBOSE:
        from delegate.bridge.run import run  # noqa: PLC0415  a tenth of the modules of the command line

        return run(verbose=len(arguments) > 2)
    from delegate.cli.main import main as command_line  # noqa: PLC0415

    return command_line()
