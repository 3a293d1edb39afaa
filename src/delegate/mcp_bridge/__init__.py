"""`delegate mcp start`: forwards MCP messages from standard input to the relay's /mcp, and the responses back.

A client starts one bridge per session and waits for it, so it is small and quick: the standard library only, and few
modules of it (no dataclasses, no typing, no pathlib: each costs more than all of this). A short-lived process
(`delegate.cli.reach`) does what is slow: reading the settings and starting a relay.

It has one thread and one `poll`, and no state worth keeping: tasks, schedules and logs belong to the relay.
"""
