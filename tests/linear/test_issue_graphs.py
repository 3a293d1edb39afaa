"""Issues that block each other, and sub-issues: what waits for what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.linear_deliveries import Entity
from tests.linear.desk import REPOSITORY, Desk, open_desk

from delegate.report.linear import keep_alive

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        yield opened


def issue_of(desk: Desk, title: str, **fields: Any) -> Entity:
    return desk.linear.add_issue(title, projectId=desk.linear.get("Project", "delego-saas").id, **fields)


async def blocked(desk: Desk) -> tuple[list[Entity], Entity, Entity]:
    """Two issues, the one that they block, and its session."""
    blockers = [issue_of(desk, "First", number=41), issue_of(desk, "Second", number=43)]
    issue = issue_of(desk, "Then this", blocked_by=blockers)
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    return blockers, issue, session


async def parent_of_three(desk: Desk) -> tuple[list[Entity], Entity, Entity]:
    """Three sub-issues, of which the first blocks the second; their parent, and its session, which asks."""
    parent = issue_of(desk, "Three steps", number=50)
    one = issue_of(desk, "One", number=51, parentId=parent.id)
    two = issue_of(desk, "Two", number=52, parentId=parent.id, blocked_by=[one])
    three = issue_of(desk, "Three", number=53, parentId=parent.id)
    closed = issue_of(desk, "Done", number=54, parentId=parent.id)
    desk.linear.close_issue(closed)
    session = desk.linear.delegate_issue(parent)
    await desk.settle()
    return [one, two, three], parent, session


async def tasks_by_issue(desk: Desk) -> dict[str, dict[str, Any]]:
    return {task["issue"]["key"]: task for task in await desk.tasks()}


async def test_a_blocked_issue_is_a_task_that_waits_for_its_blockers_by_name(desk: Desk) -> None:
    blockers, _, session = await blocked(desk)
    (task,) = await desk.tasks()
    desk.linear.close_issue(blockers[0])
    await desk.settle()
    after_one = await desk.task(task["taskId"])
    desk.linear.close_issue(blockers[1], canceled=True)
    await desk.settle()
    attempt = await desk.claim()

    assert (task["status"], task["why"]) == ("queued", "waits for PER-43, PER-41, which block its issue")
    assert "Queued: waits for PER-43, PER-41, which block its issue." in desk.said(session)[0][1]
    assert after_one["why"] == "waits for PER-43, which blocks its issue"
    assert attempt.task_id == task["taskId"]
    assert ("thought", "Nothing blocks it any more. Queued.") in desk.said(session)


async def test_nobody_claims_a_task_whose_issue_is_blocked(desk: Desk) -> None:
    await blocked(desk)

    assert await desk.runner.ask() is None


@pytest.mark.parametrize("how", ["cli", "stop", "undelegated"])
async def test_a_blocked_task_is_cancelled_while_it_waits(desk: Desk, how: str) -> None:
    blockers, issue, session = await blocked(desk)
    (task,) = await desk.tasks()
    if how == "cli":
        await desk.http.post(f"/api/tasks/{task['taskId']}/cancel", json={})
    elif how == "stop":
        desk.linear.stop(session)
    else:
        desk.linear.undelegate(issue)
    await desk.settle()
    for blocker in blockers:
        desk.linear.close_issue(blocker)
    await desk.settle()

    assert (await desk.task(task["taskId"]))["status"] == "cancelled"
    assert [kind for kind, _ in desk.said(session)].count("response") == 1
    assert await desk.runner.ask() is None


async def test_a_reply_starts_a_blocked_task_anyway_and_another_one_is_kept_for_the_agent(desk: Desk) -> None:
    _, _, session = await blocked(desk)
    desk.linear.reply(session, "Mind the empty range")
    await desk.settle()
    before = (await desk.tasks())[0]["why"]
    desk.linear.reply(session, "please start anyway")
    await desk.settle()
    attempt = await desk.claim()

    assert "PER-41" in before
    assert [one["text"] for one in (await attempt.renew())["messages"]] == ["Mind the empty range"]


async def test_the_retry_of_a_blocked_task_waits_for_no_issue(desk: Desk) -> None:
    await blocked(desk)
    (task,) = await desk.tasks()
    await desk.http.post(f"/api/tasks/{task['taskId']}/cancel", json={})
    await desk.http.post(f"/api/tasks/{task['taskId']}/retry", json={})

    assert (await desk.claim()).task_id != task["taskId"]


async def test_a_delegated_parent_is_asked_about_once_and_this_issue_is_one_task(desk: Desk) -> None:
    _, _, session = await parent_of_three(desk)
    asked, before = desk.linear.activities(session)[-1], await desk.tasks()
    desk.linear.reply(session, "This issue only")
    await desk.settle()

    assert (asked["type"], asked["signal"], before) == ("elicitation", "select", [])
    assert asked["body"] == "PER-50 has open sub-issues: PER-53, PER-52, PER-51. What should I work on?"
    assert list(await tasks_by_issue(desk)) == ["PER-50"]
    assert [kind for kind, _ in desk.said(session)].count("elicitation") == 1


async def test_all_sub_issues_become_a_graph_that_reports_on_each_issue(desk: Desk) -> None:
    children, _, session = await parent_of_three(desk)
    desk.linear.reply(session, "All 3 sub-issues")
    await desk.settle()
    tasks = await tasks_by_issue(desk)
    attempts = [await desk.claim(), await desk.claim()]
    nothing_more = await desk.runner.ask()
    for number, attempt in enumerate(attempts, 324):
        await desk.complete(attempt, number=number)
    await desk.settle()
    before = desk.said(session)
    await desk.complete(await desk.claim(), number=326)
    await desk.settle()

    assert set(tasks) == {"PER-51", "PER-52", "PER-53"}
    assert tasks["PER-52"]["dependsOn"] == [tasks["PER-51"]["taskId"]]
    assert {task["repository"] for task in tasks.values()} == {REPOSITORY}
    assert {one.task_id for one in attempts} == {tasks["PER-51"]["taskId"], tasks["PER-53"]["taskId"]}
    assert nothing_more is None
    assert "Each reports on its own issue." in before[-1][1]
    assert [desk.state_of(child) for child in children] == ["In Review"] * 3
    kind, text = desk.said(session)[-1]
    assert kind == "response"
    assert all(f"{key}: completed · https://github.com/" in text for key in tasks)
    own = [one for one in desk.linear.sessions if one["issueId"] == children[0].id]
    assert [desk.said(one)[-1][0] for one in own] == ["response"]


async def test_stop_on_the_parent_stops_its_sub_issues(desk: Desk) -> None:
    _, _, session = await parent_of_three(desk)
    desk.linear.reply(session, "all of them")
    await desk.settle()
    desk.linear.stop(session)
    await desk.settle()

    assert {task["status"] for task in await desk.tasks()} == {"cancelled"}
    assert desk.said(session)[-1][0] == "response"
    assert [kind for kind, _ in desk.said(session)].count("response") == 1


async def test_a_session_on_the_parent_is_kept_alive_and_sends_replies_elsewhere(desk: Desk) -> None:
    _, _, session = await parent_of_three(desk)
    desk.linear.reply(session, "all")
    await desk.settle()
    desk.linear.reply(session, "Use tabs")
    await desk.settle()
    sent_elsewhere = desk.said(session)[-1]
    desk.clock.advance(26 * 60)
    await keep_alive(desk.relay.database, desk.relay.now())
    await desk.settle()

    assert sent_elsewhere[0] == "thought"
    assert "Reply on one of its sub-issues: " in sent_elsewhere[1]
    assert desk.said(session)[-1] == ("thought", "Still working on PER-50.")


async def test_a_sub_issue_that_is_not_clear_is_asked_about_before_any_of_them_starts(desk: Desk) -> None:
    children, _, session = await parent_of_three(desk)
    desk.linear.add_label(children[2], "executor/claude")
    desk.linear.add_label(children[2], "executor/codex")
    desk.linear.reply(session, "All")
    await desk.settle()
    (kind, text), before = desk.said(session)[-1], await desk.tasks()
    desk.linear.remove_label(children[2], "executor/codex")
    desk.linear.reply(session, "fixed")
    await desk.settle()

    assert (kind, before) == ("elicitation", [])
    assert text.startswith("PER-53: ")
    assert "two executor labels" in text
    assert len(await desk.tasks()) == 3


async def test_sub_issues_that_block_each_other_are_told(desk: Desk) -> None:
    children, _, session = await parent_of_three(desk)
    desk.linear.relate(children[1], children[0], "blocks")
    desk.linear.reply(session, "All")
    await desk.settle()

    kind, text = desk.said(session)[-1]
    assert (kind, await desk.tasks()) == ("elicitation", [])
    assert "These issues block each other: " in text
