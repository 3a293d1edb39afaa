"""What happens to issues while no webhook arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.linear_deliveries import Entity
from tests.linear.desk import Desk, open_desk

from delegate.relay.linear.poll import Poll
from delegate.relay.linear.watch import Watch

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        opened.clock.advance(60)
        yield opened


async def look(desk: Desk, *loops: Poll | Watch) -> None:
    """Linear tells nothing; the relay asks."""
    desk.linear.sender.queue.clear()
    desk.clock.advance(600)
    for loop in loops:
        await loop.run(desk.relay.now())
    await desk.work()
    desk.linear.sender.queue.clear()


async def begun(desk: Desk) -> tuple[Watch, Entity, Entity, dict[str, Any]]:
    issue = desk.per_44()
    session = desk.linear.delegate_issue(issue)
    await look(desk, Poll(desk.link))
    return Watch(desk.link), issue, session, (await desk.tasks())[0]


@pytest.mark.parametrize("how", ["undelegated", "closed"])
async def test_an_issue_that_is_taken_back_or_closed_is_cancelled(desk: Desk, how: str) -> None:
    watch, issue, session, task = await begun(desk)
    if how == "closed":
        desk.linear.close_issue(issue)
    else:
        desk.linear.undelegate(issue)
    for _ in range(2):
        await look(desk, watch)

    assert (await desk.task(task["taskId"]))["status"] == "cancelled"
    assert [kind for kind, _ in desk.said(session)].count("response") == 1


async def test_an_edit_reaches_the_agent_once_by_poll_and_webhook(desk: Desk) -> None:
    watch, issue, _, _ = await begun(desk)
    attempt = await desk.claim()
    desk.linear.edit_issue(issue, description="Cap at 50 requests")
    for _ in range(2):
        await look(desk, watch)
    desk.linear.edit_issue(issue, description="Cap at 60 requests")
    await desk.settle()
    await look(desk, watch)

    texts = [message["text"] for message in (await attempt.renew())["messages"]]
    assert ["50" in text for text in texts] == [True, False]


@pytest.mark.parametrize("how", ["closed", "unrelated"])
async def test_a_blocker_that_is_closed_or_no_longer_one_releases_the_task(desk: Desk, how: str) -> None:
    watch = Watch(desk.link)
    blockers = [desk.linear.add_issue(title) for title in ("First", "Second")]
    project = desk.linear.get("Project", "delego-saas")
    desk.linear.delegate_issue(desk.linear.add_issue("Then", projectId=project.id, blocked_by=blockers))
    await look(desk, Poll(desk.link))
    waits = [(await desk.tasks())[0]["why"]]
    for blocker in blockers:
        if how == "closed":
            desk.linear.close_issue(blocker)
        else:
            relations = desk.linear.tables["IssueRelation"]
            del relations[next(row.id for row in relations.values() if row["issueId"] == blocker.id)]
        await look(desk, watch)
        waits.append((await desk.tasks())[0]["why"])

    assert ["block" in str(why) for why in waits] == [True, True, False]
    await desk.claim()


async def test_a_new_label_starts_work_once_also_if_its_webhook_is_late(desk: Desk) -> None:
    watch, issue = Watch(desk.link), desk.per_44()
    await look(desk, watch)
    desk.linear.add_label(issue, "delego:claude-sonnet-4-5")
    late = [delivery for _, _, delivery in desk.linear.sender.queue]
    for _ in range(2):
        await look(desk, watch)
    (task,) = await desk.tasks()
    await desk.complete(await desk.claim())
    for delivery in late:
        await desk.send(delivery)
    await desk.work()

    assert task["model"] == "claude-sonnet-4-5"
    assert len(await desk.tasks()) == 1


async def test_a_label_that_a_guest_added_or_that_was_there_before_starts_nothing(desk: Desk) -> None:
    guest = desk.linear.add_user("Gast")
    guest["guest"] = True
    watch = Watch(desk.link)
    desk.per_44("delego:claude-sonnet-4-5")
    desk.linear.add_label(desk.linear.add_issue("Another"), "delegate:codex", by=guest)
    await look(desk, watch)

    assert await desk.tasks() == []
