"""Effects are announced first, and a task does not complete while one is only announced."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.both_databases.scene import COMMIT, GONE, RECLAIM_AFTER, Scene, runner

from delegate.errors import EffectsOpen, Forbidden, IllegalMove, NoSuchTask, StaleFence
from delegate.model import EffectKind, EffectState, Mode, Outcome, RunnerSlot, Task, TaskId
from delegate.queue.claim import ClaimedTask
from delegate.report.effects import ChainEffects, read_chain_effects
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.database import Connection
from delegate.store.effects import effects_of, put_effect

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P2")]
OTHER_COMMIT = "2" * 40
URL = "https://github.example/o/n/pull/7"
FAILED = Outcome(state=AttemptState.FAILED, reason=Reason.CHECKS_FAILED, message="red")


async def publish(scene: Scene, by: RunnerSlot | None = None, **fields: object) -> ClaimedTask:
    return await scene.take(by, **{"agent": "claude", "mode": Mode.PULL_REQUEST, **fields})


async def seen(scene: Scene, task: Task | ClaimedTask, by: RunnerSlot | None = None) -> ChainEffects:
    task_id = task.task.id if isinstance(task, ClaimedTask) else task.id
    return await read_chain_effects(scene.database, task_id, by or runner())


async def test_an_effect_is_announced_done_and_reported_to_the_next_attempt(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    await scene.announce(held, EffectState.DONE, external_id=COMMIT)
    await scene.announce(held, EffectState.INTENT, kind=EffectKind.PULL_REQUEST)
    await scene.release(held, GONE)

    again = await scene.claim()

    assert again is not None
    assert [(e.kind, e.state, e.fence, e.expected, e.external_id) for e in again.continuation.effects] == [
        (EffectKind.PUSH, EffectState.DONE, 1, COMMIT, COMMIT),
        (EffectKind.PULL_REQUEST, EffectState.INTENT, 1, COMMIT, None),
    ]


async def test_a_second_try_does_not_make_forget_what_the_first_meant_to_push(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    await scene.release(held, GONE)
    second = await scene.claim()
    assert second is not None
    await scene.announce(second, EffectState.INTENT, expected=OTHER_COMMIT)
    await scene.release(second, GONE)

    third = await scene.claim()

    assert third is not None
    assert [(effect.fence, effect.expected) for effect in third.continuation.effects] == [
        (1, COMMIT),
        (2, OTHER_COMMIT),
    ]


async def test_what_was_made_is_kept_when_the_same_try_begins_again(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    await scene.announce(held, EffectState.DONE, external_id=COMMIT)
    await scene.announce(held, EffectState.INTENT, expected=OTHER_COMMIT)

    [effect] = (await seen(scene, held)).effects

    assert (effect.state, effect.expected, effect.external_id) == (EffectState.INTENT, OTHER_COMMIT, COMMIT)


async def test_the_first_attempt_of_a_task_has_nothing_to_inherit(scene: Scene) -> None:
    held = await publish(scene)

    assert (held.continuation.effects, held.continuation.checkpoint) == ((), None)


async def test_a_task_with_an_open_effect_cannot_be_completed(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)

    with pytest.raises(EffectsOpen, match=f"task {held.task.id} has unresolved effects: push"):
        await scene.finish(held)

    assert (await scene.task(held)).state is TaskState.RUNNING


@pytest.mark.parametrize("state", [EffectState.DONE, EffectState.ABANDONED])
async def test_a_task_whose_effects_are_settled_can_be_completed(scene: Scene, state: EffectState) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    await scene.announce(held, state)

    assert (await scene.finish(held)).state is TaskState.COMPLETED


async def test_an_open_effect_of_a_lost_attempt_is_settled_by_the_next(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    await scene.release(held, GONE)
    again = await scene.claim()
    assert again is not None

    with pytest.raises(EffectsOpen):
        await scene.finish(again)
    await scene.announce(again, EffectState.DONE, external_id=COMMIT)

    assert (await scene.finish(again)).state is TaskState.COMPLETED


async def test_a_task_with_an_open_effect_may_fail(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)

    assert (await scene.finish(held, FAILED)).state is TaskState.FAILED


@pytest.mark.promise("P3")
async def test_a_runner_that_was_replaced_cannot_announce_anything(scene: Scene) -> None:
    held = await publish(scene)
    await scene.pass_time(RECLAIM_AFTER + timedelta(seconds=1))
    again = await scene.claim(runner("eve"))
    assert again is not None

    with pytest.raises(StaleFence):
        await scene.announce(held, EffectState.INTENT)

    assert (await seen(scene, held, runner("eve"))).effects == []


async def test_an_announcement_renews_the_lease_and_brings_the_news(scene: Scene) -> None:
    held = await publish(scene)
    await scene.pass_time(timedelta(minutes=1))
    await scene.cancel(held.task, "enough")

    standing = await scene.announce(held, EffectState.INTENT)

    assert standing.cancel == "enough"
    [attempt] = await scene.attempts(held)
    assert attempt.renewed_at == scene.now


async def test_a_task_that_works_in_place_has_nothing_to_announce(scene: Scene) -> None:
    held = await scene.take(agent="claude")

    with pytest.raises(IllegalMove, match="cannot be published"):
        await scene.announce(held, EffectState.INTENT)


async def test_a_runner_may_read_only_tasks_that_its_machine_has_held(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.DONE, kind=EffectKind.PULL_REQUEST, external_id=URL)
    await scene.finish(held)

    found = [await seen(scene, held, by) for by in (runner(), runner("eve"))]

    for one in found:
        assert (one.state, [effect.external_id for effect in one.effects]) == (TaskState.COMPLETED, [URL])
    with pytest.raises(Forbidden):
        await seen(scene, held, runner("otto", machine="attic"))
    with pytest.raises(NoSuchTask):
        await read_chain_effects(scene.database, TaskId("task-none"), runner())


async def test_an_ended_task_counts_as_going_on_while_a_retry_may_adopt_what_it_left(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)
    failed = await scene.finish(held, FAILED)
    await scene.retry(failed)

    assert (await seen(scene, failed)).state is TaskState.QUEUED
    again = await scene.claim(runner("eve"))
    assert again is not None
    await scene.announce(again, EffectState.DONE, external_id=COMMIT)
    await scene.finish(again)

    found = await seen(scene, failed)
    assert found.state is TaskState.FAILED
    assert [effect.task_id for effect in found.effects] == [failed.id, again.task.id]


async def test_telling_the_same_twice_is_telling_it_once(scene: Scene) -> None:
    held = await publish(scene)
    await scene.announce(held, EffectState.INTENT)

    def twice(connection: Connection) -> int:
        [effect] = effects_of(connection, [held.task.id])
        put_effect(connection, effect)
        return len(effects_of(connection, [held.task.id]))

    assert await scene.database.write("twice", twice) == 1
