"""`delegate mcp start`: what an MCP client writes to us goes to the relay's /mcp, what the relay answers comes back.

A client starts one of these per session and waits for it, so it is small and quick: the standard library only, and few
modules of it (no dataclasses, no typing, no pathlib: each costs more than all of this). Everything slow, reading
settings and starting a relay, is done by another process that ends (`delegate.cli.reach`).

One thread and one `poll`. The bridge keeps nothing that matters: tasks, schedules and logs are the relay's.
"""
