"""Questions over HTTP: asked by an agent through /mcp with a token of its own, answered by the owner."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.relay.peers import TOKEN, Attempt, Runner, client, problem_of

pytestmark = pytest.mark.anyio


def new_token() -> str:
    return "dat_" + secrets.token_hex(32)


async def take(runner: Runner, token: str) -> Attempt:
    """A task for claude, in the hands of a runner that has a token for its agent."""
    submitted = await runner.submit(agent="claude")
    assignment = await runner.ask(askHash=hashlib.sha256(token.encode()).hexdigest())
    assert assignment is not None
    assert assignment["taskId"] == submitted["taskId"]
    return Attempt(runner=runner, id=assignment["attemptId"], task_id=assignment["taskId"], fence=assignment["fence"])


async def ask(runner: Runner, token: str, question: str, *options: str) -> None:
    url = str(runner.owner.base_url).rstrip("/")
    async with client(url, token) as http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as agent:
        asked = await agent.call_tool("ask_user", {"question": question, "options": list(options)})
    assert not asked.is_error, asked.content


async def answer(attempt: Attempt, text: str = "Blue.", **more: Any) -> httpx2.Response:
    return await attempt.runner.owner.post(f"/api/tasks/{attempt.task_id}/answer", json={"text": text, **more})


async def test_a_question_is_asked_waited_for_answered_and_given_to_the_next_attempt(runner: Runner) -> None:
    token = new_token()
    attempt = await take(runner, token)

    await ask(runner, token, "Red or blue?", "red", "blue")
    assert (await attempt.renew())["asked"] is True
    await attempt.finish(outcome="waiting", reason="question", sessionId="session-1")
    waiting = (await attempt.detail())["task"]
    answered = await answer(attempt, "Blue.")
    assignment = await runner.ask()

    assert waiting["status"] == "waiting"
    assert [(one["text"], one["options"], one["answer"]) for one in waiting["questions"]] == [
        ("Red or blue?", ["red", "blue"], None)
    ]
    assert (answered.status_code, answered.json()["status"]) == (200, "queued")
    assert assignment is not None
    assert [one["answer"] for one in assignment["questions"]] == ["Blue."]
    assert assignment["resumeSession"] == "session-1"
    assert [task["taskId"] for task in (await listed(runner, "waiting"))] == []


@pytest.mark.promise("P22")
async def test_a_question_is_stored_without_secrets(runner: Runner) -> None:
    attempt = await take(runner, token := new_token())
    github = "ghp_" + "a1B2" * 9

    await ask(runner, token, f"Is {github} or {TOKEN} right?", github, "no")

    (question,) = (await attempt.detail())["task"]["questions"]
    assert question["text"] == "Is [redacted: GitHub token] or [redacted: DELEGATE_TOKEN] right?"
    assert question["options"] == ["[redacted: GitHub token]", "no"]
    assert github not in (await runner.owner.get(f"/api/tasks/{attempt.task_id}")).text


async def listed(runner: Runner, status: str) -> list[dict[str, Any]]:
    tasks = (await runner.owner.get("/api/tasks", params={"status": status})).json()["tasks"]
    return [task for task in tasks if task["machine"] == runner.machine]


@asynccontextmanager
async def waiting_for(request: Callable[[], Awaitable[Any]]) -> AsyncIterator[list[Any]]:
    """A request that waits in the relay; its response is in the list at the end."""
    responses: list[Any] = []

    async def wait() -> None:
        responses.append(await request())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            yield responses


async def test_a_renewal_that_waits_is_answered_when_the_agent_asks(runner: Runner) -> None:
    attempt = await take(runner, token := new_token())

    async with waiting_for(partial(attempt.renew, wait=30)) as news:
        await ask(runner, token, "Which?")

    assert news[0]["asked"] is True


async def test_an_answer_wakes_a_runner_that_waits_for_work(runner: Runner) -> None:
    attempt = await take(runner, token := new_token())
    await ask(runner, token, "Which?")
    await attempt.finish(outcome="waiting", reason="question")

    async with waiting_for(partial(runner.ask, wait=30)) as got:
        await answer(attempt)

    assert got[0]["taskId"] == attempt.task_id


async def test_the_same_answer_sent_again_is_taken_once(runner: Runner) -> None:
    attempt = await take(runner, token := new_token())
    await ask(runner, token, "Which?")
    await attempt.finish(outcome="waiting", reason="question")

    first, again = [await answer(attempt, requestKey="key-1") for _ in range(2)]
    other = await answer(attempt, requestKey="key-2")

    assert (first.status_code, again.status_code) == (200, 200)
    assert "queued" in problem_of(other, 409, "no_question")["detail"]


async def test_an_agents_token_opens_its_own_attempt_while_it_runs_and_nothing_else(runner: Runner) -> None:
    attempt = await take(runner, token := new_token())
    url = str(runner.owner.base_url)
    async with client(url, token) as agent, client(url, new_token()) as stranger:
        for refused in (
            await agent.get("/api/tasks"),
            await agent.get("/api/events"),
            await agent.post(f"/api/tasks/{attempt.task_id}/answer", json={"text": "x"}),
            await agent.post("/api/tasks/batch", json={"tasks": []}),
            await agent.get("/api/schedules"),
            await agent.get("/api/runners/attempts"),
        ):
            problem_of(refused, 403, "forbidden")
        problem_of(await stranger.post("/mcp", json={}), 401, "unauthenticated")
        while_running = await agent.post("/mcp", json={})
        await attempt.finish()
        problem_of(await agent.post("/mcp", json={}), 401, "unauthenticated")

    assert while_running.status_code != 401


async def test_a_task_that_did_not_ask_does_not_wait_for_an_answer(runner: Runner) -> None:
    attempt = await take(runner, new_token())

    refused = await attempt.tell("finish", nextSeq=0, outcome="waiting", reason="question")
    odd = await attempt.tell("finish", nextSeq=0, outcome="waiting", reason="done")

    assert "asked nothing" in problem_of(refused, 422, "invalid_field")["detail"]
    assert "question" in problem_of(odd, 422, "invalid_field")["detail"]
    problem_of(await answer(attempt), 409, "no_question")
    problem_of(await answer(attempt, " "), 422, "invalid_field")


@pytest.mark.parametrize("ask_hash", ["", "x" * 64, "A" * 64, "a" * 63])
async def test_a_hash_that_is_none_is_refused(runner: Runner, ask_hash: str) -> None:
    body = {"claimId": runner.new_claim(), "agents": ["shell"], "wait": 0, "askHash": ask_hash}

    response = await runner.http.post("/api/runners/claim", json=body)

    assert problem_of(response, 422, "invalid_field")["field"] == "askHash"
