"""What Linear's reference agent gets wrong in the field, one test each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.linear.desk import Desk, open_desk

from delegate.intake import issues

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P6")]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        yield opened


@pytest.mark.parametrize("pause", [0.0, 60.0, 3600.0])
async def test_a_redelivered_creation_starts_no_second_agent(desk: Desk, pause: float) -> None:
    session = desk.linear.delegate_issue(desk.per_44())
    created = next(one for one in desk.linear.deliveries if one.event == "AgentSessionEvent.created")
    await desk.settle()
    attempt = await desk.claim()
    desk.clock.advance(pause)
    created.id = "another-delivery"
    await desk.send(created)
    await desk.settle()
    second = await desk.runner.ask()
    await desk.complete(attempt)
    await desk.settle()
    await desk.send(created)
    await desk.settle()

    assert second is None
    assert len(await desk.tasks()) == 1
    assert [kind for kind, _ in desk.said(session)].count("response") == 1


async def test_a_prompt_that_overtakes_the_creation_starts_the_task_with_it(desk: Desk) -> None:
    desk.linear.chaos("withhold", match="AgentSessionEvent.created")
    session = desk.linear.delegate_issue(desk.per_44())
    desk.linear.reply(session, "Keep the old limit for admins")
    await desk.settle()
    early, said = await desk.tasks(), desk.said(session)
    desk.linear.calm()
    await desk.settle()

    assert len(early) == len(await desk.tasks()) == 1
    assert early[0]["prompt"].endswith("The comment that asks for this work:\n\n> Keep the old limit for admins")
    assert [kind for kind, _ in said] == ["thought"]
    assert desk.said(session) == said


async def test_a_stop_that_overtakes_the_creation_starts_nothing(desk: Desk) -> None:
    desk.linear.chaos("withhold", match="AgentSessionEvent.created")
    session = desk.linear.delegate_issue(desk.per_44())
    desk.linear.stop(session)
    await desk.settle()
    desk.linear.calm()
    await desk.settle()

    assert await desk.tasks() == []
    assert desk.said(session) == [("response", "Stopped before it began.")]


async def test_an_issue_that_is_taken_back_before_the_creation_arrives_starts_nothing(desk: Desk) -> None:
    issue = desk.per_44()
    desk.linear.chaos("withhold", match="AgentSessionEvent.created")
    session = desk.linear.delegate_issue(issue)
    desk.linear.undelegate(issue)
    await desk.settle()
    desk.linear.calm()
    await desk.settle()

    assert await desk.tasks() == []
    assert desk.said(session) == [("response", "PER-44 is no longer delegated.")]


async def test_an_edited_issue_reaches_the_running_agent_once_and_wakes_no_old_conversation(desk: Desk) -> None:
    issue, old = desk.per_44(), []
    for number in range(3):
        old.append(desk.linear.mention(issue, f"please, {number}"))
        await desk.settle()
        await desk.complete(await desk.claim())
        await desk.settle()
    said = [desk.said(session) for session in old]
    desk.linear.edit_issue(issue, title="Edited while nothing runs")
    await desk.settle()
    idle = await desk.runner.ask()
    desk.linear.delegate_issue(issue)
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.chaos("duplicate", times=2, match="Issue.update", copies=3, new_id=True)
    desk.linear.edit_issue(issue, title="A new title")
    await desk.settle()
    desk.clock.advance(1)
    desk.linear.edit_issue(issue, description="Cap at 50 requests")
    await desk.settle()
    messages = [message["text"] for message in (await attempt.renew())["messages"]]

    assert idle is None
    assert len(await desk.tasks()) == 4
    assert [desk.said(session) for session in old] == said
    assert len(messages) == 2
    assert "Cap at 50 requests" in messages[-1]


async def test_an_activity_for_a_session_that_vanished_is_given_up_and_told(desk: Desk) -> None:
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
    assert detail["task"]["status"] == "completed"
    warnings = [event["data"]["text"] for event in detail["events"] if event["kind"] == "warning"]
    assert warnings == ["not posted to Linear: Linear refused the request: Could not find referenced AgentSession."]


async def test_sessions_that_agents_open_themselves_do_not_multiply(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of apps start nothing; those that an agent opens in the name of a person end at the caps."""
    monkeypatch.setattr(issues, "PER_HOUR_MAX", 12)
    linear, project = desk.linear, desk.linear.get("Project", "delego-saas")
    for creator in (None, linear.app_user):
        issue = linear.add_issue("By an app", projectId=project.id)
        linear.open_session(issue, creator=creator, comment=linear._session_root(issue))
    await desk.settle()
    by_apps = await desk.tasks()
    for number in range(20):
        last = linear.delegate_issue(linear.add_issue(f"Follow-up {number}", projectId=project.id))
        await desk.settle()

    assert by_apps == []
    assert len(await desk.tasks()) == 10  # and the two sessions of apps
    assert desk.said(last) == [("error", "12 issues were started within an hour. Try again later.")]
    assert len(linear.sessions) == 22


async def test_delegating_again_continues_the_agents_session_and_reads_nothing_again(desk: Desk) -> None:
    issue = desk.per_44()
    desk.linear.delegate_issue(issue)
    await desk.settle()
    first = await desk.claim()
    await first.finish(0, outcome="failed", reason="checks_failed", message="a test failed", sessionId="session-1")
    await desk.settle()
    again = desk.linear.delegate_issue(issue)
    await desk.settle()
    assignment = await desk.runner.ask()

    assert assignment is not None
    newest = await desk.task(assignment["taskId"])
    assert (newest["retryOf"], newest["lineage"]) == (first.task_id, first.task_id)
    assert assignment["resumeSession"] == "session-1"
    assert newest["context"] == issues.AGAIN
    assert f"continuing {first.task_id}" in desk.said(again)[0][1]
