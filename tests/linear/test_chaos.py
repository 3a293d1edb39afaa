"""Thousands of deliveries that are repeated, shuffled, delayed, forged and lost; and Linear echoing what we post."""

from __future__ import annotations

import heapq
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.fakes.linear_deliveries import Delivery, Entity
from tests.linear.desk import Desk, open_desk
from tests.relay.peers import fact

from delegate.intake.issues import PER_ISSUE_MAX
from delegate.relay.linear import webhook as webhooks
from delegate.relay.linear.poll import Poll
from delegate.store.tables import message

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P6")]
DELIVERIES = 2_000
ISSUES = 140  # of one wave; more than 200 in an hour would be refused
WAVES = int(os.environ.get("DELEGATE_SOAK_WAVES", "50"))
DELAYS = (0.0, 60.0, 3600.0, 21600.0)  # seconds
RESTORED = ("AgentSessionEvent.created", "AgentSessionEvent.prompted")  # if they are lost, by the poll


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        await opened.map_project()
        yield opened


@dataclass(slots=True, kw_only=True)
class Wave:
    """Issues that are started in the same minute, and what happens to them afterwards."""

    desk: Desk
    chance: random.Random
    issues: list[Entity] = field(default_factory=list)
    withdrawn: set[str] = field(default_factory=set)  # keys of issues that were closed or taken back
    replies: list[str] = field(default_factory=list)
    count: int = 0  # deliveries that were sent
    statuses: Counter[int] = field(default_factory=Counter)

    def act(self) -> None:
        """People start work on the issues, write, edit, close and take back."""
        linear, project = self.desk.linear, self.desk.linear.get("Project", "delego-saas")
        for _ in range(ISSUES):
            issue = linear.add_issue("An issue", projectId=project.id)
            self.issues.append(issue)
            kind = self.chance.random()
            if kind < 0.1:
                linear.add_label(issue, "delego:claude")
                continue
            session = linear.mention(issue, "fix this") if kind < 0.3 else linear.delegate_issue(issue)
            for _ in range(self.chance.choice([0, 0, 1, 2])):
                self.replies.append(f"reply {len(self.replies)} to {issue['identifier']}")
                linear.reply(session, self.replies[-1])
            fate = self.chance.random()
            if fate < 0.1:
                linear.close_issue(issue)
            elif fate < 0.2 and kind >= 0.3:
                linear.undelegate(issue)
            elif fate < 0.3:
                linear.edit_issue(issue, description="edited")
            if fate < 0.1 or (fate < 0.2 and kind >= 0.3):
                self.withdrawn.add(issue["identifier"])

    def scattered(self) -> list[tuple[float, float, Delivery]]:
        """Each delivery one to four times, at another time and in another order; a few forged, a few never."""
        now, found = self.desk.clock(), []
        while (delivery := self.desk.linear.sender.take_due()) is not None:
            copies = self._copies(delivery)
            found += [(now + self.chance.choice(DELAYS), self.chance.random(), copy) for copy in copies]
        heapq.heapify(found)
        return found

    def _copies(self, delivery: Delivery) -> Iterator[Delivery]:
        if delivery.event in RESTORED and self.chance.random() < 0.02:
            return
        for _ in range(self.chance.randint(1, 4)):
            renamed = f"renamed-{self.chance.random()}" if self.chance.random() < 0.05 else delivery.id
            yield Delivery(renamed, delivery.webhook, delivery.event, delivery.payload)
        if self.chance.random() < 0.05:
            yield Delivery("forged", delivery.webhook, delivery.event, delivery.payload, corrupt=True)

    async def deliver(self) -> None:
        waiting = self.scattered()
        while waiting:
            due, _, delivery = heapq.heappop(waiting)
            self.desk.clock.now = max(self.desk.clock.now, due)
            headers = self.desk.linear.sender.prepare(delivery)
            answer = await self.desk.http.post("/webhooks/linear", content=delivery.body, headers=headers)
            assert answer.status_code == (401 if delivery.id == "forged" else 200), answer.text
            self.count += 1
            if self.count % 40 == 0:
                await self.desk.work()

    async def check(self) -> None:
        """One task for each issue, of which only those are open that Linear still wants; each reply once."""
        tasks = await self.desk.tasks()
        by_key = Counter(task["issue"]["key"] for task in tasks)
        open_keys = {task["issue"]["key"] for task in tasks if task["status"] == "queued"}
        keys = {issue["identifier"] for issue in self.issues}
        assert {key: count for key, count in by_key.items() if count > 1} == {}
        assert open_keys & keys == keys - self.withdrawn
        sent = await self.desk.relay.database.read(
            lambda connection: [row.text for row in connection.execute(select(message.c.text))]
        )
        heard = Counter(text for text in sent if text.startswith("reply "))
        assert {text: count for text, count in heard.items() if count > 1} == {}
        prompts = "\n".join(task["prompt"] for task in tasks)
        lost = [text for text in self.replies if text not in heard and text not in prompts]
        assert {text.split()[-1] for text in lost} <= self.withdrawn


async def run_wave(desk: Desk, seed: int) -> int:
    wave = Wave(desk=desk, chance=random.Random(seed))
    wave.act()
    await wave.deliver()
    await desk.settle()
    await Poll(desk.link).run(desk.relay.now())
    await desk.settle()
    await wave.check()
    return wave.count


@pytest.mark.slow
async def test_webhook_chaos_makes_one_task_for_each_trigger(desk: Desk) -> None:
    assert await run_wave(desk, seed=11) >= DELIVERIES


@pytest.mark.soak
async def test_webhook_chaos_for_a_hundred_thousand_deliveries(desk: Desk) -> None:
    count = 0
    for seed in range(WAVES):
        count += await run_wave(desk, seed)
        for task in await desk.tasks():
            await desk.http.post(f"/api/tasks/{task['taskId']}/cancel", json={"reason": "the next wave"})
        desk.clock.advance(3601)
        await desk.settle()

    assert count >= DELIVERIES * WAVES


@pytest.mark.parametrize("actor", ["oauthClient", "user"])
@pytest.mark.parametrize("is_filtered", [True, False])
async def test_self_loop_echoes_of_our_own_posts_start_nothing(
    desk: Desk, actor: str, is_filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the filter, no app may start work."""
    if not is_filtered:
        monkeypatch.setattr(webhooks, "find_ignored", lambda found, _: None if found.kind else "unknown")
    desk.linear.app_actor_type, desk.linear.announce_own_sessions = actor, True
    issue = desk.per_44()
    desk.linear.add_label(issue, "delego:claude-sonnet-4-5")
    await desk.settle()
    attempt = await desk.claim()
    await attempt.record(fact(0, "todo", items=[{"title": "One", "state": "pending"}]))
    await desk.complete(attempt, seq=1)
    await desk.settle()
    for name in ("delego:claude", "delegate:claude"):
        desk.linear.add_label(issue, name, by=desk.linear.app_user)
    desk.linear.comment(issue, "@delego again", by=desk.linear.app_user)
    await desk.settle()

    assert len(await desk.tasks()) == len(desk.linear.sessions) == 1


async def test_self_loop_that_a_person_drives_stops_at_its_cap_and_says_so(desk: Desk) -> None:
    issue = desk.per_44()
    for _ in range(PER_ISSUE_MAX + 3):
        session = desk.linear.delegate_issue(issue)
        await desk.settle()
        await desk.http.post(f"/api/tasks/{(await desk.tasks())[0]['taskId']}/cancel", json={"reason": "again"})
        await desk.settle()

    assert len(await desk.tasks()) == PER_ISSUE_MAX
    assert "times within an hour" in desk.said(session)[-1][1]
