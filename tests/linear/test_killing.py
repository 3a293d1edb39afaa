"""The relay dies at any commit and at any call to Linear, the runner dies too, and deliveries are repeated: one task,
one pull request and one final report for each trigger all the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.audit import database_faults
from tests.fakes.linear_deliveries import Delivery, Entity, ManualClock
from tests.fakes.linear_standin import LinearStandin
from tests.linear.desk import REPOSITORY, Desk, connect, open_linear, open_relay
from tests.relay.peers import Attempt, Runner, fact

from delegate.config.paths import Home
from delegate.linear.client import LinearApi
from delegate.queue.rescue import rescue
from delegate.relay.linear.poll import Poll
from delegate.store import database as store
from delegate.store.schema import prepare

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P6")]
SEEDS, SEEDS_QUICK, SEEDS_PER_TEST = 200, 60, 20  # those that are not quick run in `make soak`
CRASHES_MAX = 3  # in one story; Linear sends a webhook four times
CRASH_CHANCE = 0.08  # at each point
ROUNDS_MAX = 60
FOLLOW_UP = "Keep the old limit for admins"


class Crash(BaseException):
    """The relay's process is gone."""


@dataclass(slots=True)
class Fate:
    """Decides at every commit, and around every call to Linear, whether the relay dies there."""

    dice: random.Random
    remaining: int
    struck: list[str] = field(default_factory=list)
    is_armed: bool = False

    def pass_by(self, point: str) -> None:
        if self.is_armed and self.remaining and self.dice.random() < CRASH_CHANCE:
            self.remaining -= 1
            self.struck.append(point)
            raise Crash(point)


@dataclass(slots=True, kw_only=True)
class Story:
    """An issue from its trigger to its pull request. Every step can be repeated: a crash may interrupt it anywhere."""

    home: Path
    linear: LinearStandin
    clock: ManualClock
    dice: random.Random
    fate: Fate
    runner: Runner
    trigger: str
    issue: Entity
    step: int = 0
    claims: int = 0
    attempt: Attempt | None = None
    restarts: int = 0
    sent: list[Delivery] = field(default_factory=list)
    pulls: dict[str, int] = field(default_factory=dict)  # by branch, as on GitHub

    async def live(self) -> None:
        steps = [self.settle, self.claim, self.work, self.lose_runner, self.claim, self.talk, self.finish, self.rest]
        while self.step < len(steps):
            try:
                async with open_relay(self.home, self.linear, self.clock, self.runner) as desk:
                    self.fate.is_armed = True
                    await self._follow(desk, steps)
            except* Crash:
                self.restarts += 1
            finally:
                self.fate.is_armed = False

    async def _follow(self, desk: Desk, steps: Sequence[Callable[[Desk], Awaitable[None]]]) -> None:
        while self.step < len(steps):
            await steps[self.step](desk)
            self.step += 1

    async def settle(self, desk: Desk) -> None:
        """Deliver, some of it twice and some of it late, and process; Linear repeats what was not answered."""
        for _ in range(ROUNDS_MAX):
            while (delivery := self.linear.sender.take_due()) is not None:
                await self._send(desk, delivery)
            if self.sent and self.dice.random() < 0.3:
                await self._send(desk, self.dice.choice(self.sent))
            await desk.work()
            if not self.linear.sender.queue:
                return
            self.clock.now = max(self.clock.now, self.linear.sender.queue[0][0])
        raise AssertionError("deliveries do not end")

    async def _send(self, desk: Desk, delivery: Delivery) -> None:
        outcome = "ConnectionError"  # unless there is an answer
        try:
            headers = self.linear.sender.prepare(delivery)
            answer = await desk.http.post("/webhooks/linear", content=delivery.body, headers=headers)
            outcome = str(answer.status_code)
        finally:
            if delivery not in self.sent or outcome != "200":
                self.linear.sender.record(delivery, outcome)
            self.sent.append(delivery)

    async def claim(self, desk: Desk) -> None:
        if self.attempt is not None:
            return
        for _ in range(ROUNDS_MAX):
            assignment = await desk.runner.ask(f"claim-of-story-{self.claims}")
            if assignment is not None:
                self.attempt = Attempt(
                    runner=desk.runner,
                    id=assignment["attemptId"],
                    task_id=assignment["taskId"],
                    fence=assignment["fence"],
                )
                return
            await self.rest(desk)
            await self.outlast_lease(desk)
            self.claims += 1
        raise AssertionError("nothing to claim")

    async def work(self, desk: Desk) -> None:
        attempt = self.attempt
        assert attempt is not None
        await attempt.record(
            fact(0, "workspace", base="main", branch="per-44-rate-limit"),
            fact(1, "session", sessionId="s-1", model="claude-sonnet-4-5"),
            fact(2, "todo", items=[{"title": "Add the middleware", "state": "in_progress"}]),
            fact(3, "tool", name="Edit", summary="route.ts +48 −12", id="t"),
        )
        await desk.work()

    async def lose_runner(self, desk: Desk) -> None:
        """In half of the stories the runner dies, and is noticed only after its lease."""
        if self.attempt is None or self.dice.random() < 0.5:
            return
        self.attempt, self.claims = None, self.claims + 1
        await self.outlast_lease(desk)

    async def outlast_lease(self, desk: Desk) -> None:
        """In small steps: a relay that was away for longer than a lease renews them all."""
        settings = desk.relay.settings
        step = settings.lease / 2
        for _ in range(2 * settings.reclaim_after // step):
            self.clock.advance(step.total_seconds())
            await rescue(desk.relay.database, desk.relay.rules, desk.relay.now())

    async def talk(self, desk: Desk) -> None:
        """A person writes while the agent works."""
        if not any(FOLLOW_UP in one.get("body", "") for one in self.linear.activities(self.session)):
            self.linear.reply(self.session, FOLLOW_UP)
        await self.settle(desk)

    async def finish(self, desk: Desk) -> None:
        attempt = self.attempt
        assert attempt is not None
        known = (await attempt.detail())["task"]["status"]
        if known in ("completed", "failed", "cancelled"):
            return
        number = self.pulls.setdefault("per-44-rate-limit", 324 + len(self.pulls))
        begun = 4 if attempt.fence == 1 else 0
        url = f"https://github.com/{REPOSITORY}/pull/{number}"
        await attempt.record(fact(begun, "pull_request", url=url, number=number, title="PER-44 · Rate-limit"))
        result = {"summary": "Done.", "branch": "per-44-rate-limit", "pullRequest": url, "checksTotal": 1}
        await attempt.finish(begun + 1, message="done", result={**result, "checksPassed": 1})

    async def rest(self, desk: Desk) -> None:
        """Until neither Linear nor the relay has anything to do, however long it waits for."""
        poll = Poll(desk.link)
        for _ in range(ROUNDS_MAX):
            await poll.run(desk.relay.now())
            await self.settle(desk)
            state = (await desk.http.get("/api/linear")).json()
            if not state["inboxWaiting"] and not state["outboxWaiting"] and not self.linear.sender.queue:
                return
            self.clock.advance(61)
        raise AssertionError(f"the relay does not come to rest: {state}")

    @property
    def session(self) -> Entity:
        return self.linear.sessions[0]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an empty database."""
    home = tmp_path_factory.mktemp("sample")
    prepare(Home(home), url="", now=datetime.now(UTC))
    return home


@asynccontextmanager
async def begun_story(seed: int, sample: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Story]:
    """Connected and mapped, and the issue triggered; nothing is delivered yet."""
    shutil.copytree(sample, home)
    dice, clock = random.Random(seed), ManualClock()
    fate = Fate(dice, dice.randint(1, CRASHES_MAX))
    call = LinearApi.call

    async def call_or_crash(api: LinearApi, operation: str, variables: Mapping[str, object] | None = None) -> Any:
        name = operation.split()[1].partition("(")[0]
        fate.pass_by(f"{name}.before")
        answer = await call(api, operation, variables)
        fate.pass_by(f"{name}.after")
        return answer

    monkeypatch.setattr(store, "failpoint", fate.pass_by)
    monkeypatch.setattr(LinearApi, "call", call_or_crash)
    with open_linear(clock) as linear:
        linear.announce_own_sessions = dice.random() < 0.5
        linear.duplicate_ids = dice.choice(["refuse", "return"])
        async with open_relay(home, linear, clock) as desk:
            await connect(desk.http, linear, "client_credentials")
            await desk.map_project()
            issue, runner = desk.per_44(), desk.runner
        trigger = dice.choice(["delegate", "delegate", "mention", "label"])
        if trigger == "delegate":
            linear.delegate_issue(issue)
        elif trigger == "mention":
            linear.mention(issue, "fix this")
        else:
            linear.add_label(issue, "delego:claude-sonnet-4-5")
        yield Story(
            home=home, linear=linear, clock=clock, dice=dice, fate=fate, runner=runner, trigger=trigger, issue=issue
        )


async def check_end(story: Story) -> None:
    async with open_relay(story.home, story.linear, story.clock, story.runner) as desk:
        (task,) = await desk.tasks()
        state = (await desk.http.get("/api/linear")).json()
        (session,) = story.linear.sessions
        said = desk.said(session)
        kinds = [kind for kind, _ in said]
        assert task["status"] == "completed"
        assert kinds.count("response") == 1, said
        assert kinds[-1] == "response"
        assert "error" not in kinds
        assert said.count(("thought", "Sent to the agent.")) == 1
        assert len(story.linear.tables["Attachment"]) == len(story.pulls) == 1
        assert session["plan"] == [{"content": "Add the middleware", "status": "inProgress"}]
        assert desk.state_of(story.issue) == "In Review"
        assert (state["outboxDead"], state["inboxWaiting"], state["outboxWaiting"]) == (0, 0, 0)
    faults = database_faults(f"sqlite:///{Home(story.home).database}")
    assert [fault for fault in faults if "its effects" not in fault] == []  # this runner announces none


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.soak] * (first >= SEEDS_QUICK))
        for first in range(0, SEEDS, SEEDS_PER_TEST)
    ],
)
async def test_one_task_one_pull_request_and_one_report_wherever_relay_and_runner_die(
    first: int, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[str] = []
    for seed in range(first, first + SEEDS_PER_TEST):
        with monkeypatch.context() as patch:
            async with begun_story(seed, sample, tmp_path / str(seed), patch) as story:
                try:
                    await story.live()
                    await check_end(story)
                except BaseException as error:
                    error.add_note(f"seed {seed}, {story.trigger}, struck at {story.fate.struck}")
                    raise
                struck += story.fate.struck

    assert len(struck) > SEEDS_PER_TEST // 2  # the relay did die
