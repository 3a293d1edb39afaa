"""PER-44 without webhooks, with an API key only, and with every runner asleep: each until the response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes.linear_deliveries import Entity
from tests.linear.desk import REPOSITORY, Desk, connect, open_desk

from delegate.relay.linear.poll import POLL_EVERY, Poll

pytestmark = pytest.mark.anyio
LABEL = "delego:claude-sonnet-4-5"
FIRST = f"claude · sonnet-4-5 (label) in {REPOSITORY} (project)"
PULL_REQUEST = f"https://github.com/{REPOSITORY}/pull/324"


class SilentDesk:
    """No webhook arrives: only the poll asks Linear."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._poll = Poll(desk.link)

    async def look(self) -> None:
        """The next poll, and what it leads to. Clocks differ by a minute at most."""
        self.desk.linear.sender.queue.clear()
        self.desk.clock.advance(60 + POLL_EVERY.total_seconds())
        await self._poll.run(self.desk.relay.now())
        await self.desk.work()
        self.desk.linear.sender.queue.clear()


@asynccontextmanager
async def silent_desk(home: Path, connects: str) -> AsyncIterator[SilentDesk]:
    async with open_desk(home, connects=connects) as desk:
        await desk.map_project()
        silent = SilentDesk(desk)
        await silent.look()
        yield silent


def own_comments(desk: Desk) -> list[Entity]:
    """What Delegate wrote with the key of its owner; people write in the tests as somebody else."""
    return [row for row in desk.linear.tables["Comment"].values() if row["userId"] == desk.linear.admin.id]


async def test_polling_only_brings_the_delegation_the_reply_and_the_end(tmp_path: Path) -> None:
    async with silent_desk(tmp_path, "client_credentials") as silent:
        desk = silent.desk
        issue = desk.per_44(LABEL)
        session = desk.linear.delegate_issue(issue)
        await silent.look()
        await silent.look()
        attempt = await desk.claim()
        desk.linear.reply(session, "Mind the headers")
        await silent.look()
        messages = (await attempt.renew())["messages"]
        await desk.complete(attempt)
        await silent.look()

        assert desk.answers == []
        assert [message["text"] for message in messages] == ["Mind the headers"]
        said = desk.said(session)
        assert said[0][1].startswith(FIRST)
        assert said[-1][0] == "response"
        assert PULL_REQUEST in said[-1][1]
        assert desk.state_of(issue) == "In Review"
        assert len(await desk.tasks()) == 1


async def test_an_api_key_alone_finds_the_label_and_reports_in_one_comment(tmp_path: Path) -> None:
    async with silent_desk(tmp_path, "api_key") as silent:
        desk, ada = silent.desk, silent.desk.linear.add_user("Ada")
        issue = desk.per_44()
        await silent.look()
        nothing = await desk.tasks()
        desk.linear.add_label(issue, LABEL)  # by the owner of the key
        await silent.look()
        await silent.look()
        attempt = await desk.claim()
        desk.linear.comment(issue, "Mind the headers", by=ada)
        await silent.look()
        messages = (await attempt.renew())["messages"]
        await desk.complete(attempt)
        await silent.look()
        await silent.look()

        assert nothing == []
        assert [message["text"] for message in messages] == ["Mind the headers"]
        (comment,) = own_comments(desk)
        assert comment["body"].startswith(FIRST)
        assert f"Pull request: {PULL_REQUEST}" in comment["body"]
        assert [row["url"] for row in desk.linear.tables["Attachment"].values()] == [PULL_REQUEST]
        assert desk.state_of(issue) == "In Review"
        assert desk.linear.sessions == []
        assert len(await desk.tasks()) == 1
        assert desk.linear.unmodelled == set()


async def test_after_the_end_only_a_reply_to_its_own_comment_continues(tmp_path: Path) -> None:
    async with silent_desk(tmp_path, "api_key") as silent:
        desk, ada = silent.desk, silent.desk.linear.add_user("Ada")
        issue = desk.per_44()
        desk.linear.add_label(issue, LABEL)
        await silent.look()
        await desk.complete(await desk.claim())
        await silent.look()
        (comment,) = own_comments(desk)
        desk.linear.comment(issue, "Nice!", by=ada)
        await silent.look()
        ended = await desk.tasks()
        desk.linear.comment(issue, "Add a test, please", by=ada, parent=comment)
        await silent.look()

        assert len(ended) == 1
        newest, first = await desk.tasks()
        assert (newest["retryOf"], newest["context"]) == (first["taskId"], "Add a test, please")


async def test_an_old_label_starts_nothing_and_one_that_is_added_again_continues(tmp_path: Path) -> None:
    async with open_desk(tmp_path, connects="") as desk:
        issue = desk.per_44(LABEL)
        desk.clock.advance(60)
        await connect(desk.http, desk.linear, "api_key")
        await desk.map_project()
        silent, counts = SilentDesk(desk), []
        await silent.look()
        counts.append(len(await desk.tasks()))
        for _ in range(2):
            desk.linear.remove_label(issue, LABEL)
            await silent.look()
            desk.linear.add_label(issue, LABEL)
            await silent.look()
            await desk.complete(await desk.claim())
            await silent.look()
            counts.append(len(await desk.tasks()))

        assert counts == [0, 1, 2]


async def test_with_every_runner_asleep_the_first_thought_says_so_and_the_work_is_done_later(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        await desk.map_project()
        desk.clock.advance(3600)
        issue = desk.per_44(LABEL)
        session = desk.linear.delegate_issue(issue)
        await desk.settle()
        asleep = desk.said(session)
        desk.clock.advance(3600)
        await desk.complete(await desk.claim())
        await desk.settle()

        assert asleep == [("thought", f"{FIRST}\n\nQueued; last runner seen 1 h ago.")]
        assert desk.said(session)[-1][0] == "response"
        assert desk.state_of(issue) == "In Review"
