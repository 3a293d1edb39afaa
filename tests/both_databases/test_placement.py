"""Who gets which task, and why a task waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.both_databases.scene import DONE, HANDED_BACK, NOON, Scene, runner

from delegate.model import (
    ANY_MACHINE,
    Actor,
    Checkpoint,
    EventKind,
    Mode,
    Outcome,
    PersonId,
    RunnerId,
    RunnerSlot,
    Task,
)
from delegate.placement import AcceptFrom, Policy
from delegate.queue.claim import ClaimedTask
from delegate.queue.questions import answer, ask
from delegate.queue.rescue import end_preferences
from delegate.queue.waiting import why
from delegate.states import AttemptState, Reason, TaskState

pytestmark = pytest.mark.anyio
MAREK, EVE = (Actor(name=name, person_id=PersonId(f"user-{name}")) for name in ("marek", "eve"))
SHOP: dict[str, Any] = {
    "repository": "git@github.com:acme/shop.git",
    "mode": Mode.PULL_REQUEST,
    "agent": "claude",
    "by": MAREK,
}
FAILED = Outcome(state=AttemptState.FAILED, reason=Reason.CRASHED, message="it crashed", session_id="s-1")
ASKED = Outcome(state=AttemptState.RELEASED, reason=Reason.QUESTION, message="", session_id="s-1")


def paired(name: str, policy: Policy | None = None, **fields: Any) -> RunnerSlot:
    slot = runner("1", machine=name, agents=["claude", "shell"])
    policy = policy or Policy(repositories=("github.com/acme/shop",))
    return replace(
        slot, runner=replace(slot.runner, is_paired=True, policy=policy, paired_by=MAREK.person_id, **fields)
    )


async def start(scene: Scene, by: RunnerSlot) -> ClaimedTask:
    task = await scene.submit(**SHOP)
    held = await scene.claim(by)
    assert held is not None
    assert held.task.id == task.id
    return held


async def reason_of(scene: Scene, task: Task) -> str | None:
    return why(task, await scene.snapshot(task))


async def test_any_runner_that_accepts_the_repository_may_take_the_task(scene: Scene) -> None:
    task = await scene.submit(**SHOP)

    assert task.machine == ANY_MACHINE
    assert await scene.claim(paired("loft", Policy(repositories=("github.com/acme/other",)))) is None
    held = await scene.claim(paired("studio"))
    assert held is not None
    assert held.task.id == task.id


async def test_a_refused_task_does_not_hide_the_one_behind_it(scene: Scene) -> None:
    await scene.submit(**{**SHOP, "by": EVE})
    mine = await scene.submit(**SHOP)

    held = await scene.claim(paired("studio"))

    assert held is not None
    assert held.task.id == mine.id


async def test_tasks_of_many_lanes_are_claimed_by_priority_and_age(scene: Scene) -> None:
    wide = paired("studio", Policy(repositories=None, accept_from=(AcceptFrom.MEMBERS,)))
    submitted = [await scene.submit(**{**SHOP, "repository": f"acme/shop-{number}"}) for number in range(70)]

    claimed = [held.task.id for _ in submitted if (held := await scene.claim(wide)) is not None]

    assert claimed == [task.id for task in submitted]


async def test_a_pinned_task_waits_for_its_runner(scene: Scene) -> None:
    studio, loft = await scene.register(paired("studio")), await scene.register(paired("loft"))
    task = await scene.submit(**SHOP, runner="studio")

    assert await scene.claim(loft) is None
    held = await scene.claim(studio)
    assert held is not None
    assert held.task.id == task.id


async def test_a_task_with_tags_waits_for_a_runner_that_has_them_all(scene: Scene) -> None:
    await scene.submit(**SHOP, tags=("mac", "gpu"))

    assert await scene.claim(paired("loft", tags=("gpu",))) is None
    assert await scene.claim(paired("studio", tags=("gpu", "mac", "more"))) is not None


async def test_a_silent_runners_task_goes_only_to_a_runner_that_accepts_it(scene: Scene) -> None:
    studio = await scene.register(paired("studio"))
    await start(scene, studio)
    await scene.pass_time(timedelta(minutes=11))

    assert await scene.claim(paired("loft", Policy(repositories=()))) is None
    assert await scene.claim(paired("attic")) is not None


@pytest.mark.parametrize(
    ("runners", "fields", "expected"),
    [
        ([paired("studio", Policy(repositories=()))], {}, "studio does not accept acme/shop"),
        (
            [paired("studio", Policy(repositories=())), paired("loft", Policy(repositories=()))],
            {},
            "loft does not accept acme/shop, and 1 more refuse it",
        ),
        ([paired("studio")], {"by": EVE}, "studio accepts only tasks of its owner"),
        ([paired("studio")], {"runner": "attic"}, "no runner is named attic"),
        ([paired("studio"), paired("loft", Policy(agents=()))], {"runner": "loft"}, "loft does not accept claude"),
        ([paired("studio")], {"tags": ("gpu",)}, "no online runner has the tag gpu"),
        ([paired("studio", draining_at=NOON)], {}, "studio is draining and takes no new tasks"),
        ([paired("studio")], {}, "next in line for a free runner"),
    ],
)
async def test_a_task_says_why_no_runner_takes_it(
    scene: Scene, runners: list[RunnerSlot], fields: dict[str, Any], expected: str
) -> None:
    for one in runners:
        await scene.register(one)
    task = await scene.submit(**{**SHOP, **fields})

    assert await reason_of(scene, task) == expected


async def test_a_pinned_runner_that_is_away_is_named(scene: Scene) -> None:
    await scene.register(paired("studio"))
    task = await scene.submit(**SHOP, runner="studio")
    scene.now += timedelta(hours=1)

    assert await reason_of(scene, task) == "its runner studio is not connected"


async def continue_by(scene: Scene, way: str, studio: RunnerSlot) -> Task:
    held = await start(scene, studio)
    if way == "answer":
        await ask(scene.database, held.attempt.id, "Which one?", (), scene.now)
        await scene.finish(held, ASKED)
        return await answer(scene.database, held.task.id, "Both.", request_key=None, now=scene.now)
    left = Checkpoint(session_id="s-1", branch="work-1", is_work_done=True)
    failed = await scene.finish(held, replace(FAILED, checkpoint=left))
    return await (scene.retry(failed) if way == "retry" else scene.resume(failed))


@pytest.mark.parametrize("way", ["answer", "retry", "resume"])
async def test_the_runner_with_the_session_is_preferred_for_a_while(scene: Scene, way: str) -> None:
    studio, loft = await scene.register(paired("studio")), await scene.register(paired("loft"))
    task = await continue_by(scene, way, studio)

    assert await scene.claim(loft) is None
    scene.now += scene.rules.session_wait - timedelta(microseconds=1)
    assert await end_preferences(scene.database, scene.rules, scene.now) == []
    held = await scene.claim(studio)

    assert held is not None
    assert (held.task.id, held.task.session_id) == (task.id, "s-1")
    assert EventKind.WARNING not in await scene.kinds(held)


@pytest.mark.parametrize("way", ["answer", "retry", "resume"])
async def test_after_that_another_runner_begins_a_new_session_and_says_so(scene: Scene, way: str) -> None:
    studio, loft = await scene.register(paired("studio")), await scene.register(paired("loft"))
    task = await continue_by(scene, way, studio)
    scene.now += timedelta(minutes=1)
    await scene.claim(loft)  # it is online
    waiting = await reason_of(scene, await scene.task(task))
    scene.now += scene.rules.session_wait

    (freed,) = await end_preferences(scene.database, scene.rules, scene.now)
    held = await scene.claim(loft)

    assert waiting == "next in line for a free runner"
    assert freed.task.id == task.id
    assert held is not None
    assert (held.task.id, held.task.session_id) == (task.id, None)
    assert (await scene.task(held)).session_id is None
    texts = [event.data["text"] for event in await scene.events(held) if event.kind is EventKind.WARNING]
    assert texts == ["continues on loft in a new session, from the last pushed commit: studio has its session"]
    if held.continuation.checkpoint is not None:
        assert (held.continuation.checkpoint.session_id, held.continuation.checkpoint.is_work_done) == (None, False)


async def test_a_task_whose_preferred_runner_is_away_says_so(scene: Scene) -> None:
    studio, loft = await scene.register(paired("studio")), await scene.register(paired("loft"))
    task = await continue_by(scene, "retry", studio)
    scene.now += timedelta(minutes=5)
    await scene.claim(loft)

    reason = await reason_of(scene, await scene.task(task))

    assert reason == "waits up to 10 minutes for the runner that has its session; then another one may take it"


async def test_a_task_in_place_stays_on_its_machine(scene: Scene) -> None:
    desk = await scene.register(runner())
    held = await scene.take(desk, agent="claude")
    failed = await scene.finish(held, FAILED)

    retried = await scene.retry(failed)
    scene.now += timedelta(days=1)

    assert (retried.machine, retried.prefers) == ("desk", None)
    assert await end_preferences(scene.database, scene.rules, scene.now) == []
    assert await scene.claim(runner(machine="attic")) is None


async def test_another_process_of_the_same_runner_keeps_the_session(scene: Scene) -> None:
    first, second = await scene.register(runner("1")), await scene.register(runner("2"))
    fields = {"repository": "acme/shop", "mode": Mode.WORKTREE, "agent": "claude"}
    failed = await scene.finish(await scene.take(first, **fields), FAILED)
    await scene.retry(failed)

    held = await scene.claim(second)

    assert held is not None
    assert held.task.session_id == "s-1"


async def test_a_task_that_was_handed_back_may_go_anywhere_at_once(scene: Scene) -> None:
    studio, loft = await scene.register(paired("studio")), await scene.register(paired("loft"))
    held = await start(scene, studio)
    await scene.release(held, replace(HANDED_BACK, session_id="s-1"))

    again = await scene.claim(loft)

    assert again is not None
    assert (again.task.id, again.task.session_id) == (held.task.id, None)
    assert again.attempt.runner_id == RunnerId("runner-loft")
    assert (await scene.finish(again, DONE)).state is TaskState.COMPLETED
