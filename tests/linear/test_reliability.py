"""One task, one report and nothing lost, whatever happens to webhooks, to Linear and to the credential."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.linear.desk import Desk, connect, open_desk
from tests.relay.peers import fact

from delegate.linear.client import RateBudget, check_success
from delegate.linear.operations import CREATE_ACTIVITY, SESSIONS, UPDATE_SESSION
from delegate.model import EventKind, TaskId
from delegate.relay.linear.link import LinearLink
from delegate.relay.linear.loops import Chores
from delegate.relay.linear.poll import Poll
from delegate.store.events import NewEvent, append_events

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        yield opened


async def test_polling_alone_tells_the_same_story(desk: Desk) -> None:
    poll = Poll(desk.link)
    desk.linear.chaos("withhold", times=1000)
    session = desk.linear.delegate_issue(desk.per_44())
    await poll.run(desk.relay.now())
    await desk.work()
    attempt = await desk.claim()
    desk.linear.reply(session, "Mind the headers")
    desk.clock.advance(10)
    await poll.run(desk.relay.now())
    await desk.work()
    messages = (await attempt.renew())["messages"]
    await desk.complete(attempt)
    await desk.work()
    desk.clock.advance(10)
    await poll.run(desk.relay.now())
    await desk.work()

    assert [message["text"] for message in messages] == ["Mind the headers"]
    assert len(await desk.tasks()) == 1
    assert desk.said(session)[-1][0] == "response"
    state = (await desk.http.get("/api/linear")).json()
    assert state["state"] == "connected"


async def test_linear_down_for_ten_minutes_loses_and_repeats_nothing(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.chaos("status", times=1000, status=503)
    await desk.complete(attempt)
    for _ in range(10):
        await desk.work()
        desk.clock.advance(60)
    silent = desk.said(session)
    desk.linear.calm()
    desk.clock.advance(300)
    await desk.settle()

    assert [kind for kind, _ in silent].count("response") == 0
    assert [kind for kind, _ in desk.said(session)].count("response") == 1
    assert len(desk.linear.tables["Attachment"]) == 1


@pytest.mark.parametrize("duplicates", ["refuse", "return"])
async def test_an_answer_that_is_lost_does_not_repeat_the_post(desk: Desk, duplicates: str) -> None:
    desk.linear.duplicate_ids = duplicates
    desk.linear.chaos("status", times=2, match="CreateActivity", status=502, applied=True)
    session = desk.linear.delegate_issue(desk.per_44())
    for _ in range(4):
        await desk.settle()
        desk.clock.advance(10)
    await desk.settle()

    assert [kind for kind, _ in desk.said(session)] == ["thought"]
    assert (await desk.http.get("/api/linear")).json()["outboxDead"] == 0


async def test_a_rate_limit_of_an_hour_delays_and_the_final_word_arrives(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    await desk.settle()
    desk.linear.chaos("rate_limit", times=1, retry_after=3600)
    desk.clock.advance(60)
    await attempt.record(*(fact(seq, "tool", name="Edit", summary=f"file-{seq}.ts", id=str(seq)) for seq in range(20)))
    await desk.work()
    requests_before = len(desk.linear.requests)
    desk.clock.advance(1800)
    await desk.complete(attempt, seq=20)
    await desk.work()
    requests_during = len(desk.linear.requests) - requests_before
    desk.clock.advance(1900)
    await desk.settle()

    assert requests_during == 0
    said = desk.said(session)
    assert said[-1][0] == "response"
    assert not any(kind == "action" for kind, _ in said)


async def test_a_revoked_token_is_renewed_and_nothing_is_lost(desk: Desk) -> None:
    desk.linear.chaos("revoke_token", times=1, match="CreateActivity")
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    desk.clock.advance(90)
    await desk.settle()

    assert [kind for kind, _ in desk.said(session)] == ["thought"]
    assert (await desk.http.get("/api/linear")).json()["state"] == "connected"


async def test_an_expired_token_is_renewed_before_it_is_used(desk: Desk) -> None:
    desk.clock.advance(31 * 24 * 3600)
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()

    assert [kind for kind, _ in desk.said(session)] == ["thought"]
    assert not any("AUTHENTICATION_ERROR" in request["errors"] for request in desk.linear.requests)


async def test_a_removed_app_needs_attention(desk: Desk) -> None:
    desk.linear.uninstall()
    await desk.settle()

    state = (await desk.http.get("/api/linear")).json()
    assert (state["state"], state["reason"]) == ("needs attention", "the app was removed from the workspace")


async def test_errors_inside_http_200_are_repeated(desk: Desk) -> None:
    desk.linear.chaos("errors", times=2, match="CreateActivity")
    session = desk.linear.delegate_issue(desk.per_44())
    for _ in range(4):
        await desk.settle()
        desk.clock.advance(10)

    assert [kind for kind, _ in desk.said(session)] == ["thought"]


async def test_what_is_delegated_and_written_while_linear_is_down_is_done_afterwards(desk: Desk) -> None:
    running = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.chaos("status", times=1000, match="query|mutation", status=503)
    project = desk.linear.get("Project", "delego-saas")
    waiting = desk.linear.delegate_issue(desk.linear.add_issue("Meanwhile", projectId=project.id))
    desk.linear.reply(running, "Mind the headers")
    for _ in range(10):
        await desk.settle()
        desk.clock.advance(60)
    during = await desk.tasks()
    desk.linear.calm()
    desk.clock.advance(300)
    await desk.settle()
    messages = (await attempt.renew())["messages"]

    assert len(during) == 1
    assert len(await desk.tasks()) == 2
    assert [message["text"] for message in messages] == ["Mind the headers"]
    assert [kind for kind, _ in desk.said(waiting)] == ["thought"]
    assert desk.said(running).count(("thought", "Sent to the agent.")) == 1


async def test_a_rate_limit_holds_back_all_requests_and_every_delegation_is_done_afterwards(desk: Desk) -> None:
    project, sessions = desk.linear.get("Project", "delego-saas"), []
    desk.linear.chaos("rate_limit", times=1, retry_after=3600)
    for number in range(20):
        issue = desk.linear.add_issue(f"Issue {number}", projectId=project.id)
        sessions.append(desk.linear.delegate_issue(issue))
    before = len(desk.linear.requests)
    for _ in range(6):
        await desk.settle()
        desk.clock.advance(590)
    during = len(desk.linear.requests) - before
    desk.clock.advance(120)
    await desk.settle()

    assert during <= 8  # those that were under way when Linear said so
    assert len({task["taskId"] for task in await desk.tasks()}) == 20
    assert [[kind for kind, _ in desk.said(session)] for session in sessions] == [["thought"]] * 20


async def test_an_app_that_is_removed_in_mid_task_and_connected_again_gets_the_final_word(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.client_credentials_enabled = False
    desk.linear.uninstall()
    await desk.settle()
    await desk.complete(attempt)
    for _ in range(30):
        await desk.work()
        desk.clock.advance(600)
    state = (await desk.http.get("/api/linear")).json()
    silent = desk.said(session)
    desk.linear.client_credentials_enabled = True
    await connect(desk.http, desk.linear, "client_credentials")
    desk.clock.advance(300)
    await desk.settle()

    assert state["state"] == "needs attention"
    assert "response" not in [kind for kind, _ in silent]
    assert [kind for kind, _ in desk.said(session)].count("response") == 1
    assert (await desk.http.get("/api/linear")).json()["state"] in ("ready", "connected")


async def test_a_token_that_expires_in_mid_task_is_renewed(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    await desk.settle()
    desk.clock.advance(31 * 24 * 3600)
    await desk.complete(attempt)
    await desk.settle()

    assert [kind for kind, _ in desk.said(session)].count("response") == 1
    assert not any("AUTHENTICATION_ERROR" in request["errors"] for request in desk.linear.requests)


async def test_errors_inside_http_200_delay_a_delegation_and_start_it_once(desk: Desk) -> None:
    desk.linear.chaos("errors", times=3, match="query Session")
    session = desk.linear.delegate_issue(desk.per_44())
    for _ in range(5):
        await desk.settle()
        desk.clock.advance(10)

    assert len(await desk.tasks()) == 1
    assert [kind for kind, _ in desk.said(session)] == ["thought"]


async def test_a_change_that_linear_answers_with_no_success_is_repeated(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, answers = LinearLink._send, iter([{"success": False}])

    async def refuse_once(link: LinearLink, *arguments: Any) -> Any:
        if arguments[1] == CREATE_ACTIVITY and (answer := next(answers, None)) is not None:
            return check_success({"agentActivityCreate": answer})
        return await send(link, *arguments)

    monkeypatch.setattr(LinearLink, "_send", refuse_once)
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    refused = desk.said(session)
    desk.clock.advance(10)
    await desk.settle()

    assert refused == []
    assert [kind for kind, _ in desk.said(session)] == ["thought"]


@pytest.mark.parametrize("said", ["Add a test, please", "stop"])
async def test_what_is_written_at_the_moment_of_the_end_does_not_replace_the_final_report(
    desk: Desk, said: str
) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    await desk.complete(await desk.claim())
    if said == "stop":
        desk.linear.stop(session)
    else:
        desk.linear.reply(session, said)
    await desk.settle()
    desk.clock.advance(2)
    await desk.settle()

    responses = [text for kind, text in desk.said(session) if kind == "response"]
    assert "Pull request: " in responses[0]
    assert len(await desk.tasks()) == (1 if said == "stop" else 2)


async def test_a_poll_finds_every_session_however_many_there_are(desk: Desk) -> None:
    desk.linear.chaos("withhold", times=10_000)
    project = desk.linear.get("Project", "delego-saas")
    for number in range(120):
        desk.linear.delegate_issue(desk.linear.add_issue(f"Issue {number}", projectId=project.id))
    await Poll(desk.link).run(desk.relay.now())
    await desk.work()

    assert len(await desk.tasks()) == 120


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2_500, pytest.param(5_000, marks=pytest.mark.soak)])
async def test_fifty_running_tasks_stay_within_linears_hourly_limit(
    desk: Desk, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour in which every agent uses three tools and changes its plan three times a minute."""
    project, fleet, calls = desk.linear.get("Project", "delego-saas"), 50, Counter[str]()
    plans: dict[str, Any] = {}
    for number in range(fleet):
        desk.linear.delegate_issue(desk.linear.add_issue(f"Issue {number}", projectId=project.id))
    await desk.settle()
    attempts = [await desk.claim() for _ in range(fleet)]
    await desk.settle()

    async def count(_link: LinearLink, operation: str, variables: Mapping[str, Any] | None = None) -> Any:
        given = dict(variables or {})
        calls[operation] += 1
        if operation == CREATE_ACTIVITY:
            calls[given["input"]["content"]["type"]] += 1
        if operation == UPDATE_SESSION and "plan" in given["input"]:
            plans[given["id"]] = given["input"]["plan"]
        return {"agentSessions": {"nodes": [], "pageInfo": {"hasNextPage": False, "endCursor": None}}}

    monkeypatch.setattr(LinearLink, "call", count)
    desk.link.budget = RateBudget(limit=limit, remaining=limit)
    poll, chores = Poll(desk.link), Chores(desk.link)
    for minute in range(60):
        events = [event for attempt in attempts for event in busy_minute(desk, attempt.task_id, minute)]
        await desk.relay.database.write("test", partial(append_events, events=events))
        for _ in range(2):
            desk.clock.advance(30)
            await poll.run(desk.relay.now())
            await chores.run(desk.relay.now())
            await desk.work()
    used = sum(calls[operation] for operation in calls if " " in operation)
    for attempt in attempts:
        await desk.complete(attempt)
    await desk.work()

    assert used <= limit * 0.8
    assert calls["action"] > fleet
    assert calls["response"] == fleet
    assert set(map(str, plans.values())) == {str([{"content": "Step 179", "status": "pending"}])}
    assert calls[SESSIONS] <= 360


def busy_minute(desk: Desk, task_id: str, minute: int) -> list[NewEvent]:
    at, known = desk.relay.now(), TaskId(task_id)
    steps = range(minute * 3, minute * 3 + 3)
    tools: list[dict[str, object]] = [{"name": "Edit", "summary": f"file-{step}.py"} for step in steps]
    plans: list[dict[str, object]] = [{"items": [{"title": f"Step {step}", "state": "pending"}]} for step in steps]
    return [
        *(NewEvent(task_id=known, kind=EventKind.TOOL, at=at, data=data) for data in tools),
        *(NewEvent(task_id=known, kind=EventKind.TODO, at=at, data=data) for data in plans),
    ]
