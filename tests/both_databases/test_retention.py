from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select
from tests.both_databases.scene import DONE, NOON, Scene, output, runner
from tests.both_databases.test_record import kept

from delegate.config.settings import Settings
from delegate.config.values import MIB
from delegate.intake.messages import send_message
from delegate.queue.claim import ClaimedTask
from delegate.report.retention import RUNNER_FORGOTTEN_AFTER, retain
from delegate.store.database import Connection
from delegate.store.runners import all_runners
from delegate.store.tables import metadata

pytestmark = pytest.mark.anyio


async def ended(scene: Scene, *chunks: bytes) -> ClaimedTask:
    held = await scene.take(agent="claude")
    await send_message(scene.database, held.task.id, "go on", request_key=None, now=scene.now)
    if chunks:
        await scene.record(held, *[output(seq, chunk) for seq, chunk in enumerate(chunks)])
    await scene.finish(held, DONE, next_seq=len(chunks))
    return held


async def rows(scene: Scene) -> dict[str, int]:
    names = ("task", "attempt", "event", "output", "message")

    def count(connection: Connection) -> dict[str, int]:
        queries = [select(func.count()).select_from(metadata.tables[name]) for name in names]
        return {name: connection.execute(query).scalar_one() for name, query in zip(names, queries, strict=True)}

    return await scene.database.read(count)


async def test_an_ended_task_goes_with_everything_when_it_is_old_enough(scene: Scene) -> None:
    settings = Settings(retention_days=30)
    await ended(scene, b"words")
    scene.now += timedelta(days=30)

    assert await retain(scene.database, settings, scene.now) == 0
    assert await retain(scene.database, settings, scene.now + timedelta(microseconds=1)) == 1

    assert set((await rows(scene)).values()) == {0}


async def test_a_task_that_has_not_ended_is_kept_however_old(scene: Scene) -> None:
    await scene.take(agent="claude")
    queued = await scene.submit()

    assert await retain(scene.database, Settings(retention_days=1), NOON + timedelta(days=1000)) == 0

    assert (await rows(scene))["task"] == 2
    assert await scene.task(queued) == queued


async def test_too_much_output_costs_the_oldest_tasks_theirs_and_no_more_than_needed(scene: Scene) -> None:
    held = []
    for _ in range(4):
        held.append(await ended(scene, b"x" * 300_000, b"y" * 100_000))
        scene.now += timedelta(minutes=1)

    assert await retain(scene.database, Settings(retention_bytes=MIB), scene.now) == 2

    sizes = [sum(len(chunk.data) for chunk in await kept(scene, one.attempt.id)) for one in held]
    assert sizes == [0, 0, 400_000, 400_000]
    assert (await rows(scene))["task"] == 4


async def test_output_of_a_running_task_is_kept_even_when_it_alone_is_too_much(scene: Scene) -> None:
    held = await scene.take()
    for seq in range(5):
        await scene.record(held, output(seq, b"z" * 250_000))

    assert await retain(scene.database, Settings(retention_bytes=MIB), scene.now) == 0

    assert len(await kept(scene, held.attempt.id)) == 5


async def test_a_runner_that_was_not_seen_for_a_week_is_forgotten(scene: Scene) -> None:
    await scene.register(runner("old"))
    scene.now += RUNNER_FORGOTTEN_AFTER
    await scene.register(runner("new"))
    await scene.claim(runner("new"))

    await retain(scene.database, Settings(), scene.now + timedelta(microseconds=1))

    assert [known.name for known in await scene.database.read(all_runners)] == ["new"]
