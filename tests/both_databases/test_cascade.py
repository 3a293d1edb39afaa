"""One end that settles many tasks, and ends that meet: bounded, in one order, and none forgotten."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from sqlalchemy import text, update
from tests.both_databases.scene import RECLAIM_AFTER, Scene, runner
from tests.both_databases.test_plans import overheard
from tests.databases import empty

from delegate.config.settings import Settings
from delegate.errors import IllegalMove, InvalidField, KeyUsed
from delegate.intake import dependencies
from delegate.intake.batch import BatchItem, submit_batch
from delegate.intake.retry import resume, retry
from delegate.intake.submit import Request
from delegate.model import EventKind, OnDependencyFailure, Task
from delegate.queue import cascade, questions, rescue
from delegate.queue.cascade import settle_blocked
from delegate.queue.finish import cancel
from delegate.queue.placement import scope_of
from delegate.relay.housekeeping import run_housekeeping
from delegate.relay.requests import Relay
from delegate.states import Reason, TaskState
from delegate.store import database, graph, tables
from delegate.store.database import Connection, open_database
from delegate.store.runners import mark_relay_seen

pytestmark = pytest.mark.anyio
RUN = OnDependencyFailure.RUN
LOCK_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def after(scene: Scene, *others: Task, **fields: Any) -> Task:
    return await scene.submit(depends_on=tuple(other.id for other in others), **fields)


async def settle_all(scene: Scene) -> list[int]:
    """Until nothing is left to do; how many moved in each transaction."""
    counts = []
    while moved := await settle_blocked(scene.database, scene.now):
        counts.append(len(moved))
    return counts


async def test_so_many_tasks_may_depend_on_one_and_no_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "DEPENDENTS_MAX", 2)
    top, other = await scene.submit(), await scene.submit()
    first, _ = await after(scene, top), await after(scene, other, top)

    with pytest.raises(InvalidField) as caught:
        await after(scene, other, top)

    assert caught.value.message == (
        f"dependsOn: cannot name {top.id}: 2 tasks depend on it, and the limit is 2; "
        "add a task in between, or depend on one of those"
    )
    with pytest.raises(InvalidField, match="continueFrom: cannot name"):
        await scene.submit(continue_from=top.id)
    await after(scene, first)


async def test_an_ended_task_may_be_depended_on_by_any_number(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "DEPENDENTS_MAX", 1)
    done = await scene.finish(await scene.take())

    created = [await after(scene, done) for _ in range(3)]

    assert [task.state for task in created] == [TaskState.QUEUED] * 3


@pytest.mark.promise("P16")
async def test_an_end_that_too_many_wait_for_leaves_the_rest_for_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "CASCADE_MAX", 4)
    monkeypatch.setattr(cascade, "DEPENDENTS_PER_STATEMENT", 3)
    top = await scene.submit()
    near = [await after(scene, top) for _ in range(6)]
    far = [await after(scene, one) for one in near]
    cleanup = await after(scene, *far, on_dependency_failure=RUN)

    moved = await cancel(scene.database, top.id, "not needed", scene.now)

    assert [task.id for task in moved.others] == [task.id for task in near[:4]]
    assert await settle_all(scene) == [4, 4, 1]
    ended = [await scene.task(task) for task in (*near, *far)]
    assert {(task.state, task.reason) for task in ended} == {(TaskState.CANCELLED, Reason.DEPENDENCY_FAILED)}
    assert [await scene.kinds(task) for task in far] == [[EventKind.SUBMITTED, EventKind.FINISHED]] * 6
    assert (await scene.kinds(cleanup), (await scene.task(cleanup)).state) == (
        [EventKind.SUBMITTED, EventKind.READY],
        TaskState.QUEUED,
    )


async def test_of_many_lost_tasks_some_are_rescued_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "CASCADE_MAX", 2)
    held = [await scene.take() for _ in range(3)]
    waiting = [await after(scene, one.task) for one in held]
    scene.now += rescue.ABANDONED_AFTER + RECLAIM_AFTER
    await scene.database.write("seen", lambda c: mark_relay_seen(c, scene.now))

    assert [len(await scene.tick()) for _ in range(3)] == [2, 1, 0]
    assert {(await scene.task(task)).state for task in waiting} == {TaskState.CANCELLED}


async def test_what_still_has_to_wait_is_not_late(scene: Scene) -> None:
    held, bad = await scene.take(), await scene.submit()
    await after(scene, held.task)
    await after(scene, bad, held.task, on_dependency_failure=RUN)
    await scene.cancel(bad)

    assert await settle_blocked(scene.database, scene.now) == []


async def test_a_task_that_an_end_has_missed_is_found(scene: Scene) -> None:
    top = await scene.submit()
    waiting = await after(scene, top)
    ended = update(tables.task).where(tables.task.c.id == top.id).values(state=TaskState.COMPLETED)
    await scene.database.write("miss", lambda connection: connection.execute(ended))

    (moved,) = await settle_blocked(scene.database, scene.now)

    assert (moved.id, moved.state) == (waiting.id, TaskState.QUEUED)
    assert await scene.kinds(waiting) == [EventKind.SUBMITTED, EventKind.READY]


async def test_the_relay_looks_for_those_that_were_missed(scene: Scene, tmp_path: Path) -> None:
    top = await scene.submit()
    waiting = await after(scene, top)
    ended = update(tables.task).where(tables.task.c.id == top.id).values(state=TaskState.COMPLETED)
    await scene.database.write("miss", lambda connection: connection.execute(ended))
    relay = Relay(settings=Settings(home=tmp_path), database=scene.database, token_hash="", started_at=scene.now)

    with anyio.fail_after(5), relay.hub.add_waiter(scope_of(runner().runner, ["shell"])) as waiter:
        async with anyio.create_task_group() as group:
            group.start_soon(run_housekeeping, relay)
            await waiter.woken.wait()
            group.cancel_scope.cancel()

    assert (await scene.task(waiting)).state is TaskState.QUEUED


async def test_an_end_asks_no_more_for_many_that_wait_than_for_few(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def statements(count: int) -> int:
        top = await scene.submit()
        for _ in range(count):
            await after(scene, top)
        with overheard() as sent:
            await scene.cancel(top)
        return len(sent)

    assert await statements(2) == await statements(30)
    monkeypatch.setattr(graph, "IDS_AT_ONCE", 7)
    assert await statements(30) > await statements(2)


@pytest.mark.promise("P16")
async def test_a_cascade_goes_from_the_shallow_to_the_deep(scene: Scene) -> None:
    """Else two of them lock the same tasks in two orders, and wait for each other."""
    one, two = await scene.submit(), await scene.submit()
    shallow = await after(scene, one)
    middle = await after(scene, shallow, two)
    deep = await after(scene, one, middle)

    moved = await cancel(scene.database, one.id, "", scene.now)

    assert [task.id for task in moved.others] == [shallow.id, middle.id, deep.id]


async def test_a_change_that_was_not_written_is_not_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = await scene.take(), await scene.submit()
    waiting = [await after(scene, good.task), await after(scene, bad)]
    for verb in ("release_blocked", "cancel_blocked"):
        monkeypatch.setattr(cascade, verb, lambda *_: 0)

    with pytest.raises(IllegalMove, match="no longer blocked"):
        await scene.finish(good)
    with pytest.raises(IllegalMove, match="no longer blocked"):
        await scene.cancel(bad)

    assert [await scene.kinds(task) for task in waiting] == [[EventKind.SUBMITTED]] * 2


@pytest.mark.parametrize("verb", ["keep_questions", "queue_answered"])
async def test_an_answer_that_was_not_written_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    held = await scene.take(agent="claude")
    await questions.ask(scene.database, held.attempt.id, "Red or blue?", [], scene.now)
    await scene.finish(held)
    monkeypatch.setattr(questions, verb, lambda *_: False)

    with pytest.raises(IllegalMove, match="no longer waiting"):
        await questions.answer(scene.database, held.task.id, "Red.", request_key=None, now=scene.now)

    assert EventKind.ANSWER not in await scene.kinds(held)


async def test_the_key_of_one_request_is_refused_for_another(scene: Scene) -> None:
    unrelated = await scene.submit(request_key="k-1")
    old, other = await scene.cancel(await scene.submit()), await scene.cancel(await scene.submit())
    made = await retry(scene.database, old.id, "k-2", scene.now)

    assert (await retry(scene.database, old.id, "k-2", scene.now)).task == made.task
    for task, key in ((old, "k-1"), (other, "k-2")):
        with pytest.raises(KeyUsed, match="used for a different request"):
            await retry(scene.database, task.id, key, scene.now)
    with pytest.raises(KeyUsed, match="used for a different request"):
        await scene.submit(request_key="k-2")
    assert await scene.submit(request_key="k-1") == unrelated


async def test_a_key_of_a_retry_is_not_good_for_a_resume_nor_the_other_way_round(scene: Scene) -> None:
    old = await scene.cancel(await scene.submit())
    retried = await retry(scene.database, old.id, "k-1", scene.now)
    for context in ("mind the tests", None):
        with pytest.raises(KeyUsed, match="used for a different request"):
            await resume(scene.database, old.id, context, request_key="k-1", now=scene.now)

    await scene.cancel(retried.task)
    resumed = await resume(scene.database, old.id, "mind the tests", request_key="k-2", now=scene.now)
    with pytest.raises(KeyUsed, match="used for a different request"):
        await retry(scene.database, old.id, "k-2", scene.now)

    again = await resume(scene.database, old.id, "mind the tests", request_key="k-2", now=scene.now)
    assert (again.task, again.is_new) == (resumed.task, False)


@pytest.mark.real
async def test_all_that_a_batch_waits_for_is_held_at_once(busy: Scene) -> None:
    """One by one there would be no order among the locks of two batches."""
    one, two = await busy.submit(), await busy.submit()
    place: dict[str, Any] = {"prompt": "true", "agent": "shell", "machine": "desk", "working_directory": "/"}
    wanted = [BatchItem(request=Request(**place, depends_on=(task.id,))) for task in (two, one)]

    with overheard() as statements:
        await submit_batch(busy.database, wanted, Settings(), busy.now)

    locks = [parameters for sql, parameters in statements if "FOR SHARE" in sql]
    assert set(locks[0].values()) == {one.id, two.id}


@pytest.fixture
async def busy(prepared_postgres_url: str) -> AsyncIterator[Scene]:
    """PostgreSQL, where two transactions are open at once."""
    empty(prepared_postgres_url)
    async with open_database(path=Path("/nonexistent"), url=prepared_postgres_url) as opened:
        yield Scene(opened)


class Meeting:
    """One transaction is held open before its commit until another one waits for it, or is through."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.reached, self.gate = threading.Event(), threading.Event()
        self.is_through = False

    async def hold(
        self, point: str, first: Callable[[], Coroutine[Any, Any, Any]], second: Callable[[], Awaitable[Any]]
    ) -> None:
        def pause(name: str) -> None:
            if name == point:
                self.reached.set()
                self.gate.wait(5)

        with pytest.MonkeyPatch.context() as patch, anyio.fail_after(5):
            patch.setattr(database, "failpoint", pause)
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                await to_thread.run_sync(self.reached.wait, 5)
                group.start_soon(self.go_through, second)
                await self.until_it_waits()
                self.gate.set()

    async def until_it_waits(self) -> None:
        def count(connection: Connection) -> int:
            return int(connection.execute(text(LOCK_WAITS)).scalar_one())

        while not self.is_through and not await self.scene.database.read(count):
            await anyio.lowlevel.checkpoint()

    async def go_through(self, second: Callable[[], Awaitable[Any]]) -> None:
        await second()
        self.is_through = True


@pytest.mark.real
@pytest.mark.promise("P16")
async def test_an_end_waits_for_another_that_settles_the_same_task(busy: Scene) -> None:
    held, other = await busy.take(), await busy.submit()
    waiting = await after(busy, held.task, other, on_dependency_failure=RUN)

    await Meeting(busy).hold("finish.before", lambda: busy.finish(held), lambda: busy.cancel(other))

    assert await busy.kinds(waiting) == [EventKind.SUBMITTED, EventKind.READY]


@pytest.mark.real
@pytest.mark.promise("P16")
async def test_an_end_waits_for_a_dependent_that_is_being_submitted(busy: Scene) -> None:
    held = await busy.take()
    created: list[Task] = []

    async def submit() -> None:
        created.append(await after(busy, held.task))

    await Meeting(busy).hold("submit.before", submit, lambda: busy.finish(held))

    assert (await busy.task(created[0])).state is TaskState.QUEUED
