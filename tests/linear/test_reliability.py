"""One task, one report and nothing lost, whatever happens to webhooks, to Linear and to the credential."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.linear.desk import Desk, open_desk
from tests.relay.peers import fact

from delegate.intake.issues import PER_ISSUE_MAX
from delegate.relay.linear.outbox import Outbox
from delegate.relay.linear.poll import Poll
from delegate.report.linear import ephemeral_interval

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        yield opened


@pytest.mark.promise("P6")
@pytest.mark.parametrize("pause", [0.0, 60.0, 3600.0])
async def test_a_redelivered_delegation_starts_one_task(desk: Desk, pause: float) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    created = next(one for one in desk.linear.deliveries if one.event == "AgentSessionEvent.created")
    await desk.settle()
    desk.clock.advance(pause)
    created.id = "another-delivery"
    await desk.send(created)
    await desk.settle()
    await desk.complete(await desk.claim())
    await desk.settle()
    await desk.send(created)
    await desk.settle()

    assert len(await desk.tasks()) == 1
    assert [kind for kind, _ in desk.said(session)].count("response") == 1


@pytest.mark.promise("P6")
async def test_a_prompt_that_overtakes_the_creation_starts_the_task_with_it(desk: Desk) -> None:
    desk.linear.chaos("withhold", match="AgentSessionEvent.created")
    session = desk.linear.delegate_issue(desk.per_44())
    desk.linear.reply(session, "Keep the old limit for admins")
    await desk.settle()
    early = await desk.tasks()
    desk.linear.calm()
    await desk.settle()

    assert len(early) == len(await desk.tasks()) == 1
    assert early[0]["prompt"].endswith("The comment that asks for this work:\n\n> Keep the old limit for admins")


@pytest.mark.promise("P6")
async def test_shuffled_repeated_late_forged_and_missing_webhooks_make_one_task_per_issue(desk: Desk) -> None:
    chance = random.Random(11)
    kinds = ["duplicate", "reorder", "corrupt_signature", "old_timestamp", "withhold", "delay", ""]
    sessions = []
    for number in range(40):
        kind = chance.choice(kinds)
        if kind:
            options: dict[str, Any] = {}
            if kind == "duplicate":
                options = {"copies": 3, "new_id": chance.random() < 0.5}
            seconds = chance.choice([60.0, 3600.0, 7 * 3600.0])
            options |= {"seconds": seconds} if kind in ("old_timestamp", "delay") else {}
            desk.linear.chaos(kind, match="AgentSessionEvent.created", **options)
        project = desk.linear.get("Project", "delego-saas")
        sessions.append(desk.linear.delegate_issue(desk.linear.add_issue(f"Issue {number}", projectId=project.id)))
    await desk.settle()
    await Poll(desk.link).run(desk.relay.now())
    await desk.settle()
    after_poll = {task["issue"]["key"] for task in await all_tasks(desk)}
    desk.linear.calm()
    for pause in (120.0, 3600.0, 7 * 3600.0):
        desk.clock.advance(pause)
        await desk.settle()

    tasks = await all_tasks(desk)
    assert len(after_poll) == len(sessions)
    assert len(tasks) == len(sessions)
    assert {kind for session in sessions for kind, _ in desk.said(session)} == {"thought"}


async def all_tasks(desk: Desk) -> list[dict[str, Any]]:
    return list((await desk.http.get("/api/tasks?limit=100")).json()["tasks"])


@pytest.mark.promise("P6")
async def test_what_delegate_posts_does_not_start_work(desk: Desk) -> None:
    desk.linear.app_actor_type = "user"
    desk.linear.announce_own_sessions = True
    issue = desk.per_44()
    await desk.settle()
    desk.linear.add_label(issue, "delego:claude-sonnet-4-5")
    await desk.settle()
    attempt = await desk.claim()
    await attempt.record(fact(0, "todo", items=[{"title": "One", "state": "pending"}]))
    await desk.complete(attempt, seq=1)
    await desk.settle()

    assert len(await desk.tasks()) == 1
    assert len(desk.linear.sessions) == 1


@pytest.mark.promise("P6")
async def test_a_loop_of_delegations_ends_at_the_cap(desk: Desk) -> None:
    issue = desk.per_44()
    for _ in range(PER_ISSUE_MAX + 3):
        session = desk.linear.delegate_issue(issue)
        await desk.settle()
        await desk.http.post(f"/api/tasks/{(await desk.tasks())[0]['taskId']}/cancel", json={"reason": "again"})
        await desk.settle()

    assert len(await desk.tasks()) == PER_ISSUE_MAX
    assert "times within an hour" in desk.said(session)[-1][1]


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


async def test_a_session_that_is_gone_ends_its_posts_and_is_told(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    del desk.linear.tables["AgentSession"][session.id]
    await desk.complete(attempt)
    await desk.work()
    requests = len(desk.linear.requests)
    desk.clock.advance(3600)
    await desk.work()
    detail = (await desk.http.get(f"/api/tasks/{attempt.task_id}")).json()

    assert len(desk.linear.requests) == requests
    warnings = [event["data"]["text"] for event in detail["events"] if event["kind"] == "warning"]
    assert warnings == ["not posted to Linear: Linear refused the request: Could not find referenced AgentSession."]


async def test_errors_inside_http_200_are_repeated(desk: Desk) -> None:
    desk.linear.chaos("errors", times=2, match="CreateActivity")
    session = desk.linear.delegate_issue(desk.per_44())
    for _ in range(4):
        await desk.settle()
        desk.clock.advance(10)

    assert [kind for kind, _ in desk.said(session)] == ["thought"]


async def test_a_new_relay_process_sends_what_the_old_one_left(desk: Desk) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.deliver()
    await desk.inbox.process_due(desk.relay.now())
    await desk.inbox.process_due(desk.relay.now())
    await Outbox(desk.link).send_due(desk.relay.now())

    assert len(await desk.tasks()) == 1
    assert [kind for kind, _ in desk.said(session)] == ["thought"]


@pytest.mark.parametrize("limit", [2_500, 5_000])
def test_fifty_running_tasks_stay_within_the_hourly_limit(limit: int) -> None:
    interval = ephemeral_interval(50, limit)

    ephemeral = 50 * (timedelta(hours=1) / interval)
    lasting = 50 * 20  # thoughts, checks, links and states of a task an hour
    assert ephemeral + lasting <= limit
    assert ephemeral_interval(1, limit) == timedelta(seconds=10)
