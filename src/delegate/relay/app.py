"""Assembles the relay's ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial

import anyio
from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.routing import Route

from delegate import __version__
from delegate.errors import NoSuchRoute
from delegate.relay import problems
from delegate.relay.api import fleet, pairing, people, runners, schedules, tasks
from delegate.relay.api import linear as linear_api
from delegate.relay.clock import run_clock
from delegate.relay.disk import DiskSpaceGuard, disk_of, watch_disk
from delegate.relay.housekeeping import run_housekeeping
from delegate.relay.http.request_checks import Guard
from delegate.relay.linear.link import LinearLink
from delegate.relay.linear.loops import run_linear
from delegate.relay.linear.webhook import receive_webhook
from delegate.relay.mcp.endpoint import McpEndpoint
from delegate.relay.openapi import describe
from delegate.relay.requests import Relay, relay_of
from delegate.relay.wheel import served_wheel
from delegate.store.runners import relay_seen_at

PIECE_SIZE = 64 * 1024  # bytes


def make_app(relay: Relay) -> FastAPI:
    disk = disk_of(relay.settings)
    mcp, linear = McpEndpoint(relay), LinearLink(relay)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(run_housekeeping, relay)
            group.start_soon(run_clock, relay)
            mcp.open(group)
            group.start_soon(run_linear, linear)
            group.start_soon(watch_disk, disk)
            yield
            relay.hub.close()
            group.cancel_scope.cancel()

    app = FastAPI(
        title="Delegate relay",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # served below
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Telemetry would look for providers at every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.relay, app.state.mcp, app.state.linear = relay, mcp, linear
    app.add_middleware(DiskSpaceGuard, disk=disk)
    app.add_middleware(Guard, exposure=relay.exposure, limits=relay.limits)
    problems.install(app)
    # Not include_router: it would match the route of every request twice.
    api_modules = (tasks, schedules, people, runners, pairing, fleet, linear_api)
    routes = [route for api_module in api_modules for route in api_module.router.routes]
    quick = Route("/api/tasks", tasks.submit_task_quickly, methods=["POST"])
    webhook = Route("/webhooks/linear", partial(receive_webhook, linear), methods=["POST"])
    app.router.routes.extend([quick, webhook, Route("/mcp", mcp, methods=["GET", "POST", "DELETE"]), *routes])
    app.openapi = cache(partial(describe, app, [route for route in routes if isinstance(route, APIRoute)]))  # type: ignore[method-assign]  # as FastAPI documents it

    @app.get("/api/openapi.json", include_in_schema=False)
    async def show_api(request: Request) -> Response:
        return JSONResponse(
            {**app.openapi(), "servers": [{"url": relay.exposure.public_url or str(request.base_url).rstrip("/")}]}
        )

    @app.get("/dist/{name}", include_in_schema=False)
    async def download(name: str) -> Response:
        wheel = await to_thread.run_sync(served_wheel)
        if name != wheel.name:
            raise NoSuchRoute(method="GET", path=f"/dist/{name}")
        # In pieces: the memory of slow clients, which need no token, must not add up.
        pieces = (wheel.data[start : start + PIECE_SIZE] for start in range(0, len(wheel.data), PIECE_SIZE))
        headers = {"content-length": str(len(wheel.data))}
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    @app.get("/readyz", include_in_schema=False)
    async def ready(request: Request) -> Response:
        await relay_of(request).database.read(relay_seen_at)
        return JSONResponse({"status": "ok"})

    return app
