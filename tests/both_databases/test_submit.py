from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
from tests.both_databases.scene import DONE, NOON, Scene

from delegate.errors import IllegalMove, NoSuchTask, PreferenceConflict
from delegate.intake.retry import retry
from delegate.model import EventKind, Priority, Source, TaskId, Usage
from delegate.queue.finish import cancel
from delegate.states import TaskState
from delegate.store.tasks import count_by_state

pytestmark = pytest.mark.anyio


async def test_a_submitted_task_is_queued_as_it_was_asked_for(scene: Scene) -> None:
    fields = {
        "agent": "claude",
        "model": "sonnet",
        "effort": "high",
        "permission_mode": "plan",
        "priority": Priority.P0,
        "timeout": timedelta(minutes=3),
        "max_output": 4096,
        "max_budget_usd": 2.5,
        "max_turns": 7,
        "rerun": True,
    }

    submitted = await scene.submit("böse Grüße 🜚\n", **fields)

    stored = await scene.task(submitted)
    assert stored == submitted
    assert stored.state is TaskState.QUEUED
    assert stored.created_at == NOON
    assert (stored.limits.timeout, stored.limits.max_output) == (timedelta(minutes=3), 4096)
    assert await scene.kinds(stored) == [EventKind.SUBMITTED]


@pytest.mark.promise("P1")
async def test_the_same_request_key_twice_is_the_same_task(scene: Scene) -> None:
    first = await scene.submit("one", request_key="monday")
    second = await scene.submit("another", request_key="monday")

    assert second == first
    assert await scene.kinds(first) == [EventKind.SUBMITTED]


@pytest.mark.promise("P1")
async def test_the_same_request_key_from_twenty_clients_at_once_is_one_task(scene: Scene) -> None:
    answers: set[TaskId] = set()

    async def ask() -> None:
        answers.add((await scene.submit(request_key="storm")).id)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask)

    assert len(answers) == 1
    assert await scene.database.read(count_by_state) == {TaskState.QUEUED: 1}


async def test_a_refused_neighbour_does_not_harm_the_others_of_its_commit(scene: Scene) -> None:
    """On SQLite these travel in one commit, each in a savepoint of its own."""
    refusals = []

    async def refused() -> None:
        with pytest.raises(NoSuchTask) as caught:
            await cancel(scene.database, TaskId("task-none"), "", scene.now)
        refusals.append(caught.value)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(refused if number % 2 else scene.submit)

    assert len(refusals) == 5
    assert await scene.database.read(count_by_state) == {TaskState.QUEUED: 5}


async def test_a_command_with_a_limit_that_nothing_keeps_is_not_written(scene: Scene) -> None:
    with pytest.raises(PreferenceConflict, match="permission mode plan is not supported for shell tasks"):
        await scene.submit(permission_mode="plan", max_turns=3)

    assert await scene.database.read(count_by_state) == {}


async def test_the_callers_default_agent_is_kept_with_who_chose_it(scene: Scene) -> None:
    task = await scene.task(await scene.submit(agent=None, default_agent="codex"))

    assert (task.agent, Source.CALLER) in [(choice.value, choice.source) for choice in task.choices]


async def test_a_retry_is_a_new_task_with_the_same_request(scene: Scene) -> None:
    held = await scene.take(agent="claude", model="opus", priority=Priority.P1)
    ended = await scene.finish(held)

    again = await scene.task(await scene.retry(ended))

    assert again.id != ended.id
    assert (again.retry_of, again.parent_task_id, again.retry_count) == (ended.id, ended.id, 1)
    assert (again.prompt, again.model, again.priority) == (ended.prompt, "opus", Priority.P1)
    assert (again.state, again.reason, again.fence, again.attempts) == (TaskState.QUEUED, None, 0, 0)
    assert (again.started_at, again.finished_at, again.usage) == (None, None, Usage())


async def test_a_retry_of_a_retry_keeps_the_first_task_as_its_parent(scene: Scene) -> None:
    first = await scene.finish(await scene.take())
    second = await scene.retry(first)
    held = await scene.claim()
    assert held is not None
    await scene.finish(held)

    third = await scene.retry(second)

    assert (third.retry_of, third.parent_task_id, third.retry_count) == (second.id, first.id, 2)


async def test_the_same_retry_asked_for_twice_is_one_task(scene: Scene) -> None:
    ended = await scene.finish(await scene.take(), DONE)

    first = await retry(scene.database, ended.id, "again", scene.now)
    second = await retry(scene.database, ended.id, "again", scene.now)

    assert (first.is_new, second.is_new) == (True, False)
    assert second.task.id == first.task.id


async def test_a_task_that_has_not_ended_cannot_be_retried(scene: Scene) -> None:
    queued = await scene.submit()

    with pytest.raises(IllegalMove, match=f"{queued.id} is queued: it cannot be retried"):
        await scene.retry(queued)
    with pytest.raises(NoSuchTask):
        await retry(scene.database, TaskId("task-none"), None, scene.now)
