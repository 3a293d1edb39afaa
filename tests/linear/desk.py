"""A relay in this process beside the stand-in for Linear: a test says when webhooks arrive, work is done and time
passes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from tests.fakes.linear_deliveries import Delivery, Entity, ManualClock
from tests.fakes.linear_standin import LinearStandin
from tests.relay.peers import TOKEN, Attempt, Runner, fact, runner_of

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.relay.app import make_app
from delegate.relay.linear.inbox import Inbox
from delegate.relay.linear.link import LinearLink
from delegate.relay.linear.loops import report
from delegate.relay.linear.outbox import Outbox
from delegate.relay.requests import Relay, SharedClock
from delegate.store.database import open_database
from delegate.store.schema import prepare
from delegate.tokens import hash_token

ADDRESS = "http://127.0.0.1"
ROUNDS_MAX = 200
DOCUMENTS: dict[str, Any] = {}  # operations that a stand-in has parsed and validated, for all of them
REPOSITORY = "zietek/delego-saas"
DESCRIPTION = (
    "Open relay routes are getting pounded by unauth'd traffic. Add per-IP rate-limit on /api/runners/* before the "
    "auth check. Cap at 100 req/min. Return 429 with Retry-After header."
)
TITLE = "Rate-limit runner endpoints to block unauthenticated DDOS"


@dataclass(slots=True, kw_only=True)
class Desk:
    linear: LinearStandin
    clock: ManualClock
    relay: Relay
    inbox: Inbox
    outbox: Outbox
    http: httpx2.AsyncClient  # the relay's owner
    runner: Runner
    answers: list[httpx2.Response] = field(default_factory=list)  # to webhooks
    tokens: Iterator[int] = field(default_factory=itertools.count)

    @property
    def link(self) -> LinearLink:
        return self.inbox.link

    # Linear's side.

    def per_44(self, *labels: str) -> Entity:
        project = self.linear.get("Project", "delego-saas")
        return self.linear.add_issue(
            TITLE, number=44, projectId=project.id, priority=3, description=DESCRIPTION, labels=["backend", *labels]
        )

    def state_of(self, issue: Entity) -> str:
        return str(self.linear.rows[issue["stateId"]]["name"])

    def said(self, session: Entity) -> list[tuple[str, str]]:
        """What the app said in a session, as type and text."""
        return [
            (one["type"], one.get("body") or f"{one['action']} {one['parameter']}")
            for one in self.linear.activities(session)
            if one["type"] != "prompt"
        ]

    # Webhooks and the relay's work.

    async def deliver(self) -> None:
        """Send every due webhook."""
        while (delivery := self.linear.sender.take_due()) is not None:
            await self.send(delivery)

    async def send(self, delivery: Delivery) -> httpx2.Response:
        headers = self.linear.sender.prepare(delivery)
        answer = await self.http.post("/webhooks/linear", content=delivery.body, headers=headers)
        self.answers.append(answer)
        self.linear.sender.record(delivery, str(answer.status_code))
        return answer

    async def work(self) -> None:
        """Process webhooks, report and post until nothing is left to do."""
        for _ in range(ROUNDS_MAX):
            now = self.relay.now()
            done = [
                await self.inbox.process_due(now),
                await report(self.link, now),
                await self.outbox.send_due(now),
            ]
            if not any(done):
                return
        raise AssertionError("the relay does not come to rest")

    async def settle(self) -> None:
        """Until Linear and the relay have nothing more to say to each other."""
        for _ in range(ROUNDS_MAX):
            await self.deliver()
            await self.work()
            if not self.linear.sender.queue or self.linear.sender.queue[0][0] > self.clock():
                return
        raise AssertionError("Linear and the relay go round in a circle")

    async def tasks(self) -> list[dict[str, Any]]:
        """All of them, the newest first."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await self.http.get(f"/api/tasks?limit=100{cursor}")).json()
            found += page["tasks"]
            if not page["next"]:
                return found
            cursor = f"&cursor={page['next']}"

    async def task(self, task_id: str) -> dict[str, Any]:
        return dict((await self.http.get(f"/api/tasks/{task_id}")).json()["task"])

    async def map_project(self) -> None:
        body = {"project": "delego-saas", "repository": REPOSITORY}
        answer = await self.http.post("/api/linear/map", json=body)
        assert answer.status_code == 200, answer.text

    # The runner's side.

    async def claim(self) -> Attempt:
        token = f"dat_{next(self.tokens)}"
        assignment = await self.runner.ask(askHash=hashlib.sha256(token.encode()).hexdigest())
        assert assignment is not None, "nothing to claim"
        return Attempt(
            runner=self.runner, id=assignment["attemptId"], task_id=assignment["taskId"], fence=assignment["fence"]
        )

    async def complete(self, attempt: Attempt, *, seq: int = 0, number: int = 324) -> None:
        """A pull request, and the end."""
        url = f"https://github.com/{REPOSITORY}/pull/{number}"
        await attempt.record(fact(seq, "pull_request", url=url, number=number, title="PER-44 · Rate-limit"))
        result = {
            "summary": "Rate limits expire.",
            "branch": "per-44-rate-limit",
            "pullRequest": url,
            "files": 9,
            "additions": 108,
            "deletions": 18,
            "checksPassed": 1,
            "checksTotal": 1,
        }
        await attempt.finish(seq + 1, message="done", result=result)


@asynccontextmanager
async def open_desk(home: Path, *, connects: str = "client_credentials", **options: Any) -> AsyncIterator[Desk]:
    clock = ManualClock()
    prepare(Home(home), url="", now=datetime.now(UTC))
    with open_linear(clock, **options) as linear:
        async with open_relay(home, linear, clock) as desk:
            if connects:
                await connect(desk.http, linear, connects)
            yield desk


def open_linear(clock: ManualClock, **options: Any) -> LinearStandin:
    linear = LinearStandin(webhook_url=f"{ADDRESS}/webhooks/linear", clock=clock, seed=7, workers=0, **options)
    linear.documents = DOCUMENTS
    linear.add_project("delego-saas")
    return linear


@asynccontextmanager
async def open_relay(
    home: Path, linear: LinearStandin, clock: ManualClock, known: Runner | None = None
) -> AsyncIterator[Desk]:
    """A relay on the database of a home, and a runner: a new one, or one that the relay knows."""
    async with open_database(path=Home(home).database, url="") as database:
        relay = Relay(
            settings=Settings(home=home, linear_api_url=linear.api_url),
            database=database,
            token_hash=hash_token(TOKEN),
            started_at=datetime.now(UTC),
            clock=SharedClock(machine_time=lambda: datetime.fromtimestamp(clock(), UTC)),
        )
        app = make_app(relay)
        link: LinearLink = app.state.linear
        transport = httpx2.ASGITransport(app)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as http,
            desk_runner(http, known) as runner,
        ):
            yield Desk(
                linear=linear,
                clock=clock,
                relay=relay,
                inbox=Inbox(link),
                outbox=Outbox(link),
                http=http,
                runner=runner,
            )
        await link.close()


async def connect(http: httpx2.AsyncClient, linear: LinearStandin, kind: str) -> dict[str, Any]:
    assert linear.webhook is not None
    credentials = {
        "api_key": {"apiKey": linear.api_key},
        "client_credentials": {"clientId": linear.oauth_client_id, "clientSecret": linear.client_secret},
    }[kind]
    body = {"kind": kind, "webhookSecret": linear.webhook["secret"], **credentials}
    answer = await http.post("/api/linear/connect", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@asynccontextmanager
async def desk_runner(owner: httpx2.AsyncClient, known: Runner | None) -> AsyncIterator[Runner]:
    """A runner that calls the relay without a socket."""
    async with nullcontext(known) if known else runner_of(owner) as registered:
        assert registered is not None
        headers = {"authorization": f"Bearer {registered.token}"}
        http = httpx2.AsyncClient(transport=owner._transport, base_url=ADDRESS, headers=headers)
        registered.http, registered.owner = http, owner
        yield registered
