"""A real relay process, and those who speak to it: its owner, runners, and whoever writes raw bytes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.relay.requests import Relay
from delegate.store.database import open_database
from delegate.store.schema import prepare
from delegate.tokens import hash_token

TOKEN = "owner-token-of-the-tests"
ADDRESS = "127.0.0.1"
TIMINGS = {"DELEGATE_HEARTBEAT": "0.5", "DELEGATE_LEASE": "2", "DELEGATE_RECLAIM_AFTER": "5"}
NO_LINEAR = {"DELEGATE_LINEAR_API_URL": "http://127.0.0.1:9/graphql"}  # a test must not reach the real one
WAIT = 5.0  # seconds after which a test gives up; nothing here should take one
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC).isoformat()
numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayProcess:
    """`python -m delegate.relay`, as the keeper starts it."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def database(self) -> Path:
        return self.home / "delegate.db"

    @property
    def log(self) -> str:
        return (self.home / "relay.log").read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT * 2)


def start_relay(
    home: Path, *, prefix: Sequence[str] = (), listening: socket.socket | None = None, **environ: str
) -> RelayProcess:
    listening = listening or listener()
    with closing(listening), (home / "relay.log").open("ab") as log:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "delegate.relay", "--socket-fd", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[listening.fileno()],
            env={**os.environ, **NO_LINEAR, **TIMINGS, "DELEGATE_HOME": str(home), "DELEGATE_TOKEN": TOKEN, **environ},
        )
        relay = RelayProcess(process=process, port=listening.getsockname()[1], home=home)
    assert process.stdout is not None
    greeting = process.stdout.readline()
    if json.loads(greeting or "{}") != {"ready": True}:
        end(relay)
        raise AssertionError(f"the relay did not start: {greeting!r} {relay.log}")
    return relay


def listener() -> socket.socket:
    listening = socket.socket()
    listening.bind((ADDRESS, 0))
    listening.listen(1024)
    return listening


@contextmanager
def running_relay(home: Path, **environ: Any) -> Iterator[RelayProcess]:
    relay = start_relay(home, **environ)
    try:
        yield relay
    finally:
        end(relay)


def end(relay: RelayProcess) -> None:
    relay.process.kill()
    relay.process.wait()
    for pipe in (relay.process.stdin, relay.process.stdout):
        if pipe is not None:
            pipe.close()


def client(url: str, token: str = TOKEN) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {token}"}, trust_env=False, verify=False, timeout=WAIT * 2
    )


def task(**fields: Any) -> dict[str, Any]:
    return {"prompt": "echo hi", "agent": "shell", "workingDirectory": "/tmp", "machine": "nowhere", **fields}


@dataclass(slots=True, kw_only=True)
class Runner:
    """A registered runner, alone on its machine, so that no other runner gets its tasks."""

    id: str
    machine: str
    token: str
    http: httpx2.AsyncClient
    owner: httpx2.AsyncClient
    claims: Iterator[int] = field(default_factory=itertools.count)

    async def submit(self, **fields: Any) -> dict[str, Any]:
        response = await self.owner.post("/api/tasks", json=task(machine=self.machine, **fields))
        assert response.status_code == 201, response.text
        return dict(response.json())

    async def listed(self) -> dict[str, Any]:
        """The runner of its machine in the list of all."""
        cursor = ""
        while True:
            page = (await self.owner.get(f"/api/runners?limit=100{cursor}")).json()
            found = [runner for runner in page["runners"] if runner["machine"] == self.machine]
            if found:
                return dict(found[0])
            assert page["next"], "the runner is not listed"
            cursor = f"&cursor={page['next']}"

    def new_claim(self) -> str:
        return f"claim-{self.id}-{next(self.claims)}"

    async def ask(self, claim_id: str | None = None, *, wait: float = 0, **fields: Any) -> dict[str, Any] | None:
        body = {"claimId": claim_id or self.new_claim(), "agents": ["shell", "claude"], "wait": wait, **fields}
        response = await self.http.post("/api/runners/claim", json=body)
        assert response.status_code == 200, response.text
        assignment: dict[str, Any] | None = response.json()["assignment"]
        return assignment

    async def take_all(self) -> None:
        while await self.ask():
            pass

    async def take(self, **fields: Any) -> Attempt:
        """Submit a task and claim it."""
        submitted = await self.submit(**fields)
        assignment = await self.ask()
        assert assignment is not None
        assert assignment["taskId"] == submitted["taskId"]
        return Attempt(runner=self, id=assignment["attemptId"], task_id=assignment["taskId"], fence=assignment["fence"])


@dataclass(slots=True, kw_only=True)
class Attempt:
    runner: Runner
    id: str
    task_id: str
    fence: int

    async def tell(self, verb: str, **body: Any) -> httpx2.Response:
        return await self.runner.http.post(
            f"/api/runners/attempts/{self.id}/{verb}", json={"fence": self.fence, **body}
        )

    async def record(self, *items: dict[str, Any]) -> dict[str, Any]:
        return control(await self.tell("record", items=items))

    async def renew(self, **body: Any) -> dict[str, Any]:
        return control(await self.tell("renew", **body))

    async def finish(self, next_seq: int = 0, **body: Any) -> dict[str, Any]:
        return control(
            await self.tell("finish", **{"nextSeq": next_seq, "outcome": "completed", "reason": "done", **body})
        )

    async def detail(self) -> dict[str, Any]:
        return dict((await self.runner.owner.get(f"/api/tasks/{self.task_id}")).json())


def control(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert set(answer) == {"nextSeq", "cancel", "messages", "asked", "hasChildren", "isPosted"}
    return answer


def chunk(seq: int, data: bytes, stream: str = "stdout", at: str = NOW) -> dict[str, Any]:
    return {"seq": seq, "at": at, "kind": "output", "stream": stream, "output": base64.b64encode(data).decode()}


def fact(seq: int, kind: str = "message", at: str = NOW, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "at": at, "kind": kind, "data": data}


@asynccontextmanager
async def runner_of(owner: httpx2.AsyncClient, machine: str | None = None) -> AsyncIterator[Runner]:
    machine = machine or f"machine-{next(numbers)}"
    body = {
        "slot": f"{next(numbers)}",
        "name": "r",
        "machine": machine,
        "pid": 1,
        "version": "0",
        "agents": ["shell", "claude"],
    }
    response = await owner.post("/api/runners/register", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    async with client(str(owner.base_url), answer["token"]) as http:
        yield Runner(id=answer["slotId"], machine=machine, token=answer["token"], http=http, owner=owner)


def problem_of(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The refusal, which must be one of ours: a stable code, a sentence, a name for the request, nothing internal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == code, problem
    assert problem["status"] == status
    assert problem["detail"]
    assert len(problem["request_id"]) == 12
    assert "Traceback" not in response.text
    assert len(response.text) < 1_000
    return problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of an SSE stream."""

    id: str
    event: str
    data: dict[str, Any]


async def messages(response: httpx2.Response) -> AsyncIterator[Message]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield Message(id=fields["id"], event=fields["event"], data=json.loads(fields["data"]))
            fields = {}


async def followed(response: httpx2.Response, count: int) -> list[Message]:
    """The next so many messages of a stream; fewer when it ends before."""
    found: list[Message] = []
    if count == 0:
        return found
    with anyio.fail_after(WAIT):
        async for message in messages(response):
            found.append(message)
            if len(found) == count:
                break
    return found


def request_bytes(relay: RelayProcess, method: str, path: str, *lines: str, body: bytes = b"", host: str = "") -> bytes:
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host or f'{ADDRESS}:{relay.port}'}",
        f"Authorization: Bearer {TOKEN}",
        *lines,
        "",
        "",
    ]
    return "\r\n".join(head).encode("latin-1") + body


def raw_exchange(relay: RelayProcess, data: bytes) -> bytes:
    """Send these bytes and read until the relay closes or has answered and goes silent."""
    with socket.create_connection((ADDRESS, relay.port), timeout=WAIT) as connection:
        connection.sendall(data)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    """One HTTP answer, whole, or what came before the connection was closed."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(65536)
        if not piece:
            return answer
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length and (piece := connection.recv(65536)):
        body += piece
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def relay_in_process(home: Path, **settings: Any) -> AsyncIterator[Relay]:
    prepare(Home(home), url="", now=datetime.now(UTC))
    async with open_database(path=Home(home).database, url="") as database:
        chosen = Settings(home=home, **settings)
        yield Relay(settings=chosen, database=database, token_hash=hash_token(TOKEN), started_at=datetime.now(UTC))
