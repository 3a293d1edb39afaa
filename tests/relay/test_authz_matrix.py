"""`authz_matrix`: every route and every MCP tool with every kind of token, compared with the table of access."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.routing import Route
from tests.relay.peers import TOKEN, WAIT, RelayProcess, client, relay_in_process, runner_of

from delegate import __version__
from delegate.errors import Forbidden
from delegate.relay.access import PUBLIC_ROUTES, ROUTES, TOOLS, Holder, check_access
from delegate.relay.app import make_app
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P18")]
INVALID = ("none", "wrong", "wrong dlg_", "wrong drs_", "wrong drs_pair_", "wrong dst_", "wrong dat_")
ENDED = ("expired", "revoked", "disabled")
HOLDERS = {holder.value: holder for holder in Holder}
# Everything is tried with ids of nothing: whoever is let in is told so, or that the body is not valid.
LET_IN = {200, 404, 409, 415, 422}
# A webhook without a body is refused before its signature is checked.
PUBLIC_ANSWERS = {"GET /dist/{name}": 404, "POST /webhooks/linear": 415}
Tokens = dict[str, str | None]


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
    with pytest.raises(Forbidden, match="no one"):
        check_access(ROUTES, "GET /api/new", holder)


async def add_person(owner: httpx2.AsyncClient, role: str) -> dict[str, Any]:
    name = f"{role}-{secrets.token_hex(4)}"
    added = await owner.post("/api/people", json={"name": name, "role": role})
    assert added.status_code == 201, added.text
    return dict(added.json())


async def ended_tokens(owner: httpx2.AsyncClient, relay: RelayProcess) -> Tokens:
    gone = {how: await add_person(owner, "admin") for how in ("revoked", "disabled", "expired")}
    await owner.post(f"/api/tokens/{gone['revoked']['token']['tokenId']}/revoke", json={})
    await owner.post(f"/api/people/{gone['disabled']['person']['name']}/disable", json={})
    with closing(sqlite3.connect(relay.database, timeout=WAIT)) as connection, connection:
        expired = gone["expired"]["token"]["tokenId"]
        connection.execute("UPDATE access_token SET expires_at = 1 WHERE id = ?", [expired])
    return {how: person["token"]["token"] for how, person in gone.items()}


async def pair(relay: RelayProcess, pairing_token: str) -> str:
    facts = {"machine": "box", "os": "linux", "architecture": "x86_64", "version": __version__}
    async with client(relay.url, pairing_token) as http:
        paired = await http.post("/api/runners/pair", json={**facts, "agents": [], "policy": {}, "slots": 1})
    assert paired.status_code == 201, paired.text
    return str(paired.json()["token"])


@pytest.fixture
async def tokens(relay: RelayProcess, owner: httpx2.AsyncClient) -> AsyncIterator[Tokens]:
    """One token of every kind."""
    agent = "dat_" + secrets.token_hex(32)
    async with AsyncExitStack() as stack:
        runner = await stack.enter_async_context(runner_of(owner))
        await runner.submit(agent="claude")
        assert await runner.ask(askHash=sha256(agent.encode()).hexdigest()) is not None
        people = {role: (await add_person(owner, role))["token"]["token"] for role in ("viewer", "member", "admin")}
        pairing = await owner.post("/api/pairing-tokens", json={"name": f"box-{secrets.token_hex(4)}"})
        unused = await owner.post("/api/pairing-tokens", json={"name": f"box-{secrets.token_hex(4)}"})
        wrong: Tokens = {
            f"wrong {prefix}": prefix + "x" * 43 for prefix in ("dlg_", "drs_", "drs_pair_", "dst_", "dat_")
        }
        yield {
            "none": None,
            "wrong": "wrong",
            **wrong,
            **await ended_tokens(owner, relay),
            **people,
            "owner": TOKEN,
            "pairing token": unused.json()["pairingToken"],
            "runner": await pair(relay, pairing.json()["pairingToken"]),
            "runner slot": runner.token,
            "agent": agent,
        }


async def status_of(http: httpx2.AsyncClient, route: str, token: str | None) -> httpx2.Response:
    method, path = route.split(" ")
    for name in ("task_id", "schedule_id", "attempt_id", "person", "token_id", "runner_id", "name"):
        path = path.replace(f"{{{name}}}", "nothing-here")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with http.stream(method, path, headers=headers) as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            await response.aread()
        return response


def shape(refusal: httpx2.Response) -> tuple[object, ...]:
    problem = refusal.json()
    return refusal.headers["content-type"], tuple(sorted(problem)), problem["type"], problem["detail"]


@pytest.mark.parametrize("route", sorted({*ROUTES, *PUBLIC_ROUTES}))
async def test_a_route_opens_to_exactly_the_holders_of_the_table(
    relay: RelayProcess, tokens: Tokens, route: str
) -> None:
    async with httpx2.AsyncClient(base_url=relay.url, trust_env=False, timeout=10) as http:
        answers = {name: await status_of(http, route, token) for name, token in tokens.items()}

    if route in PUBLIC_ROUTES:
        assert {answer.status_code for answer in answers.values()} == {PUBLIC_ANSWERS.get(route, 200)}
        return
    refused = {name: answer for name, answer in answers.items() if answer.status_code == 401}
    assert set(refused) == {*INVALID, *ENDED}
    assert len({shape(answer) for answer in refused.values()}) == 1
    assert {answer.headers["www-authenticate"] for answer in refused.values()} == {"Bearer"}
    forbidden = {name for name, answer in answers.items() if answer.status_code == 403}
    assert set(tokens) - {*INVALID, *ENDED} == set(HOLDERS)
    # What an agent may do with its own tasks, it may not with others.
    is_agents = Holder.AGENT in ROUTES[route] and "{task_id}" in route
    expected = {name for name in tokens if name in HOLDERS and HOLDERS[name] not in ROUTES[route]}
    assert forbidden == expected | ({"agent"} if is_agents else set())
    assert {answers[name].json()["type"] for name in forbidden} <= {"forbidden"}
    if route.partition(" ")[2] != "/mcp":
        assert {answers[name].status_code for name in set(answers) - set(refused) - forbidden} <= LET_IN


@pytest.mark.parametrize("holder", ["viewer", "member", "admin", "owner", "agent"])
async def test_a_tool_opens_to_exactly_the_holders_of_the_table(
    relay: RelayProcess, tokens: Tokens, holder: str
) -> None:
    tools = FOR_AGENTS if holder == "agent" else FOR_OWNER
    async with (
        client(relay.url, tokens[holder] or "") as http,
        Client(streamable_http_client(f"{relay.url}/mcp", http_client=http), mode="auto") as mcp,
    ):
        # Every tool refuses these arguments, if it is reached at all.
        texts = {name: (await mcp.call_tool(name, {"no such": "argument"})).content[0].text for name in tools}

    refused = {name for name, text in texts.items() if "code: forbidden" in text}
    assert refused == {name for name in tools if HOLDERS[holder] not in TOOLS[name]}
    assert all("it is for" in texts[name] for name in refused)
    assert all("code: invalid_field" in texts[name] for name in set(tools) - refused)
