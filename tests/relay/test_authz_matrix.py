"""Who may do what, compared with the table of access for every route and every MCP tool."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.routing import Route
from tests.relay.peers import relay_in_process

from delegate.errors import Forbidden
from delegate.relay.access import PUBLIC_ROUTES, ROUTES, TOOLS, Holder, check_access
from delegate.relay.app import make_app
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P18")]


def routes_of(app: FastAPI) -> set[str]:
    routes = [route for route in app.routes if isinstance(route, Route)]
    return {f"{method} {route.path}" for route in routes for method in (route.methods or set()) - {"HEAD"}}


async def test_every_route_and_every_tool_is_in_the_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with relay_in_process(tmp_path_factory.mktemp("relay")) as relay:
        routes = routes_of(make_app(relay))

    assert routes == set(ROUTES) | PUBLIC_ROUTES
    assert set(TOOLS) == {*FOR_OWNER, *FOR_AGENTS}


@pytest.mark.parametrize("holder", Holder)
def test_what_is_not_in_the_table_is_refused(holder: Holder) -> None:
    with pytest.raises(Forbidden, match="nobody"):
        check_access(ROUTES, "GET /api/new", holder)
