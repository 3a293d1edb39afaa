"""Authenticates requests to /mcp. Loads the MCP SDK with the first one, because that takes a second."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from fastapi import Request
from starlette.types import Receive, Scope, Send

from delegate.errors import Stopping
from delegate.relay.auth import require_access
from delegate.relay.mcp.batches import handle_messages
from delegate.relay.mcp.calls import MACHINE
from delegate.relay.mcp.messages import shorten_errors
from delegate.relay.requests import Relay

if TYPE_CHECKING:
    from delegate.relay.mcp.sdk_servers import Servers

log = logging.getLogger(__name__)
CALLS_STOP_TIMEOUT = 2.0  # seconds for open calls when the relay stops; less than STOP_TIMEOUT of the relay


class McpEndpoint:
    """An ASGI application in front of three MCP servers: for people, and for agents without and with a bridge."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._loading = anyio.Lock()
        self._group: TaskGroup | None = None
        self._servers: Servers | None = None
        self._loaded = anyio.Event()
        self._calls = 0
        self._call_ended = anyio.Event()

    def open(self, group: TaskGroup) -> None:
        """Run the servers in this task group once they are needed."""
        self._group = group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # a client's event stream, or the end of its session
            await self._forward(scope, receive, send)
            return
        with self._count_call():
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await require_access(Request(scope, receive))
        servers = self._servers or await self._load()
        manager = servers.for_delegating
        if caller.attempt is not None:  # only the bridge sends where it is, without which no task can be submitted
            has_bridge = any(name == MACHINE.encode() for name, _ in scope["headers"])
            manager = servers.for_children if has_bridge else servers.for_asking

        async def forward(receive: Receive, send: Send) -> None:
            await manager.handle_request(scope, receive, shorten_errors(send))

        if scope["method"] == "POST":
            await handle_messages(scope, receive, send, forward)
        else:
            await forward(receive, send)

    async def load_for_agent(self) -> None:
        """Load before an agent starts, which may continue without ask_user if that is slow to respond. Waits for less
        than the lease of its attempt."""
        if self._servers is None and self._group is not None:
            self._group.start_soon(self._load_quietly)
            with anyio.move_on_after(self._relay.rules.lease.total_seconds() / 2):
                await self._loaded.wait()

    async def _load_quietly(self) -> None:
        """Without the tools the relay continues, for example when an upgrade has replaced their files."""
        try:
            await self._load()
        except Stopping:
            pass
        except Exception:
            log.exception("MCP tools not loaded; restart the relay")
        self._loaded.set()

    async def _load(self) -> Servers:
        async with self._loading:
            if self._servers is None and self._group is not None and not self._relay.hub.closing.is_set():
                await to_thread.run_sync(import_module, "delegate.relay.mcp.sdk_servers")
                await self._group.start(self._serve)
            if self._servers is None:
                raise Stopping
            return self._servers

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        """Serve until the relay stops; then let open calls finish and close the event streams."""
        from delegate.relay.mcp.sdk_servers import make_servers  # noqa: PLC0415  # loaded on first use

        servers = make_servers(self._relay)
        async with servers.for_delegating.run(), servers.for_asking.run(), servers.for_children.run():
            self._servers = servers
            task_status.started()
            await self._relay.hub.closing.wait()
            with anyio.move_on_after(CALLS_STOP_TIMEOUT):
                while self._calls:
                    await self._call_ended.wait()
            self._servers = None

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._call_ended.set()
            self._call_ended = anyio.Event()
