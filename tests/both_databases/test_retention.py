from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select
from tests.both_databases.clockwork import BAD, HOURLY, MINUTE, Clockwork
from tests.both_databases.scene import DONE, NOON, Scene, output, runner
from tests.both_databases.test_record import kept

from delegate.config.settings import Settings
from delegate.config.values import MIB
from delegate.errors import NoSuchTask
from delegate.intake.messages import send_message
from delegate.queue.claim import ClaimedTask
from delegate.report import retention
from delegate.report.retention import RUNNER_FORGOTTEN_AFTER, retain
from delegate.store.database import Connection
from delegate.store.retention import drop_ended_before
from delegate.store.runners import all_slots
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


async def test_a_lineage_stays_whole_while_one_of_its_tasks_is_kept(scene: Scene) -> None:
    settings = Settings(retention_days=30)
    other = await ended(scene)
    first = await scene.finish(await scene.take(agent="claude"), BAD)
    second = await scene.retry(first)
    scene.now += timedelta(days=31)

    assert await retain(scene.database, settings, scene.now) == 1
    held = await scene.claim()
    assert held is not None
    assert held.continuation.checkpoint is not None
    await scene.finish(held)
    assert await retain(scene.database, settings, scene.now) == 0

    assert (await scene.task(first)).id == first.id
    assert await retain(scene.database, settings, scene.now + timedelta(days=31)) == 2
    for gone in (first, second, other):
        with pytest.raises(NoSuchTask):
            await scene.task(gone)


async def test_a_lineage_that_a_schedule_names_stays_and_holds_up_no_other(clock: Clockwork) -> None:
    scene = clock.scene
    task = await scene.submit()
    for _ in range(3):
        task = await scene.retry(await clock.ends(BAD))
    await clock.ends()
    await clock.create(cronExpression=HOURLY, dependsOn=[task.id])
    await ended(scene)
    later = scene.now + timedelta(days=1)

    dropped = [await scene.database.write("drop", lambda c: drop_ended_before(c, later, 1)) for _ in range(3)]

    assert dropped == [1, 0, 0]
    assert (await rows(scene))["task"] == 4


async def test_a_step_deletes_whole_lineages_but_not_many_tasks(clock: Clockwork) -> None:
    scene = clock.scene
    for _ in range(2):
        await scene.submit()
        await scene.retry(await clock.ends(BAD))
        await scene.retry(await clock.ends(BAD))
        await clock.ends()
    later = scene.now + timedelta(days=1)

    dropped = [await scene.database.write("drop", lambda c: drop_ended_before(c, later, 4)) for _ in range(3)]

    assert dropped == [3, 3, 0]


async def test_a_schedule_keeps_only_so_many_runs(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RUNS_MAX", 1)
    busy = await clock.create(cronExpression="* * * * *")
    rare = await clock.create(cronExpression=HOURLY)
    open_since = await clock.create(cronExpression="* * * * *", machine="attic")
    for minute in range(1, 7):
        await clock.at(NOON + minute * MINUTE)
        await clock.ends()

    await retain(clock.scene.database, Settings(), clock.scene.now)

    assert [run.occurrence for run in await clock.history(busy)] == [clock.scene.now]
    assert await clock.outcomes(rare) == []
    assert await clock.outcomes(open_since) == ["started", "overlapped"]


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

    assert [known.name for known in await scene.database.read(all_slots)] == ["new"]
