"""Who may come in at /mcp. The SDK behind it takes a second to load: that is done when somebody comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from fastapi import Request
from starlette.types import Receive, Scope, Send

from delegate.errors import Stopping, Unauthenticated
from delegate.model import Attempt
from delegate.relay.auth import agent_attempt, bearer_token, require_owner
from delegate.relay.mcp.messages import shorten_errors
from delegate.relay.notify import AGENTS_KEY
from delegate.relay.requests import Relay
from delegate.tokens import AGENT_PREFIX

if TYPE_CHECKING:
    from delegate.relay.mcp.servers import Servers

WAIT_SECONDS = 3600.0  # seconds; any number will do
CALLS_STOP_TIMEOUT = 2.0  # seconds for calls under way when the relay stops; less than it has for itself


class McpEndpoint:
    """An ASGI application with two servers behind it: for who delegates, and for who was delegated to."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._loading = anyio.Lock()
        self._group: TaskGroup | None = None
        self._servers: Servers | None = None
        self._calls = 0
        self._call_ended = anyio.Event()

    def open(self, group: TaskGroup) -> None:
        """The servers, once they are needed, live in this group."""
        self._group = group
        group.start_soon(self._load_for_agents)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # the stream that a client holds open, or the end of its session
            await self._forward(scope, receive, send)
            return
        with self._count_call():
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempt = await authenticate_caller(Request(scope, receive), self._relay)
        servers = self._servers or await self._load()
        scope["state"]["attempt"] = attempt
        manager = servers.for_delegating if attempt is None else servers.for_asking
        await manager.handle_request(scope, receive, shorten_errors(send))

    async def _load_for_agents(self) -> None:
        """With the first agent at work: when it wants to ask it must not have to wait, some would go on without."""
        with self._relay.hub.subscribe(AGENTS_KEY) as subscription:
            while not await subscription.wait(WAIT_SECONDS):
                pass
        with suppress(Stopping):
            await self._load()

    async def _load(self) -> Servers:
        async with self._loading:
            if self._servers is None and self._group is not None and not self._relay.hub.closing.is_set():
                await to_thread.run_sync(import_module, "delegate.relay.mcp.servers")
                await self._group.start(self._serve)
            if self._servers is None:
                raise Stopping
            return self._servers

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        """Until the relay stops: then calls under way are answered, and the streams of all clients end."""
        from delegate.relay.mcp.servers import make_servers  # noqa: PLC0415  # not before it is needed

        servers = make_servers(self._relay)
        async with servers.for_delegating.run(), servers.for_asking.run():
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


async def authenticate_caller(request: Request, relay: Relay) -> Attempt | None:
    """The attempt whose agent speaks; None when it is the relay's owner."""
    token = bearer_token(request)
    if not token.startswith(AGENT_PREFIX):
        await require_owner(request)
        return None
    attempt = await agent_attempt(relay, token)
    if attempt is None:
        raise Unauthenticated
    return attempt
