"""Whoever sends wrong tokens is stopped before any token is looked at; nobody else is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv6Address, ip_network
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from tests.relay.peers import TOKEN, problem_of, relay_in_process

from delegate.errors import RateLimited, StoreBusy
from delegate.relay.app import make_app
from delegate.relay.http.exposure import CallerAddress, Exposure
from delegate.relay.http.rate_limit import (
    ADDRESSES_MAX,
    PAIRING_FAILURES,
    TOKEN_FAILURES,
    WINDOW,
    FailureCounter,
    RateLimits,
    check_limit,
    record_failure,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P20")]

STRANGER, NEIGHBOUR = "203.0.113.7", "203.0.113.8"
REFUSED = {
    "no header": [],
    "another scheme": [("authorization", f"Basic {TOKEN}")],
    "an empty token": [("authorization", "Bearer")],
    "a wrong token": [("authorization", "Bearer wrong")],
    "a runner's token that nobody has": [("authorization", "Bearer drs_" + "x" * 43)],
    "an agent's token that nobody has": [("authorization", "Bearer dat_" + "x" * 43)],
    "a person's token that nobody has": [("authorization", "Bearer dlg_" + "x" * 43)],
    "two headers": [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer wrong")],
    "a token of a megabyte": [("authorization", "Bearer " + "x" * 1_000_000)],
}


# The counter.


def test_the_limit_is_reached_and_over_after_the_window() -> None:
    counter = FailureCounter(3, window=60)
    for second in (0, 1, 2):
        assert counter.retry_after("a", second) is None
        counter.record("a", second)

    assert counter.retry_after("a", 2) == 58
    assert counter.retry_after("b", 2) is None
    assert counter.retry_after("a", 59.5) == 0.5
    assert counter.retry_after("a", 60) is None

    counter.record("a", 60)
    assert counter.retry_after("a", 60) is None  # a new window has one failure


def test_the_oldest_address_is_forgotten_first() -> None:
    counter = FailureCounter(1)
    for number in range(ADDRESSES_MAX + 1):
        counter.record(str(number), number / 1000)

    assert len(counter) == ADDRESSES_MAX
    assert counter.retry_after("0", 20) is None
    assert counter.retry_after("1", 20) is not None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 30)), max_size=80), st.integers(1, 4))
def test_it_agrees_with_a_list_of_all_failures(failures: list[tuple[str, float]], limit: int) -> None:
    """However failures are spread, it never blocks below the limit, and never forgets within a window."""
    counter, now = FailureCounter(limit, window=60, keys_max=4), 0.0
    windows: dict[str, tuple[float, int]] = {}
    for key, pause in failures:
        now += pause
        began, count = windows.get(key, (now, 0))
        if now - began >= 60:
            windows.pop(key)
            began, count = now, 0
        windows[key] = (began, count + 1)
        counter.record(key, now)
        if len(windows) > 4:
            windows.pop(next(iter(windows)))

        assert len(counter) == len(windows) <= 4
        for one, (start, number) in windows.items():
            blocked = number >= limit and now < start + 60
            assert (counter.retry_after(one, now) is not None) == blocked


# Over HTTP.


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    limits = RateLimits(tokens=FailureCounter(3), pairing=FailureCounter(1), webhooks=FailureCounter(3))
    async with relay_in_process(tmp_path) as relay:
        proxies = (ip_network("10.0.0.0/8"), ip_network("127.0.0.0/8"))
        yield make_app(replace(relay, limits=limits, exposure=Exposure(proxies=proxies)))


def caller(app: FastAPI, address: str, token: str = "") -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=(address, 4000))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def statuses(http: httpx2.AsyncClient, number: int = 5, path: str = "/api/relay") -> list[int]:
    return [(await http.get(path)).status_code for _ in range(number)]


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED.keys())
async def test_every_refused_token_counts(app: FastAPI, headers: list[tuple[str, str]]) -> None:
    async with caller(app, STRANGER) as http:
        answers = [await http.get("/api/relay", headers=headers) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [401, 401, 401, 429]


async def test_the_refusal_says_how_long_to_wait(app: FastAPI) -> None:
    async with caller(app, STRANGER) as http:
        await statuses(http, 3)
        refusal = await http.get("/api/relay")

    problem = problem_of(refusal, 429, "rate_limited")
    assert 50 < problem["retry_after"] <= WINDOW
    assert refusal.headers["retry-after"] == str(round(problem["retry_after"]))
    assert "check the token" in problem["hint"]


async def test_it_is_checked_before_the_token(app: FastAPI) -> None:
    """A blocked address learns nothing about the tokens that it tries, also about a good one."""
    async with (
        caller(app, STRANGER) as http,
        caller(app, STRANGER, TOKEN) as good,
        caller(app, NEIGHBOUR, TOKEN) as other,
    ):
        assert await statuses(good, 5) == [200] * 5  # good tokens do not count
        await statuses(http, 3)

        assert await statuses(good, 1) == [429]
        assert await statuses(other, 1) == [200]
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/api/openapi.json")).status_code == 200


async def test_every_route_that_takes_a_token_is_limited(app: FastAPI) -> None:
    async with caller(app, STRANGER) as http:
        paths = (await http.get("/api/openapi.json")).json()["paths"]
        routes = [(method, path) for path, methods in paths.items() for method in methods] + [("post", "/mcp")]
        await statuses(http, 3)
        await http.post("/api/runners/pair")
        answers = {route: (await http.request(route[0].upper(), route[1])).status_code for route in routes}

    assert len(answers) > 30
    assert {route: status for route, status in answers.items() if status != 429} == {}


@pytest.mark.parametrize(
    "route",
    [("POST", "/mcp"), ("POST", "/api/tasks"), ("POST", "/api/runners/claim"), ("POST", "/webhooks/linear")],
    ids=str,
)
async def test_each_kind_of_endpoint_counts(app: FastAPI, route: tuple[str, str]) -> None:
    async with caller(app, STRANGER, "wrong") as http:
        answers = [(await http.request(*route, json={})).status_code for _ in range(4)]

    assert answers == [401, 401, 401, 429]


async def test_an_ipv6_address_counts_with_its_network(app: FastAPI) -> None:
    async with (
        caller(app, "2001:db8:0:1::1") as first,
        caller(app, "2001:db8:0:1:ffff::2") as same,
        caller(app, "2001:db8:0:2::1") as other,
    ):
        assert await statuses(first, 3) == [401] * 3
        assert await statuses(same, 1) == [429]
        assert await statuses(other, 1) == [401]


def test_ten_thousand_addresses_of_one_network_count_as_one() -> None:
    counter = FailureCounter(TOKEN_FAILURES)
    network = int(IPv6Address("2001:db8:0:1::"))
    callers = [CallerAddress(address=IPv6Address(network + number)) for number in range(10_000)]

    for one in callers:
        record_failure(counter, one, 0)

    assert len(counter) == 1
    with pytest.raises(RateLimited):
        check_limit(counter, callers[-1], 0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_the_relays_own_machine_is_never_locked_out(app: FastAPI, address: str) -> None:
    async with caller(app, address, "wrong") as http:
        assert await statuses(http, 6) == [401] * 6


@pytest.mark.parametrize("proxy", ["10.1.2.3", "127.0.0.1"])
async def test_behind_a_proxy_the_address_that_it_names_counts(app: FastAPI, proxy: str) -> None:
    async with caller(app, proxy, "wrong") as http:
        http.headers["x-forwarded-for"] = f"198.51.100.1, {STRANGER}, 10.9.9.9"
        assert await statuses(http, 4) == [401, 401, 401, 429]
        http.headers["x-forwarded-for"] = f"{STRANGER}, {NEIGHBOUR}:5123"
        assert await statuses(http, 1) == [401]


async def test_a_forged_address_of_an_untrusted_peer_changes_nothing(app: FastAPI) -> None:
    async with caller(app, STRANGER, "wrong") as http:
        answers = []
        for number in range(4):
            http.headers["x-forwarded-for"] = f"198.51.100.{number}"
            answers += await statuses(http, 1)

    assert answers == [401, 401, 401, 429]


async def test_a_forwarded_loopback_address_is_counted(app: FastAPI) -> None:
    async with caller(app, "10.1.2.3", "wrong") as http:
        http.headers["x-forwarded-for"] = "127.0.0.1"
        assert await statuses(http, 4) == [401, 401, 401, 429]


async def test_a_database_that_does_not_respond_is_no_failure(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StoreBusy(why="it is away")

    with monkeypatch.context() as broken:
        broken.setattr(type(app.state.relay.database), "read", fail)
        async with caller(app, STRANGER, "drs_" + "x" * 43) as http:
            assert await statuses(http, 6, "/api/runners/attempts") == [503] * 6
    async with caller(app, STRANGER, TOKEN) as http:
        assert await statuses(http, 1) == [200]


async def test_the_limit_ends_with_its_window(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("delegate.relay.http.request_checks.time.monotonic", lambda: now)
    async with caller(app, STRANGER, "wrong") as http:
        assert await statuses(http, 4) == [401, 401, 401, 429]
        now += WINDOW
        assert await statuses(http, 1) == [401]


def test_the_numbers_are_those_that_are_documented() -> None:
    assert (TOKEN_FAILURES, PAIRING_FAILURES, ADDRESSES_MAX, WINDOW) == (100, 10, 10_000, 60)
