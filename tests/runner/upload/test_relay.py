from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import h11
import pytest
from anyio.abc import SocketStream

from delegate.errors import Refused, RelayUnreachable, SequenceGap, StaleFence, Unauthenticated
from delegate.runner.assignment import Assignment
from delegate.runner.upload.relay import BACKOFF_MAX, RETRY_AFTER_MAX, RelayLink, retry_backoff
from delegate.runner.upload.spool import Batch
from delegate.states import Reason
from delegate.wire.runners import ClaimRequest, FinishRequest, RegisterRequest, RenewRequest

pytestmark = pytest.mark.anyio

ASSIGNMENT = Assignment(
    attempt_id="att-1",
    task_id="task-1",
    lineage="task-1",
    fence=3,
    number=1,
    agent="shell",
    prompt="exit 0",
    timeout=timedelta(milliseconds=1000),
    max_output=1024,
)
CONTROL = {"nextSeq": 1}
RENEW = RenewRequest(fence=3)
FINISH = FinishRequest(fence=3, next_seq=0, outcome="completed", reason=Reason.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    path: str
    token: str
    body: Any


@dataclass(slots=True, kw_only=True)
class Standin:
    """Answers what the test tells it to, one answer a request; registering always works."""

    port: int
    answers: list[tuple[int, Any]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    registered: int = 0

    def respond(self, received: Received) -> tuple[int, Any]:
        self.received.append(received)
        if received.path == "/api/runners/register":
            self.registered += 1
            timings = {"heartbeat": 0.01, "lease": 0.05, "reclaimAfter": 0.1}
            return 200, {
                "slotId": "runner-1.1",
                "runnerId": "runner-1",
                "token": f"token-{self.registered}",
                "timings": timings,
            }
        return self.answers.pop(0)

    def paths(self) -> list[str]:
        return [received.path.rsplit("/", 1)[1] for received in self.received]


def problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": code, "title": code, "detail": "no", "status": status, "requestId": "1", "request_id": "1"}


@asynccontextmanager
async def serving(standin: Standin) -> AsyncIterator[None]:
    async def converse(stream: SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while True:
                head, body = await receive(connection, stream)
                if head is None:
                    return
                headers = dict(head.headers)
                received = Received(
                    path=head.target.decode(),
                    token=headers[b"authorization"].decode().removeprefix("Bearer "),
                    body=json.loads(body or b"null"),
                )
                status, answer = standin.respond(received)
                if status == 0:
                    return  # the answer is lost on the way
                await send(connection, stream, status, answer)
                connection.start_next_cycle()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=standin.port)
    async with listener, anyio.create_task_group() as group:
        standin.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        group.start_soon(listener.serve, converse)
        yield
        group.cancel_scope.cancel()


async def receive(connection: h11.Connection, stream: SocketStream) -> tuple[h11.Request | None, bytes]:
    head, body = None, b""
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return None, b""
            case h11.Request() as request:
                head = request
            case h11.Data(data=data):
                body += bytes(data)
            case h11.EndOfMessage():
                return head, body
            case _:
                return None, b""


async def send(connection: h11.Connection, stream: SocketStream, status: int, answer: Any) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    head = h11.Response(status_code=status, headers=[("content-length", str(len(body)))])
    for event in (head, h11.Data(data=body), h11.EndOfMessage()):
        await stream.send(connection.send(event) or b"")


def link_to(port: int) -> RelayLink:
    def who() -> RegisterRequest:
        return RegisterRequest(slot="1", name="test", machine="here", pid=1, version="0", agents=["shell"])

    return RelayLink(f"http://127.0.0.1:{port}", who, lambda: "admin")


@pytest.fixture
async def standin() -> AsyncIterator[Standin]:
    made = Standin(port=0)
    async with serving(made):
        yield made


@pytest.fixture
async def link(standin: Standin) -> AsyncIterator[RelayLink]:
    made = link_to(standin.port)
    await made.register()
    yield made
    await made.aclose()


async def test_a_call_carries_the_token_of_the_runner(standin: Standin, link: RelayLink) -> None:
    standin.answers = [(200, CONTROL)]

    control = await link.renew(ASSIGNMENT, RENEW)

    assert control.next_seq == 1
    assert standin.received[0].token == "admin"
    assert standin.received[-1].token == "token-1"
    assert standin.received[-1].body["fence"] == 3


@pytest.mark.promise("P8")
@pytest.mark.parametrize(
    "trouble",
    [(503, {}), (500, b"<html>"), problem(503, "store_busy"), problem(507, "disk_full"), (429, {}), (0, None)],
    ids=["503", "500", "busy", "full", "429", "answer lost"],
)
async def test_one_refusal_at_the_end_does_not_lose_the_result(
    standin: Standin, link: RelayLink, trouble: tuple[int, Any]
) -> None:
    standin.answers = [trouble, trouble, (200, CONTROL)]

    with anyio.fail_after(5):
        await link.end(ASSIGNMENT, FINISH)

    sent = [received.body for received in standin.received if received.path.endswith("/finish")]
    assert len(sent) == 3
    assert sent[0] == sent[2]


@pytest.mark.promise("P3")
async def test_a_claim_whose_answer_was_lost_is_the_same_claim_again(standin: Standin, link: RelayLink) -> None:
    standin.answers = [(0, None), (200, {"assignment": None})]

    await link.claim(ClaimRequest(claim_id="claim-0123456789", agents=["shell"], wait=0))

    assert [received.body["claimId"] for received in standin.received[1:]] == ["claim-0123456789"] * 2


async def test_what_is_not_a_relay_is_asked_again(standin: Standin, link: RelayLink) -> None:
    standin.answers = [(200, b"<html>hello"), (404, b"not here"), (200, CONTROL)]

    control = await link.renew(ASSIGNMENT, RENEW)

    assert control.next_seq == 1


async def test_what_a_newer_relay_adds_to_its_responses_is_ignored(standin: Standin, link: RelayLink) -> None:
    assignment = {
        "attemptId": "att-1",
        "taskId": "task-1",
        "fence": 1,
        "number": 1,
        "agent": "shell",
        "prompt": "true",
        "timeoutMs": 1000,
        "maxOutput": 1024,
        "lineage": "task-1",
        "usageBefore": {"turns": 2, "addedLater": 1},
        "addedLater": {"anything": True},
    }
    standin.answers = [(200, {"assignment": assignment, "addedLater": 1}), (200, {**CONTROL, "addedLater": []})]

    claimed = await link.claim(ClaimRequest(claim_id="claim-12345", agents=["shell"], wait=0))
    control = await link.renew(ASSIGNMENT, RENEW)

    assert claimed is not None
    assert (claimed.task_id, claimed.usage_before.turns) == ("task-1", 2)
    assert control.next_seq == CONTROL["nextSeq"]


@pytest.mark.promise("P8")
async def test_a_relay_that_is_away_is_waited_for() -> None:
    standin = Standin(port=0, answers=[(200, CONTROL)])
    async with serving(standin):
        link = link_to(standin.port)
        await link.register()
    received = anyio.Event()

    async def finish() -> None:
        await link.end(ASSIGNMENT, FINISH)
        received.set()

    async with anyio.create_task_group() as group:
        group.start_soon(finish)
        await anyio.wait_all_tasks_blocked()
        async with serving(standin):
            with anyio.fail_after(5):
                await received.wait()
    await link.aclose()

    assert standin.paths() == ["register", "finish"]


async def test_a_runner_the_relay_does_not_know_registers_again(standin: Standin, link: RelayLink) -> None:
    standin.answers = [problem(401, "unauthenticated"), problem(404, "no_such_runner"), (200, CONTROL)]

    await link.renew(ASSIGNMENT, RENEW)

    assert standin.paths() == ["register", "renew", "register", "renew", "register", "renew"]
    assert standin.received[-1].token == "token-3"


async def test_two_calls_refused_at_once_register_once(standin: Standin, link: RelayLink) -> None:
    standin.answers = [problem(401, "unauthenticated"), problem(401, "unauthenticated"), (200, CONTROL), (200, CONTROL)]

    async with anyio.create_task_group() as group:
        group.start_soon(link.renew, ASSIGNMENT, RENEW)
        group.start_soon(link.end, ASSIGNMENT, FINISH)

    assert standin.registered == 2


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    "refusal",
    [problem(409, "stale_fence"), problem(404, "no_such_attempt"), problem(403, "forbidden")],
    ids=["stale", "unknown", "another's"],
)
@pytest.mark.parametrize("verb", ["renew", "record", "finish"])
async def test_an_attempt_that_is_not_ours_is_given_up_at_once(
    standin: Standin, link: RelayLink, refusal: tuple[int, Any], verb: str
) -> None:
    standin.answers = [refusal]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "renew": lambda: link.renew(ASSIGNMENT, RENEW),
        "record": lambda: link.record(ASSIGNMENT, Batch(lines=[b"{}"], next=1)),
        "finish": lambda: link.end(ASSIGNMENT, FINISH),
    }

    with pytest.raises(StaleFence):
        await calls[verb]()


@pytest.mark.parametrize(
    ("code", "error"), [("gap_expected_seq", SequenceGap), ("invalid_field", Refused), ("event_conflict", Refused)]
)
async def test_what_would_be_refused_again_is_not_tried_again(
    standin: Standin, link: RelayLink, code: str, error: type[Exception]
) -> None:
    standin.answers = [problem(409, code)]

    with pytest.raises(error):
        await link.record(ASSIGNMENT, Batch(lines=[b"{}"], next=1))


async def test_items_are_sent_as_they_were_spooled(standin: Standin, link: RelayLink) -> None:
    standin.answers = [(200, CONTROL)]

    await link.record(ASSIGNMENT, Batch(lines=[b'{"seq":0}', b'{"seq":1}'], next=2))

    assert standin.received[-1].body == {"fence": 3, "items": [{"seq": 0}, {"seq": 1}]}


def test_pauses_grow_to_their_limit_and_no_further() -> None:
    pause = retry_backoff(BACKOFF_MAX)
    away = RelayUnreachable(url="", why="", advice="")

    seconds = [float(pause(away)) for _ in range(20)]

    assert seconds[0] < 0.2
    assert all(BACKOFF_MAX <= late <= BACKOFF_MAX * 1.25 for late in seconds[6:])
    assert len(set(seconds[6:])) > 1


def test_the_relay_may_ask_for_a_longer_pause() -> None:
    pause = retry_backoff(BACKOFF_MAX)

    assert float(pause(RelayUnreachable(url="", why="", advice="", retry_after=30.0))) >= 30
    assert float(pause(RelayUnreachable(url="", why="", advice="", retry_after=1e9))) <= RETRY_AFTER_MAX * 1.25


def test_only_what_may_pass_is_tried_again() -> None:
    pause = retry_backoff(BACKOFF_MAX)

    assert pause(Unauthenticated()) is not False
    assert pause(StaleFence(attempt_id="att-1", fence=1)) is False
    assert pause(ZeroDivisionError()) is False
