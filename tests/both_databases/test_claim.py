from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
from tests.both_databases.scene import DONE, NOON, Scene, parked_until, runner

from delegate.model import ANY_MACHINE, EventKind, Priority, TaskId
from delegate.queue.claim import ClaimQuery, ClaimResult, claim_if_any, read_claimed_tasks
from delegate.queue.questions import answer, ask
from delegate.states import AttemptState, TaskState
from delegate.store.runners import all_slots, get_slot

pytestmark = pytest.mark.anyio


async def test_a_claim_moves_the_task_to_its_runner(scene: Scene) -> None:
    held = await scene.take()

    task = await scene.task(held)
    [attempt] = await scene.attempts(held)
    assert (task.state, task.fence, task.attempts, task.started_at) == (TaskState.RUNNING, 1, 1, NOON)
    assert (attempt.state, attempt.fence, attempt.number) == (AttemptState.RUNNING, 1, 1)
    assert (attempt.started_at, attempt.renewed_at) == (NOON, NOON)
    assert attempt == held.attempt
    assert task == held.task
    [_, claimed] = await scene.events(held)
    assert (claimed.kind, claimed.attempt_id) == (EventKind.CLAIMED, attempt.id)
    assert claimed.data == {"runnerId": "runner-desk", "runner": "desk", "attempt": 1}


async def test_an_empty_queue_gives_nothing(scene: Scene) -> None:
    assert await scene.claim() is None


async def test_the_more_urgent_task_comes_first_and_of_equals_the_older(scene: Scene) -> None:
    order = [Priority.P2, Priority.P1, Priority.P0, Priority.P2, Priority.P0]
    submitted = [await scene.submit(str(place), priority=priority) for place, priority in enumerate(order)]

    claimed = [await scene.claim() for _ in submitted]

    assert [held.task.prompt for held in claimed if held] == ["2", "4", "1", "0", "3"]


@pytest.mark.promise("P16")
async def test_a_new_p0_goes_before_every_older_task_and_an_old_p2_before_a_new_p1(scene: Scene) -> None:
    for priority in (Priority.P2, Priority.P1):
        await scene.submit(f"old {priority.name}", priority=priority)
    scene.now += timedelta(days=1)
    for priority in (Priority.P1, Priority.P0):
        await scene.submit(f"new {priority.name}", priority=priority)

    claimed = [await scene.claim() for _ in range(4)]

    assert [held.task.prompt for held in claimed if held] == ["new P0", "old P1", "old P2", "new P1"]


@pytest.mark.promise("P16")
@pytest.mark.parametrize("waits", ["for a task", "for a limit", "for an answer"])
async def test_a_task_ages_from_when_it_could_start(scene: Scene, waits: str) -> None:
    first = await scene.submit("first", priority=Priority.P0, agent="claude")
    held = await scene.claim()
    assert held is not None
    if waits == "for a task":
        await scene.submit("aged", agent="claude", depends_on=(first.id,))
    else:
        await scene.finish(held)
        held = await scene.take(prompt="aged", agent="claude")
    if waits == "for an answer":
        await ask(scene.database, held.attempt.id, "Red or blue?", [], scene.now)
        await scene.finish(held)
    if waits == "for a limit":
        await scene.release(held, parked_until(NOON + timedelta(days=1)))
    scene.now += timedelta(days=1)
    await scene.submit("new", priority=Priority.P1)
    if waits == "for a task":
        await scene.finish(held)
    if waits == "for an answer":
        await answer(scene.database, held.task.id, "Red.", request_key=None, now=scene.now)

    claimed = [await scene.claim() for _ in range(2)]

    assert [one.task.prompt for one in claimed if one] == ["new", "aged"]


async def test_urgency_counts_across_lanes(scene: Scene) -> None:
    """Tasks for any machine, for this machine, and for different agents are one queue to a runner that can do all."""
    await scene.submit("old", agent="claude", machine="desk")
    await scene.submit("urgent", agent="shell", machine=ANY_MACHINE, priority=Priority.P0)
    await scene.submit("new", agent="claude", machine=ANY_MACHINE)

    claimed = [await scene.claim() for _ in range(3)]

    assert [held.task.prompt for held in claimed if held] == ["urgent", "old", "new"]


async def test_a_runner_gets_only_tasks_of_its_machine_and_its_agents(scene: Scene) -> None:
    await scene.submit("for the other machine", machine="attic")
    await scene.submit("for the other agent", agent="claude")

    assert await scene.claim(runner(agents=["shell"])) is None

    at_attic = await scene.claim(runner("otto", machine="attic", agents=["shell"]))
    with_claude = await scene.claim(runner("eve", agents=["claude"]))
    assert at_attic is not None
    assert with_claude is not None
    assert (at_attic.task.prompt, with_claude.task.prompt) == ("for the other machine", "for the other agent")


async def test_an_agent_that_is_parked_on_a_runner_gets_nothing_there(scene: Scene) -> None:
    await scene.submit(agent="claude")

    assert await scene.claim(claude=NOON + timedelta(hours=1)) is None
    assert await scene.claim(runner("eve")) is not None


async def test_a_claim_tells_what_its_runner_can_do_now(scene: Scene) -> None:
    anna = await scene.register(runner(agents=["shell"]))
    scene.now += timedelta(seconds=7)
    until = NOON + timedelta(hours=1)

    await scene.claim(runner(agents=["shell", "claude"]), claude=until)

    [known] = await scene.database.read(all_slots)
    assert (known.id, known.agents, known.parked) == (anna.id, ("shell", "claude"), {"claude": until})
    assert (known.registered_at, known.seen_at) == (NOON, scene.now)


async def test_a_parked_task_is_claimable_from_its_moment_on_and_not_before(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    until = NOON + timedelta(minutes=1)
    await scene.finish(held, parked_until(until))

    scene.now = until - timedelta(microseconds=1)
    assert await scene.claim() is None
    scene.now = until
    again = await scene.claim()

    assert again is not None
    assert (again.task.id, again.task.not_before) == (held.task.id, None)


async def test_a_parked_task_does_not_hold_up_the_ones_behind_it(scene: Scene) -> None:
    first = await scene.take(agent="claude", priority=Priority.P0)
    await scene.finish(first, parked_until(NOON + timedelta(hours=1)))
    second = await scene.submit(agent="claude")

    held = await scene.claim()

    assert held is not None
    assert held.task.id == second.id


@pytest.mark.promise("P3")
async def test_every_claim_raises_the_fence(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    fences = [held.attempt.fence]
    for _ in range(3):
        await scene.release(held)
        again = await scene.claim()
        assert again is not None
        held = again
        fences.append(held.attempt.fence)

    assert fences == [1, 2, 3, 4]
    assert (await scene.task(held)).fence == 4


@pytest.mark.promise("P3")
async def test_a_claim_repeated_with_its_id_gives_the_same_attempt(scene: Scene) -> None:
    await scene.submit("first")
    await scene.submit("second")

    first = await scene.claim(claim_id="claim-1")
    again = await scene.claim(claim_id="claim-1")

    assert first is not None
    assert again == first
    assert await scene.claim(runner("eve"), claim_id="claim-1") is None
    assert len(await scene.attempts(first)) == 1


@pytest.mark.promise("P3")
async def test_a_claim_sent_many_times_at_once_gives_one_attempt(scene: Scene) -> None:
    for _ in range(8):
        await scene.submit()
    answers: set[TaskId] = set()

    async def ask() -> None:
        held = await scene.claim(claim_id="claim-1")
        assert held is not None
        answers.add(held.task.id)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ask)

    assert len(answers) == 1


async def test_a_claim_id_that_is_used_up_gives_nothing(scene: Scene) -> None:
    await scene.submit("first")
    await scene.submit("second")
    held = await scene.claim(claim_id="claim-1")
    assert held is not None
    await scene.finish(held, DONE)

    assert await scene.claim(claim_id="claim-1") is None
    assert await scene.claim(runner("eve"), claim_id="claim-1") is None


async def test_a_runner_that_starts_again_learns_what_it_holds(scene: Scene) -> None:
    mine = await scene.take()
    await scene.take(runner("eve"))

    assert await read_claimed_tasks(scene.database, runner()) == [mine]
    await scene.finish(mine)
    assert await read_claimed_tasks(scene.database, runner()) == []


async def test_an_idle_runner_that_asks_again_writes_nothing(scene: Scene) -> None:
    anna = await scene.register(runner())
    query = ClaimQuery(claim_id="claim-idle", slot=anna, agents=anna.agents, parked={})
    before = await scene.database.read(lambda c: get_slot(c, anna.id))
    await scene.pass_time(timedelta(seconds=1))

    nothing = await claim_if_any(scene.database, query, scene.rules, scene.now)

    assert nothing == ClaimResult()
    assert await scene.database.read(lambda c: get_slot(c, anna.id)) == before


async def test_a_runner_that_asks_again_gets_what_has_come_meanwhile(scene: Scene) -> None:
    anna = await scene.register(runner())
    query = ClaimQuery(claim_id="claim-late", slot=anna, agents=anna.agents, parked={})
    task = await scene.submit()

    held = (await claim_if_any(scene.database, query, scene.rules, scene.now)).held

    assert held is not None
    assert held.task.id == task.id
