"""Following: one task from its beginning to its end, or everything that happens."""

from __future__ import annotations

import base64
import random
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio import lowlevel
from tests.fakes.world import wait_until
from tests.relay.peers import (
    ADDRESS,
    TOKEN,
    WAIT,
    Attempt,
    Message,
    RelayProcess,
    Runner,
    chunk,
    client,
    fact,
    followed,
    messages,
    relay_in_process,
    request_bytes,
    runner_of,
    task,
)

from delegate.model import AttemptId, Event, EventKind, OutputChunk, Stream, TaskId
from delegate.relay import feeds
from delegate.relay.app import make_app
from delegate.relay.feeds import (
    EVENTS_PER_SLICE,
    EVENTS_PER_TURN,
    FEEDS_MAX,
    FEEDS_PER_CALLER,
    all_tasks_feed,
    merge_by_time,
)
from delegate.relay.notify import FEED_TURNS
from delegate.relay.requests import Relay
from delegate.relay.views import event_view
from delegate.report import follow
from delegate.report.follow import TaskUpdates
from delegate.wire.tasks import EventView

pytestmark = pytest.mark.anyio

EVERYTHING = 10_000


@asynccontextmanager
async def following(
    http: httpx2.AsyncClient, path: str, *, after: str | None = None, **query: str
) -> AsyncIterator[httpx2.Response]:
    headers = {} if after is None else {"last-event-id": after}
    async with http.stream("GET", path, headers=headers, params=query) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response


async def all_of(http: httpx2.AsyncClient, path: str, *, after: str | None = None) -> list[Message]:
    """Everything until the stream closes by itself."""
    async with following(http, path, after=after) as response:
        return await followed(response, EVERYTHING)


def stream_of(attempt: Attempt) -> str:
    return f"/api/tasks/{attempt.task_id}/stream"


def output_in(found: list[Message]) -> bytes:
    return b"".join(base64.b64decode(message.data["output"]) for message in found if message.event == "output")


def kinds(found: list[Message]) -> list[str]:
    return [message.data["kind"] if message.event == "event" else message.event for message in found]


async def test_a_stream_tells_the_whole_story_and_closes_at_the_end(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(fact(0, "started", at=moment(0), pid=1), chunk(1, b"one\n", at=moment(1)))
    await attempt.record(fact(2, at=moment(2), text="hm"), chunk(3, b"two", "stderr", at=moment(3)))
    await attempt.finish(4, exitCode=0)

    found = await all_of(runner.owner, stream_of(attempt))

    assert kinds(found) == ["submitted", "claimed", "started", "output", "message", "output", "finished", "end"]
    assert set(found[3].data) == {"attemptId", "seq", "stream", "at", "offset", "output"}
    assert [message.data["offset"] for message in found if message.event == "output"] == [0, 4]
    assert found[-1].data["taskId"] == attempt.task_id
    assert found[-1].data["status"] == "completed"


def moment(seconds: float) -> str:
    """Slightly after now, so that the relay's own events of the test come before."""
    return (datetime.now(UTC) + timedelta(milliseconds=1 + seconds)).isoformat()


async def test_news_arrive_while_the_task_runs(runner: Runner) -> None:
    attempt = await runner.take()
    async with following(runner.owner, stream_of(attempt)) as response:
        stream = messages(response)
        with anyio.fail_after(WAIT):
            assert kinds([await anext(stream), await anext(stream)]) == ["submitted", "claimed"]
            await attempt.record(chunk(0, b"live"))
            assert output_in([await anext(stream)]) == b"live"
            await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})
            assert kinds([await anext(stream)]) == ["cancel_requested"]
            await attempt.finish(1, outcome="cancelled", reason="cancelled")
            assert kinds([message async for message in stream]) == ["finished", "end"]


async def test_output_arrives_byte_by_byte_whatever_it_holds(runner: Runner) -> None:
    attempt = await runner.take()
    generator = random.Random(7)
    pieces = [generator.randbytes(generator.randint(1, 20_000)) for _ in range(200)]
    for start in range(0, 200, 50):
        await attempt.record(*[chunk(start + at, piece) for at, piece in enumerate(pieces[start : start + 50])])
    await attempt.finish(200)

    found = await all_of(runner.owner, stream_of(attempt))

    assert output_in(found) == b"".join(pieces)


async def test_a_stream_continues_after_any_message_without_gap_or_repetition(runner: Runner) -> None:
    attempt = await runner.take()
    at = datetime.now(UTC)
    for number in range(0, 20, 2):
        earlier = (at - timedelta(seconds=number)).isoformat()  # a clock that goes backwards must not matter
        await attempt.record(fact(number, at=earlier), chunk(number + 1, b"%d;" % number, at=earlier))
    await attempt.finish(20)
    whole = await all_of(runner.owner, stream_of(attempt))

    for place, message in enumerate(whole[:-1]):
        rest = await all_of(runner.owner, stream_of(attempt), after=message.id)

        assert key(whole[: place + 1]) | key(rest) == key(whole)
        assert len(rest) == len(whole) - place - 1


def key(found: list[Message]) -> set[str]:
    return {f"{message.event} {message.data.get('id')} {message.data.get('offset')}" for message in found}


async def test_a_stream_from_now_on_leaves_the_past_out(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(fact(0), chunk(1, b"past"))

    async with following(runner.owner, stream_of(attempt), **{"from": "now"}) as response:
        await attempt.record(chunk(2, b"present"))
        await attempt.finish(3)
        found = await followed(response, EVERYTHING)

    assert output_in(found) == b"present"
    assert kinds(found) == ["output", "finished", "end"]


async def test_following_a_task_that_has_ended_from_its_end_only_tells_the_end(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.finish()
    last = (await all_of(runner.owner, stream_of(attempt)))[-1]

    assert kinds(await all_of(runner.owner, stream_of(attempt), after=last.id)) == ["end"]


async def test_a_stream_tells_the_attempts_of_a_lost_runner_too(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    await attempt.record(chunk(0, b"first "))
    await attempt.tell("release", reason="lost_runner")
    assignment = await runner.ask()
    assert assignment is not None
    attempt.id, attempt.fence = assignment["attemptId"], assignment["fence"]
    await attempt.record(chunk(0, b"second"))
    await attempt.finish(1)

    found = await all_of(runner.owner, stream_of(attempt))

    assert output_in(found) == b"first second"
    assert [kind for kind in kinds(found) if kind in {"claimed", "lost"}] == ["claimed", "lost", "claimed"]


async def test_the_feed_of_all_tasks_resumes_without_gap_or_repetition(runner: Runner) -> None:
    async with following(runner.owner, "/api/events", **{"from": "now"}) as response:
        tasks = [(await runner.submit())["taskId"] for _ in range(30)]
        first = await mine(response, tasks, 10)
    await runner.take_all()
    async with following(runner.owner, "/api/events", after=first[-1].id) as response:
        second = await mine(response, tasks, 25)
    async with following(runner.owner, "/api/events", after=second[-1].id) as response:
        third = await mine(response, tasks, 25)

    found = [*first, *second, *third]
    ids = [int(message.id) for message in found]
    assert ids == sorted(set(ids))
    assert [message.data["taskId"] for message in found if message.data["kind"] == "submitted"] == tasks
    assert {message.data["taskId"] for message in found if message.data["kind"] == "claimed"} == set(tasks)


async def mine(response: httpx2.Response, tasks: list[str], count: int) -> list[Message]:
    """The next messages about these tasks; other tests use the same relay."""
    found: list[Message] = []
    with anyio.fail_after(WAIT):
        async for message in messages(response):
            if message.data["taskId"] in tasks:
                found.append(message)
            if len(found) == count:
                break
    return found


async def test_the_feed_of_all_tasks_can_be_read_from_the_beginning(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take()
        await attempt.finish()

        async with following(owner, "/api/events") as response:
            found = await followed(response, 3)

    assert [(message.id, message.data["kind"]) for message in found] == [
        ("1", "submitted"),
        ("2", "claimed"),
        ("3", "finished"),
    ]


async def test_a_stopping_relay_closes_its_followers_and_answers_who_waits(own_relay: RelayProcess) -> None:
    answers: dict[str, Any] = {}
    async with client(own_relay.url) as owner, runner_of(owner) as runner, anyio.create_task_group() as group:
        attempt = await runner.take()
        idle = await runner.submit()
        is_following = [anyio.Event(), anyio.Event()]

        async def follow_until_closed(path: str, begun: anyio.Event) -> None:
            async with following(owner, path) as response:
                async for message in messages(response):
                    answers[path] = message
                    begun.set()

        async def keep(name: str, call: Any) -> None:
            answers[name] = await call

        group.start_soon(follow_until_closed, f"/api/tasks/{idle['taskId']}/stream", is_following[0])
        group.start_soon(follow_until_closed, "/api/events", is_following[1])
        group.start_soon(keep, "claim", runner.ask(wait=60, agents=["claude"]))
        group.start_soon(keep, "renew", attempt.renew(wait=60))
        for begun in is_following:
            await begun.wait()
        await runner.http.get("/api/runners/attempts")

        with anyio.fail_after(WAIT):
            assert await anyio.to_thread.run_sync(own_relay.stop) == 0

    assert answers["claim"] is None
    assert answers["renew"]["cancel"] is None
    assert "Traceback" not in own_relay.log


@pytest.mark.slow
@pytest.mark.promise("P20")
async def test_a_client_that_does_not_read_is_dropped(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take(maxOutputBuffer=32 * 1024 * 1024)
        for number in range(64):
            await attempt.record(chunk(number, bytes(256 * 1024)))
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((ADDRESS, own_relay.port))
            lazy.sendall(request_bytes(own_relay, "GET", stream_of(attempt)))
            waiting: list[int] = []

            def is_dropped() -> bool:
                waiting.append(bytes_held_for(lazy))
                return "feed closed: its client does not read" in own_relay.log

            wait_until(is_dropped)

        async with following(owner, stream_of(attempt)) as response:
            assert await followed(response, 3)
    assert 0 < max(waiting) < 512 * 1024  # the system would hold megabytes
    assert "Traceback" not in own_relay.log
    assert "ASGI" not in own_relay.log


def bytes_held_for(peer: socket.socket) -> int:
    """What the system holds in the other end of the connection, not received yet."""
    end = f":{peer.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(int(row[4].partition(":")[0], 16) for row in rows if row[2].endswith(end))


async def test_the_number_of_open_feeds_is_limited_and_closing_one_makes_room(own_relay: RelayProcess) -> None:
    with ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection((ADDRESS, own_relay.port), timeout=WAIT))
            for _ in range(FEEDS_MAX)
        ]
        for connection in connections:
            connection.sendall(request_bytes(own_relay, "GET", "/api/events"))
        for connection in connections:
            assert connection.recv(1024).startswith(b"HTTP/1.1 200")

        async with client(own_relay.url) as owner:
            refused = await owner.get("/api/events")
            connections[0].close()
            with anyio.fail_after(WAIT):
                while await open_feed(owner) != 200:  # noqa: ASYNC110  no event of another process
                    await anyio.sleep(0.05)

    assert (refused.status_code, refused.json()["type"]) == (422, "refused")
    assert "event streams are open already" in refused.json()["detail"]


async def test_one_person_cannot_take_the_feeds_of_all(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        transport = httpx2.ASGITransport(make_app(relay))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            owner = {"authorization": f"Bearer {TOKEN}"}
            added = await http.post("/api/people", json={"name": "ana", "role": "viewer"}, headers=owner)
            relay.hub.open_feeds["ana"] = FEEDS_PER_CALLER
            mine = {"authorization": f"Bearer {added.json()['token']['token']}"}
            refused = await http.get("/api/events", headers=mine)

    assert (refused.status_code, refused.json()["type"]) == (422, "refused")


async def test_a_feed_works_in_small_pieces_between_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, seen = 0, [0]

    def count(event: Event) -> EventView:
        nonlocal encoded
        encoded += 1
        return event_view(event)

    async def look() -> None:
        while True:
            await lowlevel.checkpoint()
            seen.append(encoded)

    monkeypatch.setattr(feeds, "event_view", count)
    async with relay_in_process(tmp_path) as relay:
        transport = httpx2.ASGITransport(make_app(relay))
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as owner:
            for _ in range(2):
                response = await owner.post("/api/tasks/batch", json={"tasks": [task()] * EVENTS_PER_TURN})
                assert response.status_code == 201, response.text
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            first = await anext(all_tasks_feed(relay, 0))
            seen.append(encoded)
            group.cancel_scope.cancel()

    assert first.count(b"event: event") == encoded == EVENTS_PER_TURN
    assert max(later - earlier for earlier, later in pairwise(seen)) <= EVENTS_PER_SLICE


async def test_few_feeds_read_the_database_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = 0

    async def read(_: object) -> None:
        nonlocal reading
        reading += 1
        await anyio.sleep_forever()

    async def follow_all(relay: Relay) -> None:
        await anext(all_tasks_feed(relay, 0))

    async with relay_in_process(tmp_path) as relay:
        monkeypatch.setattr(relay.database, "read", read)
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(follow_all, relay)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    assert reading == FEED_TURNS


async def open_feed(owner: httpx2.AsyncClient) -> int:
    async with owner.stream("GET", "/api/events") as response:
        return response.status_code


def test_entries_are_merged_by_time_but_each_kind_keeps_its_own_order() -> None:
    events = [event(1, second=5), event(2, second=1), event(3, second=9)]
    chunks = [output(1, second=2), output(2, second=8)]

    merged = [(type(entry).__name__, entry.id) for entry in merge_by_time(news(events, chunks))]

    assert merged == [("OutputChunk", 1), ("Event", 1), ("Event", 2), ("OutputChunk", 2), ("Event", 3)]


def test_events_do_not_run_ahead_of_output_that_was_not_read_yet() -> None:
    chunks = [output(number, second=number) for number in range(follow.CHUNKS_PER_READ)]

    merged = list(merge_by_time(news([event(1, second=3), event(2, second=1_000)], chunks)))

    assert [entry.id for entry in merged if isinstance(entry, Event)] == [1]
    assert merged[-1] is chunks[-1]


def news(events: list[Event], chunks: list[OutputChunk]) -> TaskUpdates:
    return TaskUpdates(events=events, chunks=chunks, task=None)  # type: ignore[arg-type]  # the order needs no task


def event(number: int, *, second: int) -> Event:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    return Event(id=number, task_id=TaskId("t"), attempt_id=None, kind=EventKind.MESSAGE, at=at, data={})


def output(number: int, *, second: int) -> OutputChunk:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    return OutputChunk(
        id=number, attempt_id=AttemptId("a"), seq=number, stream=Stream.STDOUT, at=at, offset=number, data=b"x"
    )
