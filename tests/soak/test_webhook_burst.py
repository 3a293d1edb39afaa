"""`webhook_burst`: webhooks as fast as they are taken; none is lost, memory stays flat, and leases are renewed."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import anyio
import httpx2
import pytest
from tests.journeys.test_output import memory_of
from tests.relay.peers import Attempt, RelayProcess, client, runner_of, running_relay

from delegate.cli.demo.linear_standin import CLIENT_ID, CLIENT_SECRET, WEBHOOK_SECRET, LinearStandin
from delegate.linear.payloads import sign

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.promise("P6")]
DELIVERIES = int(os.environ.get("DELEGATE_SOAK_DELIVERIES", "100000"))
SENDERS = 32
WARM_SHARE = 10  # memory is compared with that after a tenth
GROWTH_MAX = 64 * 1024 * 1024  # bytes
CREDENTIALS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "webhookSecret": WEBHOOK_SECRET}


def issue_update(number: int) -> tuple[bytes, dict[str, str]]:
    """A signed webhook about an issue that nobody has delegated."""
    data = {"id": f"issue-{number}", "updatedAt": "2026-01-01T00:00:00Z"}
    event = {"type": "Issue", "action": "update", "organizationId": "demo", "data": data, "updatedFrom": {"title": "x"}}
    body = json.dumps({**event, "webhookTimestamp": int(time.time() * 1000)}).encode()
    headers = {"Content-Type": "application/json", "Linear-Signature": sign(body, WEBHOOK_SECRET)}
    return body, {**headers, "Linear-Delivery": str(uuid4())}


async def deliver(http: httpx2.AsyncClient, numbers: range) -> None:
    for number in numbers:
        body, headers = issue_update(number)
        response = await http.post("/webhooks/linear", content=body, headers=headers)
        assert (response.status_code, response.json()) == (200, {"status": "accepted"})


async def hold(attempt: Attempt, ended: anyio.Event) -> None:
    """Renew as a runner does; a late renewal would be refused."""
    while not ended.is_set():
        await attempt.renew()
        with anyio.move_on_after(0.5):
            await ended.wait()


@pytest.fixture
def linear() -> Iterator[LinearStandin]:
    with LinearStandin(key="PER-1", title="A", description="B", project="shop", labels=()) as started:
        yield started


@pytest.fixture
def relay(tmp_path: Path, linear: LinearStandin) -> Iterator[RelayProcess]:
    with running_relay(tmp_path, DELEGATE_LINEAR_API_URL=linear.url) as started:
        yield started


async def test_webhook_burst_loses_nothing_and_delays_no_renewal(relay: RelayProcess) -> None:
    warm = DELIVERIES // WARM_SHARE
    memory: list[int] = []
    async with client(relay.url) as owner, runner_of(owner) as runner:
        connected = await owner.post("/api/linear/connect", json={"kind": "client_credentials", **CREDENTIALS})
        assert connected.status_code == 200
        attempt, ended = await runner.take(), anyio.Event()
        async with anyio.create_task_group() as holding:
            holding.start_soon(hold, attempt, ended)
            for part in (range(warm), range(warm, DELIVERIES)):
                async with anyio.create_task_group() as group:
                    for first in range(SENDERS):
                        group.start_soon(deliver, owner, part[first::SENDERS])
                memory.append(memory_of(relay.process.pid))
            await process_all(owner)
            ended.set()
        detail = await attempt.detail()

    with closing(sqlite3.connect(relay.database)) as database:
        (count,) = database.execute("SELECT count(*) FROM inbox").fetchone()
    assert count == DELIVERIES
    assert memory[1] - memory[0] < GROWTH_MAX
    assert [one["state"] for one in detail["attempts"]] == ["running"]


async def process_all(owner: httpx2.AsyncClient) -> None:
    for _ in range(DELIVERIES):
        if not (await owner.get("/api/linear")).json()["inboxWaiting"]:
            return
        await anyio.sleep(0.5)
    raise AssertionError("webhooks are left in the inbox")
