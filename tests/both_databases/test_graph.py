"""Tasks that wait for others: when they may run, and when they never will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from tests.both_databases.scene import DONE, GONE, RECLAIM_AFTER, Scene, holder, runner

from delegate.config.settings import Settings
from delegate.errors import (
    CycleDetected,
    DependencyFailed,
    InvalidField,
    NoSuchTask,
    TooDeep,
    UnknownAgent,
    UnknownDependency,
)
from delegate.intake.batch import BatchItem, submit_batch
from delegate.intake.submit import Request, SubmittedTask
from delegate.model import Checkpoint, EventKind, OnDependencyFailure, Priority, Task, TaskId
from delegate.queue.claim import AGEING, ClaimQuery, claim
from delegate.queue.finish import cancel, finish
from delegate.queue.waiting import why
from delegate.report import graph as graphs
from delegate.report.graph import graph_of
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.retention import drop_ended_before
from delegate.store.tasks import count_by_state, get_task

pytestmark = pytest.mark.anyio
RUN = OnDependencyFailure.RUN
FAILED = replace(DONE, state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message="exit code 1", exit_code=1)
WITH_SESSION = replace(DONE, session_id="s-1", checkpoint=Checkpoint(session_id="s-1", output_tail=("built",)))


async def after(scene: Scene, *others: Task, **fields: Any) -> Task:
    return await scene.submit(depends_on=tuple(other.id for other in others), **fields)


async def end_all(scene: Scene, count: int, **ends: Any) -> None:
    """The next ones of the queue, ended by their prompts: those named here fail."""
    for _ in range(count):
        held = await scene.claim()
        assert held is not None
        await scene.finish(held, ends.get(held.task.prompt, DONE))


async def states(scene: Scene, tasks: Sequence[Task]) -> list[str]:
    return [(await scene.task(task)).state.value for task in tasks]


@pytest.mark.promise("P16")
async def test_a_task_runs_only_after_all_it_depends_on(scene: Scene) -> None:
    """A diamond: the last one waits for both arms."""
    top = await scene.take()
    left, right = await after(scene, top.task, prompt="left"), await after(scene, top.task, prompt="right")
    bottom = await after(scene, left, right, left)
    assert (left.state, bottom.state, bottom.depth) == (TaskState.BLOCKED, TaskState.BLOCKED, 2)
    assert bottom.depends_on == (left.id, right.id)
    assert await scene.claim() is None

    moved = await finish(scene.database, holder(top), DONE, next_seq=0, now=scene.now)

    assert [(task.id, task.state) for task in moved.others] == [
        (left.id, TaskState.QUEUED),
        (right.id, TaskState.QUEUED),
    ]
    await end_all(scene, 1)
    assert (await scene.task(bottom)).state is TaskState.BLOCKED
    await end_all(scene, 2)
    assert await states(scene, [top.task, left, right, bottom]) == ["completed"] * 4
    assert (await scene.kinds(bottom))[:3] == [EventKind.SUBMITTED, EventKind.READY, EventKind.CLAIMED]


@pytest.mark.promise("P16")
async def test_a_failure_cancels_all_that_waits_for_it_near_and_far(scene: Scene) -> None:
    bad, good = await scene.submit("bad"), await scene.submit("good")
    near = await after(scene, bad, good)
    far = await after(scene, near)
    other = await after(scene, good, prompt="other")

    await end_all(scene, 2, bad=FAILED)

    assert await states(scene, [near, far, other]) == ["cancelled", "cancelled", "queued"]
    one, two = await scene.task(near), await scene.task(far)
    assert (one.reason, one.message) == (
        Reason.DEPENDENCY_FAILED,
        f"its dependency {bad.id} failed (command_failed)",
    )
    assert two.message == f"its dependency {near.id} was cancelled (dependency_failed)"
    assert (two.finished_at, await scene.kinds(far)) == (scene.now, [EventKind.SUBMITTED, EventKind.FINISHED])


async def test_a_task_that_runs_in_spite_of_failures_waits_for_all_ends(scene: Scene) -> None:
    bad, good = await scene.submit("bad"), await scene.submit("good")
    cleanup = await after(scene, bad, good, on_dependency_failure=RUN)

    await end_all(scene, 1, bad=FAILED)
    assert (await scene.task(cleanup)).state is TaskState.BLOCKED
    await end_all(scene, 1)

    assert (await scene.task(cleanup)).state is TaskState.QUEUED


async def test_cancelling_one_that_waits_cancels_those_behind_it(scene: Scene) -> None:
    first = await scene.submit()
    second = await after(scene, first)
    third = await after(scene, second, first)

    moved = await cancel(scene.database, second.id, "not needed", scene.now)

    assert [(task.id, task.state) for task in moved.others] == [(third.id, TaskState.CANCELLED)]
    await end_all(scene, 1)
    assert await states(scene, [first, second, third]) == ["completed", "cancelled", "cancelled"]


@pytest.mark.promise("P16")
async def test_a_lost_command_cancels_what_waits_for_it(scene: Scene) -> None:
    """Also when it is the claim of another runner that finds out."""
    await scene.register(runner())
    first, second = await scene.take(), await scene.take()
    waiting = [await after(scene, held.task) for held in (first, second)]

    await scene.release(first, GONE)
    await scene.pass_time(RECLAIM_AFTER + timedelta(seconds=1))
    query = ClaimQuery(claim_id="claim-1", slot=runner("eve"), agents=("shell",), parked={})
    claimed = await claim(scene.database, query, scene.rules, scene.now)

    assert await states(scene, waiting) == ["cancelled", "cancelled"]
    assert [(one.task, one.others) for one in claimed.rescued] == [
        (await scene.task(second), (await scene.task(waiting[1]),))
    ]


async def test_what_has_ended_is_not_waited_for(scene: Scene) -> None:
    good, bad = await scene.finish(await scene.take()), await scene.finish(await scene.take(), FAILED)

    assert (await after(scene, good)).state is TaskState.QUEUED
    assert (await after(scene, good, bad, on_dependency_failure=RUN)).state is TaskState.QUEUED
    with pytest.raises(DependencyFailed) as caught:
        await after(scene, good, bad)

    assert caught.value.message == f"dependsOn: {bad.id} is failed, so this task would never run"
    assert caught.value.field == "dependsOn"
    assert caught.value.hint.startswith(f"`delegate retry {bad.id}` and depend on the new task, or ")


async def test_an_unknown_dependency_is_refused_by_its_field(scene: Scene) -> None:
    known = await scene.submit()

    with pytest.raises(UnknownDependency, match="dependsOn: no task task-none") as caught:
        await scene.submit(depends_on=(known.id, TaskId("task-none")))
    assert caught.value.field == "dependsOn"
    with pytest.raises(UnknownDependency) as caught:
        await scene.submit(depends_on=(known.id,), continue_from=TaskId("task-none"))
    assert caught.value.field == "continueFrom"

    assert await scene.database.read(count_by_state) == {TaskState.QUEUED: 1}


async def batch(scene: Scene, *entries: tuple[str | None, dict[str, Any]]) -> list[SubmittedTask]:
    place = {"prompt": "true", "agent": "shell", "machine": "desk", "working_directory": "/"}
    made = [BatchItem(name=name, request=Request(**{**place, **fields})) for name, fields in entries]
    return await submit_batch(scene.database, made, Settings(), scene.now)


@pytest.mark.promise("P16")
async def test_a_batch_is_given_in_any_order_and_inserted_in_the_right_one(scene: Scene) -> None:
    outside = await scene.submit("outside")

    deploy, test, build = await batch(
        scene,
        ("deploy", {"prompt": "deploy", "depends_on": ("test", "build")}),
        ("test", {"prompt": "test", "continue_from": "build"}),
        ("build", {"prompt": "build", "depends_on": (outside.id,)}),
    )

    assert deploy.task.depends_on == (test.task.id, build.task.id)
    assert (test.task.depends_on, test.task.continue_from) == ((build.task.id,), build.task.id)
    assert [one.task.depth for one in (build, test, deploy)] == [1, 2, 3]
    await end_all(scene, 4)
    assert await states(scene, [outside, build.task, test.task, deploy.task]) == ["completed"] * 4


async def test_a_batch_with_a_fault_creates_no_task(scene: Scene) -> None:
    with pytest.raises(CycleDetected, match=r"tasks: (a → b → c → a|b → c → a → b|c → a → b → c) depend on each other"):
        await batch(scene, ("a", {"depends_on": ("b",)}), ("b", {"depends_on": ("c",)}), ("c", {"continue_from": "a"}))
    with pytest.raises(CycleDetected, match="tasks: a → a depend"):
        await batch(scene, ("a", {"depends_on": ("a",)}))
    with pytest.raises(InvalidField, match=r"tasks\.2\.name: is also the name of tasks\.0; give each task its own"):
        await batch(scene, ("a", {}), (None, {}), ("a", {}))
    with pytest.raises(InvalidField, match=r"tasks\.2\.requestKey: is also the key of tasks\.0; give each task its"):
        await batch(scene, ("a", {"request_key": "k"}), (None, {}), ("b", {"request_key": "k"}))
    with pytest.raises(UnknownDependency, match=r"tasks\.1\.dependsOn: no task b"):
        await batch(scene, ("a", {}), (None, {"depends_on": ("a", "b")}))
    with pytest.raises(UnknownAgent) as caught:
        await batch(scene, ("a", {}), (None, {"agent": "nobody"}))

    assert caught.value.field == "tasks.1.agent"
    assert await scene.database.read(count_by_state) == {}


async def test_a_batch_sent_again_with_its_keys_is_the_same_batch(scene: Scene) -> None:
    entries = (("a", {"request_key": "k-a"}), ("b", {"request_key": "k-b", "depends_on": ("a",)}))
    first = await batch(scene, *entries)
    await end_all(scene, 1, true=FAILED)

    again = await batch(scene, *entries)

    assert [one.task.id for one in again] == [one.task.id for one in first]
    assert [one.is_new for one in again] == [False, False]


async def test_a_chain_of_dependencies_has_an_end(scene: Scene) -> None:
    chain = [(str(place), {"depends_on": (str(place - 1),)} if place else {}) for place in range(100)]
    last = (await batch(scene, *chain))[-1].task

    deepest = await after(scene, last)

    assert (last.depth, deepest.depth) == (99, 100)
    with pytest.raises(TooDeep, match="would be 101 tasks long; the limit is 100"):
        await after(scene, deepest)


@pytest.mark.promise("P16")
async def test_ends_at_the_same_moment_release_a_task_once(scene: Scene) -> None:
    held = [await scene.take() for _ in range(12)]
    waiting = await after(scene, *(one.task for one in held))

    async with anyio.create_task_group() as group:
        for one in held:
            group.start_soon(scene.finish, one)

    assert await scene.kinds(waiting) == [EventKind.SUBMITTED, EventKind.READY]


@pytest.mark.promise("P16")
async def test_a_task_submitted_while_its_dependency_ends_is_not_forgotten(scene: Scene) -> None:
    for _ in range(10):
        held = await scene.take()
        made: list[Task] = []

        async def submit(held: Any = held, made: list[Task] = made) -> None:
            made.append(await after(scene, held.task))

        async with anyio.create_task_group() as group:
            group.start_soon(scene.finish, held)
            group.start_soon(submit)

        assert (await scene.task(made[0])).state is TaskState.QUEUED
        await end_all(scene, 1)


async def test_a_retry_waits_for_the_retry_of_what_failed(scene: Scene) -> None:
    bad = await scene.submit("bad")
    waiting = await after(scene, bad, continue_from=bad.id)
    await end_all(scene, 1, bad=FAILED)
    with pytest.raises(DependencyFailed, match=f"{bad.id} is failed") as caught:
        await scene.retry(waiting)
    assert caught.value.hint == f"`delegate retry {bad.id}` first, then try this task again"

    better = await scene.retry(bad)
    again = await scene.retry(waiting)

    assert (again.state, again.depends_on, again.continue_from) == (TaskState.BLOCKED, (better.id,), better.id)
    await end_all(scene, 2)
    assert await states(scene, [waiting, better, again]) == ["cancelled", "completed", "completed"]


async def test_a_task_that_has_run_waits_for_nothing_when_it_is_retried(scene: Scene) -> None:
    first = await scene.finish(await scene.take())
    second = await after(scene, first, prompt="second")
    await end_all(scene, 1, second=FAILED)
    later = scene.now + timedelta(days=1)
    await scene.database.write("drop", lambda c: drop_ended_before(c, later, 1))

    again = await scene.retry(second)

    assert (again.state, again.depends_on, again.depth) == (TaskState.QUEUED, (first.id,), 1)


async def test_what_a_living_task_waits_for_is_not_dropped(scene: Scene) -> None:
    done = await scene.finish(await scene.take())
    other = await scene.submit()
    waiting = await after(scene, other, continue_from=done.id)
    later = scene.now + timedelta(days=1)

    assert await scene.database.write("drop", lambda c: drop_ended_before(c, later, 10)) == 0
    await end_all(scene, 2)
    assert await scene.database.write("drop", lambda c: drop_ended_before(c, later, 10)) == 3
    with pytest.raises(NoSuchTask):
        await scene.task(waiting)


async def test_why_names_one_that_is_waited_for_and_counts_the_rest(scene: Scene) -> None:
    held = await scene.take()
    others = [await scene.submit() for _ in range(2)]
    last = await after(scene, held.task)
    waiting = [await after(scene, held.task, *others), await after(scene, last)]

    around = await scene.snapshot(*waiting)

    assert [why(task, around) for task in waiting] == [
        f"waits for {held.task.id} (running) and 2 more",
        f"waits for {last.id} (queued)",
    ]


async def test_the_graph_of_a_task_has_all_that_leads_to_it_and_all_that_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = await scene.submit()
    left, right = await after(scene, top), await after(scene, top)
    bottom = await after(scene, left, right)
    await scene.submit()

    async def shown(task: Task) -> tuple[list[TaskId], bool]:
        found = await graph_of(scene.database, task.id, scene.rules, scene.now)
        return [task.id for task in found.tasks], found.is_cut

    assert await shown(left) == ([top.id, left.id, bottom.id], False)
    assert await shown(bottom) == ([top.id, left.id, right.id, bottom.id], False)
    monkeypatch.setattr(graphs, "GRAPH_MAX", 3)
    assert await shown(bottom) == ([left.id, right.id, bottom.id], True)
    with pytest.raises(NoSuchTask):
        await graph_of(scene.database, TaskId("task-none"), scene.rules, scene.now)


async def test_a_task_that_continues_another_gets_its_checkpoint(scene: Scene) -> None:
    first = await scene.take(prompt="build", agent="claude")
    second = await scene.submit(agent="claude", continue_from=first.task.id)
    await scene.finish(first, WITH_SESSION)

    held = await scene.claim()

    assert held is not None
    assert (held.task.id, held.task.session_id) == (second.id, "s-1")
    continued = held.continuation.continued_task
    assert continued is not None
    assert (continued.task.prompt, continued.task.state) == ("build", TaskState.COMPLETED)
    assert continued.checkpoint == WITH_SESSION.checkpoint
    assert await scene.task(held) == held.task


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"agent": "codex"}),
        ({}, {"working_directory": "/tmp"}),
        ({}, {"machine": "attic"}),
        ({"mode": "worktree"}, {"mode": "worktree"}),
    ],
)
async def test_a_session_is_not_carried_to_another_place_or_agent(
    scene: Scene, first: dict[str, Any], second: dict[str, Any]
) -> None:
    await scene.submit(**{"agent": "claude", **first})
    by = [runner(agents=["claude", "codex"]), runner("otto", machine="attic", agents=["claude"])]
    held = await scene.claim(by[0])
    assert held is not None
    await scene.finish(held, WITH_SESSION)
    await scene.submit(continue_from=held.task.id, **{"agent": "claude", **second})

    again = await scene.claim(by[0]) or await scene.claim(by[1])

    assert again is not None
    assert again.task.session_id is None
    assert again.continuation.continued_task is not None


@pytest.mark.promise("P2")
async def test_only_one_task_continues_a_session(scene: Scene) -> None:
    first = await scene.finish(await scene.take(agent="claude"), replace(FAILED, session_id="s-1"))
    for _ in range(2):
        await scene.submit(agent="claude", continue_from=first.id, on_dependency_failure=RUN)

    claimed = [await scene.claim(), await scene.claim()]
    retried = await scene.retry(first)

    assert [held.task.session_id for held in claimed if held] == ["s-1", None]
    assert retried.session_id is None


async def test_a_session_that_a_retry_has_is_not_taken_from_it(scene: Scene) -> None:
    first = await scene.finish(await scene.take(agent="claude"), replace(FAILED, session_id="s-1"))
    retried = await scene.retry(first)
    await scene.submit(agent="claude", continue_from=first.id, on_dependency_failure=RUN)

    claimed = [await scene.claim(), await scene.claim()]

    assert [(held.task.id == retried.id, held.task.session_id) for held in claimed if held] == [
        (True, "s-1"),
        (False, None),
    ]


async def test_after_its_first_attempt_a_task_has_a_session_of_its_own(scene: Scene) -> None:
    first = await scene.finish(await scene.take(agent="claude"), WITH_SESSION)
    await scene.submit(agent="claude", continue_from=first.id)
    held = await scene.claim()
    assert held is not None
    await scene.release(held, replace(GONE, session_id="s-2"))

    again = await scene.claim()

    assert again is not None
    assert again.task.session_id == "s-2"
    assert again.continuation.checkpoint is not None
    assert again.continuation.checkpoint.session_id == "s-2"


@pytest.mark.promise("P16")
async def test_a_task_of_low_priority_rises_while_it_waits(scene: Scene) -> None:
    await scene.submit("old", priority=Priority.P2)
    scene.now += AGEING - timedelta(seconds=1)
    await scene.submit("urgent", priority=Priority.P1)
    scene.now += timedelta(seconds=2)
    await scene.submit("too late", priority=Priority.P1)

    claimed = [await scene.claim() for _ in range(3)]

    assert [held.task.prompt for held in claimed if held] == ["urgent", "old", "too late"]


async def test_a_policy_for_failed_dependencies_is_stored_without_dependencies_too(scene: Scene) -> None:
    submitted = await scene.submit(on_dependency_failure=RUN)

    stored = await scene.database.read(lambda connection: get_task(connection, submitted.id))

    assert stored is not None
    assert stored.on_dependency_failure is submitted.on_dependency_failure is RUN
