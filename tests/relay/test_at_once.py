"""Many at the same time, on both databases."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest
from tests.relay.peers import RelayProcess, client, fact, numbers, runner_of, task

pytestmark = pytest.mark.anyio

CLIENTS = 12


async def all_at_once(calls: list[Any]) -> list[httpx2.Response]:
    answers: list[httpx2.Response] = []

    async def make(call: Any) -> None:
        answers.append(await call())

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(make, call)
    return answers


async def test_the_same_request_key_at_the_same_time_makes_one_task(either_relay: RelayProcess) -> None:
    async with client(either_relay.url) as owner:
        for _ in range(5):
            body = task(requestKey=f"together-{next(numbers)}")

            answers = await all_at_once([lambda body=body: owner.post("/api/tasks", json=body)] * CLIENTS)

            assert sorted(answer.status_code for answer in answers) == [200] * (CLIENTS - 1) + [201]
            assert len({answer.json()["taskId"] for answer in answers}) == 1


async def test_the_same_message_at_the_same_time_is_one_message(either_relay: RelayProcess) -> None:
    async with client(either_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take(agent="claude")
        address, body = f"/api/tasks/{attempt.task_id}/messages", {"text": "hi", "requestKey": f"m-{next(numbers)}"}

        answers = await all_at_once([lambda: owner.post(address, json=body)] * CLIENTS)

        assert {answer.status_code for answer in answers} == {202}
        assert len((await attempt.renew())["messages"]) == 1


async def test_the_same_claim_at_the_same_time_is_one_attempt(either_relay: RelayProcess) -> None:
    async with client(either_relay.url) as owner, runner_of(owner) as runner:
        for _ in range(3):
            await runner.submit()
        body = {"claimId": runner.new_claim(), "agents": ["shell"], "wait": 0}

        answers = await all_at_once([lambda: runner.http.post("/api/runners/claim", json=body)] * CLIENTS)

        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["assignment"]["attemptId"] for answer in answers}) == 1


async def test_registering_the_same_runner_at_the_same_time_leaves_one(either_relay: RelayProcess) -> None:
    machine = f"together-{next(numbers)}"
    body = {"slot": "1", "name": "r", "machine": machine, "pid": 1, "version": "0", "agents": []}
    async with client(either_relay.url) as owner:
        answers = await all_at_once([lambda: owner.post("/api/runners/register", json=body)] * CLIENTS)

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["slotId"] for answer in answers}) == 1


async def test_reports_of_one_attempt_that_cross_each_other_are_stored_once(either_relay: RelayProcess) -> None:
    async with client(either_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take()

        answers = await all_at_once(
            [lambda: attempt.tell("record", items=[fact(0), fact(1)]), lambda: attempt.tell("renew")] * CLIENTS
        )

        assert {answer.status_code for answer in answers} == {200}
        assert (await attempt.renew())["nextSeq"] == 2


async def test_two_ends_at_the_same_time_are_one_end(either_relay: RelayProcess) -> None:
    async with client(either_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take()
        good = {"nextSeq": 0, "outcome": "completed", "reason": "done"}
        bad = {"nextSeq": 0, "outcome": "failed", "reason": "crashed"}

        answers = await all_at_once(
            [lambda: attempt.tell("finish", **good), lambda: attempt.tell("finish", **bad)] * CLIENTS
        )

        statuses = [answer.status_code for answer in answers]
        assert (statuses.count(200), statuses.count(409)) == (CLIENTS, CLIENTS)
        assert [event["kind"] for event in (await attempt.detail())["events"]].count("finished") == 1
