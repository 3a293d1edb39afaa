"""The official MCP client at the other end of `delegate mcp start`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp import Client, StdioServerParameters
from tests.fakes.world import World


@dataclass(frozen=True, slots=True)
class Outer:
    """What an agent that delegates over MCP can do."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return dict(result.structured_content)

    async def refused(self, tool: str, **arguments: Any) -> str:
        """The words of the refusal."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return "\n".join(block.text for block in result.content if block.type == "text")


@asynccontextmanager
async def mcp_session(world: World, mode: str = "auto") -> AsyncIterator[Outer]:
    bridge = StdioServerParameters(
        command=sys.executable, args=["-m", "delegate", "mcp", "start"], env=world.environment, cwd=world.work
    )
    async with Client(bridge, mode=mode, read_timeout_seconds=60) as client:
        yield Outer(client)
