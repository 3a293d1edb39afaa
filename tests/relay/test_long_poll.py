"""Claims and renewals that wait: woken at once, one for each task, and harmless when their answer is lost."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from tests.relay.peers import ADDRESS, WAIT, RelayProcess, Runner, problem_of, request_bytes, runner_of, running_relay

pytestmark = pytest.mark.anyio

LONG = 30.0  # seconds that a claim would wait by itself
AT_ONCE = 3.0  # less than the five seconds after which a parked claim looks again unasked
LOST_ANSWERS = 200


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """With the timings of everyday life: a short heartbeat would hide a wake-up that never came."""
    timings = {"DELEGATE_HEARTBEAT": "30", "DELEGATE_LEASE": "120", "DELEGATE_RECLAIM_AFTER": "600"}
    with running_relay(tmp_path_factory.mktemp("relay"), **timings) as started:
        yield started


class Parked:
    """A claim or renewal under way in the background, and its answer."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.done = anyio.Event()

    async def result(self) -> Any:
        with anyio.fail_after(AT_ONCE):
            await self.done.wait()
        return self.answer


async def park(group: TaskGroup, function: Any, **arguments: Any) -> Parked:
    parked = Parked()

    async def wait(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        parked.answer = await function(**arguments)
        parked.done.set()

    await group.start(wait)
    return parked


async def until_parked(runner: Runner) -> None:
    """Every request sent before this one is being waited on: the relay takes them in order of arrival."""
    for _ in range(5):
        await runner.http.get("/api/runners/attempts")


async def test_a_parked_claim_gets_a_task_the_moment_it_is_submitted(runner: Runner) -> None:
    async with anyio.create_task_group() as group:
        parked = await park(group, runner.ask, wait=LONG)
        await until_parked(runner)

        submitted = await runner.submit()

        assert (await parked.result())["taskId"] == submitted["taskId"]


async def test_a_claim_without_work_is_answered_when_its_time_is_over(runner: Runner) -> None:
    with anyio.fail_after(WAIT):
        assert await runner.ask(wait=0.2) is None


async def test_each_of_many_tasks_wakes_one_runner(runner: Runner) -> None:
    async with anyio.create_task_group() as group, runner_of(runner.owner, runner.machine) as second:
        runners = [runner, second] * 4
        parked = [await park(group, one.ask, wait=LONG) for one in runners]
        await until_parked(runner)

        submitted = {(await runner.submit())["taskId"] for _ in runners}

        assert {(await one.result())["taskId"] for one in parked} == submitted


async def test_a_task_handed_back_or_retried_wakes_a_parked_claim(runner: Runner) -> None:
    attempt = await runner.take()
    async with anyio.create_task_group() as group:
        parked = await park(group, runner.ask, wait=LONG)
        await until_parked(runner)
        await attempt.tell("release", reason="handed_back")
        again = await parked.result()

        parked = await park(group, runner.ask, wait=LONG)
        await until_parked(runner)
        attempt.id, attempt.fence = again["attemptId"], again["fence"]
        await attempt.finish()
        await runner.owner.post(f"/api/tasks/{attempt.task_id}/retry", json={})

        assert (await parked.result())["taskId"] != attempt.task_id


async def test_the_end_of_a_dependency_wakes_a_parked_claim_for_each_task_behind_it(runner: Runner) -> None:
    attempt = await runner.take()
    waiting = {(await runner.submit(dependsOn=[attempt.task_id]))["taskId"] for _ in range(2)}
    async with anyio.create_task_group() as group:
        parked = [await park(group, runner.ask, wait=LONG) for _ in waiting]
        await until_parked(runner)

        await attempt.finish()

        assert {(await one.result())["taskId"] for one in parked} == waiting


def claim_request(relay: RelayProcess, runner: Runner, claim_id: str, wait: float) -> bytes:
    body = json.dumps({"claimId": claim_id, "agents": ["shell"], "wait": wait}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    request = request_bytes(relay, "POST", "/api/runners/claim", *lines, body=body)
    return request.replace(request.split(b"Bearer ")[1].split(b"\r\n")[0], runner.token.encode())


def send(relay: RelayProcess, data: bytes) -> socket.socket:
    connection = socket.create_connection((ADDRESS, relay.port), timeout=WAIT)
    connection.sendall(data)
    return connection


async def test_a_parked_claim_whose_runner_went_away_passes_its_wake_up_on(relay: RelayProcess, runner: Runner) -> None:
    async with anyio.create_task_group() as group, runner_of(runner.owner, runner.machine) as rival:
        for _ in range(3):
            send(relay, claim_request(relay, runner, runner.new_claim(), LONG)).close()
        await until_parked(runner)
        parked = await park(group, rival.ask, wait=LONG)
        await until_parked(rival)

        submitted = await runner.submit()

        assert (await parked.result())["taskId"] == submitted["taskId"]


async def test_a_wake_up_for_one_agent_is_not_used_up_by_a_task_of_another(runner: Runner) -> None:
    """Two tasks wake two runners; if the first takes what the second was woken for, a third gets the rest."""
    async with anyio.create_task_group() as group, runner_of(runner.owner, runner.machine) as second:
        both = await park(group, runner.ask, wait=LONG, agents=["shell", "claude"])
        await until_parked(runner)
        only_claude = await park(group, second.ask, wait=LONG, agents=["claude"])
        await until_parked(second)
        only_shell = await park(group, second.ask, wait=LONG, agents=["shell"])
        await until_parked(second)

        async with anyio.create_task_group() as submits:
            submits.start_soon(lambda: runner.submit(agent="shell", priority="P2"))
            submits.start_soon(lambda: runner.submit(agent="claude", priority="P0"))
        first = await both.result()
        other = only_claude if first["agent"] == "shell" else only_shell

        assert (await other.result())["taskId"] != first["taskId"]
        group.cancel_scope.cancel()


@pytest.mark.promise("P3")
async def test_a_claim_whose_answer_is_lost_finds_the_same_attempt_again(relay: RelayProcess, runner: Runner) -> None:
    """`claim_answer_lost`: the connection is cut before anything of the answer is read."""
    for number in range(LOST_ANSWERS):
        submitted = await runner.submit()
        claim_id = runner.new_claim()
        with closing(send(relay, claim_request(relay, runner, claim_id, wait=0))) as connection:
            if number % 2:
                connection.recv(1)  # the relay has answered; the rest never arrives

        again = await runner.ask(claim_id)
        once_more = await runner.ask(claim_id)

        assert again is not None
        assert again == once_more
        assert (again["taskId"], again["fence"]) == (submitted["taskId"], 1)
        assert await runner.ask() is None


async def test_cancel_reaches_a_waiting_renewal_at_once(runner: Runner) -> None:
    attempt = await runner.take()
    async with anyio.create_task_group() as group:
        parked = await park(group, attempt.renew, wait=LONG)
        await until_parked(runner)

        await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={"reason": "enough"})

        assert (await parked.result())["cancel"] == "enough"


async def test_a_cancel_before_the_renewal_is_reported_at_once_too(runner: Runner) -> None:
    attempt = await runner.take()
    await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})

    with anyio.fail_after(WAIT):
        assert (await attempt.renew(wait=LONG))["cancel"] == "cancelled by the user"


async def test_a_message_reaches_a_waiting_renewal_and_is_repeated_until_it_was_seen(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    async with anyio.create_task_group() as group:
        parked = await park(group, attempt.renew, wait=LONG)
        await until_parked(runner)
        for text in ("first", "second"):
            await runner.owner.post(f"/api/tasks/{attempt.task_id}/messages", json={"text": text})
        messages = (await parked.result())["messages"]

    again = (await attempt.renew())["messages"]
    rest = (await attempt.renew(messagesSeen=again[0]["id"]))["messages"]
    nothing = (await attempt.renew(messagesSeen=again[1]["id"]))["messages"]
    still_nothing = (await attempt.renew())["messages"]

    assert messages[0]["text"] == "first"
    assert [message["text"] for message in again] == ["first", "second"]
    assert [message["text"] for message in rest] == ["second"]
    assert nothing == still_nothing == []


async def test_a_seen_message_does_not_end_the_next_wait(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    await runner.owner.post(
        f"/api/tasks/{attempt.task_id}/messages", json={"text": "hi", "requestKey": "m-" + attempt.id}
    )
    await runner.owner.post(
        f"/api/tasks/{attempt.task_id}/messages", json={"text": "hi", "requestKey": "m-" + attempt.id}
    )
    (only,) = (await attempt.renew())["messages"]

    async with anyio.create_task_group() as group:
        parked = await park(group, attempt.renew, messagesSeen=only["id"], wait=LONG)
        await until_parked(runner)
        await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={"reason": "enough"})
        answer = await parked.result()

    assert (answer["cancel"], answer["messages"]) == ("enough", [])


async def test_a_waiting_renewal_ends_when_the_attempt_does(runner: Runner) -> None:
    attempt = await runner.take()
    async with anyio.create_task_group() as group:
        parked = await park(group, attempt.tell, verb="renew", wait=LONG)
        await until_parked(runner)

        await attempt.finish()

        problem = problem_of(await parked.result(), 409, "stale_fence")

    assert problem["detail"] == f"attempt {attempt.id} is not held with fence 1"


async def test_a_renewal_without_news_is_answered_when_its_time_is_over(runner: Runner) -> None:
    attempt = await runner.take()

    with anyio.fail_after(WAIT):
        answer = await attempt.renew(wait=0.2)

    assert (answer["cancel"], answer["messages"]) == (None, [])
