"""A chain of tasks: what a retry keeps, what a resume adds, and what an attempt leaves for the next."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from tests.both_databases.scene import (
    COMMIT,
    DONE,
    GONE,
    HANDED_BACK,
    NOON,
    RECLAIM_AFTER,
    Scene,
    fact,
    output,
    parked_until,
    runner,
)

from delegate.errors import IllegalMove, NoChange, NoSuchTask
from delegate.intake.retry import resume
from delegate.model import (
    ANY_MACHINE,
    Change,
    Checkpoint,
    Choice,
    EventKind,
    Field,
    Issue,
    Mode,
    Outcome,
    Result,
    Source,
    Task,
    TaskId,
    Usage,
)
from delegate.queue.claim import ClaimedTask
from delegate.report.follow import change_of, prompt_of, read_full_task
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.retention import drop_ended_before
from delegate.store.tasks import get_task

pytestmark = pytest.mark.anyio
FAILED = Outcome(state=AttemptState.FAILED, reason=Reason.CHECKS_FAILED, message="red", session_id="s-1")
LEFT = Checkpoint(
    session_id="s-1",
    branch="work-1",
    base_commit=COMMIT,
    commit="2" * 40,
    dirty_files=("a.py", "b/c.py"),
    output_tail=("one", "two"),
    error="red",
    summary="did it",
    is_work_done=True,
    usage=Usage(input_tokens=5, cost_usd=0.5),
)
RESULT = Result(
    summary="did it", branch="work-1", commit=COMMIT, files=2, checks_passed=3, checks_total=3, is_kept=True
)
CHANGE = Change(base_commit=COMMIT, commit="2" * 40, patch="--- a\n+++ b\n", is_cut=True)


async def work(scene: Scene, **fields: Any) -> ClaimedTask:
    return await scene.take(**{"agent": "claude", "mode": Mode.WORKTREE, **fields})


async def continue_task(scene: Scene) -> ClaimedTask:
    held = await scene.claim()
    assert held is not None
    return held


async def test_a_task_is_stored_with_all_it_works_on(scene: Scene) -> None:
    issue = Issue(key="PER-44", title="rate limit", url="https://linear.example/PER-44")
    fields: dict[str, Any] = {
        "mode": Mode.PULL_REQUEST,
        "repository": "owner/name",
        "base": "main",
        "title": "a title",
        "issue": issue,
    }

    submitted = await scene.submit(agent="codex", **fields, labels=("model/gpt-5.5",))

    stored = await scene.task(submitted)
    assert stored == submitted
    assert (stored.repository, stored.base, stored.machine, stored.working_directory) == (
        "owner/name",
        "main",
        ANY_MACHINE,
        None,
    )
    assert (stored.lineage, stored.issue, stored.title) == (stored.id, issue, "a title")
    assert Choice(field=Field.MODEL, value="gpt-5.5", source=Source.LABEL) in stored.choices


async def test_an_overruled_preference_is_noted_in_the_timeline(scene: Scene) -> None:
    task = await scene.submit(agent="claude", labels=("executor/codex",))

    assert [(event.kind, event.data.get("text")) for event in await scene.events(task)][1:] == [
        (EventKind.WARNING, "agent codex from a label is overridden by agent claude from the request")
    ]


@pytest.mark.parametrize("mode", [Mode.IN_PLACE, Mode.PULL_REQUEST])
async def test_a_retry_of_a_failed_task_continues_its_session_and_its_work(scene: Scene, mode: Mode) -> None:
    held = await work(scene, mode=mode, agent="claude", model="opus")
    failed = await scene.finish(held, replace(FAILED, checkpoint=LEFT, result=RESULT))

    retried = await scene.task(await scene.retry(failed))
    again = await continue_task(scene)

    assert (retried.lineage, retried.session_id, retried.mode) == (failed.id, "s-1", mode)
    assert (retried.choices, retried.result, retried.usage) == (failed.choices, None, Usage())
    assert again.task.id == retried.id
    assert again.continuation.checkpoint == LEFT


async def test_a_retry_of_a_completed_task_starts_from_scratch(scene: Scene) -> None:
    held = await work(scene)
    completed = await scene.finish(held, replace(DONE, session_id="s-1", checkpoint=LEFT))

    retried = await scene.task(await scene.retry(completed))
    again = await continue_task(scene)

    assert (retried.lineage, retried.session_id, retried.parent_task_id) == (retried.id, None, completed.id)
    assert again.continuation.checkpoint is None


async def test_a_retry_of_a_cancelled_task_continues_too(scene: Scene) -> None:
    held = await work(scene)
    await scene.cancel(held.task)
    cancelled = await scene.finish(held, replace(FAILED, state=AttemptState.CANCELLED, reason=Reason.CANCELLED))

    retried = await scene.retry(cancelled)

    assert (retried.lineage, retried.session_id) == (cancelled.id, "s-1")


async def test_of_two_retries_in_place_only_one_has_the_session_at_a_time(scene: Scene) -> None:
    failed = await scene.finish(await scene.take(agent="claude"), FAILED)

    first, second = await scene.retry(failed), await scene.retry(failed)
    held = await scene.claim()
    assert held is not None
    await scene.finish(held, FAILED)
    third = await scene.retry(failed)

    assert [task.session_id for task in (first, second, third)] == ["s-1", None, "s-1"]
    assert held.task.id == first.id


async def test_of_two_retries_in_place_at_the_same_moment_only_one_has_the_session(scene: Scene) -> None:
    failed = await scene.finish(await scene.take(agent="claude"), FAILED)
    sessions: list[str | None] = []

    async def retry() -> None:
        sessions.append((await scene.retry(failed)).session_id)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(retry)

    assert sorted(map(str, sessions)) == ["None", "None", "None", "s-1"]


@pytest.mark.parametrize("outcome", [FAILED, replace(DONE, session_id="s-1")])
async def test_a_resume_continues_from_any_end_with_more_context(scene: Scene, outcome: Outcome) -> None:
    await scene.register(runner(machine="attic"))
    held = await scene.take(runner(machine="attic"), agent="claude", mode=Mode.PULL_REQUEST, repository="owner/name")
    ended = await scene.finish(held, replace(outcome, checkpoint=LEFT))

    resumed = await scene.task(await scene.resume(ended, "use the other table"))

    assert (resumed.lineage, resumed.session_id, resumed.context) == (ended.id, "s-1", "use the other table")
    assert (resumed.machine, resumed.prefers) == (ANY_MACHINE, "runner-attic")
    assert (resumed.retry_of, resumed.prompt, resumed.state) == (ended.id, ended.prompt, TaskState.QUEUED)
    assert await scene.claim(runner("eve", machine="desk")) is None
    again = await scene.claim(runner(machine="attic"))
    assert again is not None
    assert again.continuation.checkpoint == LEFT


async def test_a_resume_whose_runner_is_forgotten_stays_where_the_task_may_run(scene: Scene) -> None:
    ended = await scene.finish(await work(scene), FAILED)

    assert (await scene.resume(ended)).machine == "desk"


async def test_a_task_resumed_before_its_start_has_only_the_new_context(scene: Scene) -> None:
    ended = await scene.cancel(await scene.submit(agent="claude"))

    first = await scene.resume(ended, "first")
    second = await scene.resume(await scene.cancel(first), "second")

    assert (second.context, second.lineage, second.retry_count) == ("second", ended.id, 2)


async def test_what_cannot_be_resumed_says_why(scene: Scene) -> None:
    queued = await scene.submit(agent="claude")

    with pytest.raises(IllegalMove, match=f"{queued.id} is queued: it cannot be resumed"):
        await scene.resume(queued)
    with pytest.raises(NoSuchTask):
        await resume(scene.database, TaskId("task-none"), None, request_key=None, now=scene.now)


@pytest.mark.parametrize("ending", [DONE, FAILED], ids=["completed", "failed"])
async def test_every_end_leaves_a_checkpoint_even_if_its_runner_sent_none(scene: Scene, ending: Outcome) -> None:
    held = await work(scene, agent="shell")
    await scene.record(held, output(0, b"the last line\n"))
    ended = await scene.finish(held, replace(ending, session_id=None, usage=Usage(turns=2)), next_seq=1)

    full = await read_full_task(scene.database, ended.id, scene.rules, scene.now)

    error = None if ending is DONE else FAILED.message
    assert full.checkpoint == Checkpoint(output_tail=("the last line",), error=error, usage=Usage(turns=2))


async def test_a_command_is_resumed_with_what_it_left_and_what_is_added(scene: Scene) -> None:
    held = await work(scene, agent="shell")
    await scene.record(held, output(0, b"half done\n"))
    lost = await scene.release(held, GONE)

    resumed = await scene.resume(lost, "skip the first part")
    again = await continue_task(scene)

    assert (lost.state, again.task.id, again.task.context) == (TaskState.FAILED, resumed.id, "skip the first part")
    assert again.continuation.checkpoint == Checkpoint(output_tail=("half done",), error="its runner went away")


async def test_the_same_resume_asked_for_twice_is_one_task(scene: Scene) -> None:
    ended = await scene.finish(await work(scene), FAILED)

    first, second = [
        await resume(scene.database, ended.id, "go on", request_key="once", now=scene.now) for _ in range(2)
    ]

    assert (first.is_new, second.is_new) == (True, False)
    assert second.task == first.task


@pytest.mark.promise("P2")
@pytest.mark.parametrize("verb", ["retry", "resume"])
async def test_two_tasks_of_one_chain_never_work_at_once(scene: Scene, verb: str) -> None:
    failed = await scene.finish(await work(scene), FAILED)
    first = await scene.retry(failed)

    with pytest.raises(IllegalMove) as caught:
        await getattr(scene, verb)(failed)

    assert caught.value.hint.startswith(f"{first.id} already continues it")
    await scene.cancel(first)
    second: Task = await getattr(scene, verb)(failed)
    assert second.lineage == failed.id


async def test_a_command_in_place_may_be_retried_twice_at_once(scene: Scene) -> None:
    failed = await scene.finish(await scene.take(), replace(FAILED, session_id=None))

    assert (await scene.retry(failed)).id != (await scene.retry(failed)).id


async def test_an_end_is_stored_with_its_result_and_its_change(scene: Scene) -> None:
    held = await work(scene)

    ended = await scene.finish(held, replace(DONE, result=RESULT, change=CHANGE, checkpoint=LEFT))

    assert ended.result == RESULT
    assert (await scene.task(held)).result == RESULT
    assert await change_of(scene.database, held.task.id) == CHANGE


async def test_a_task_without_a_change_says_so(scene: Scene) -> None:
    task = await scene.submit()

    with pytest.raises(NoChange, match=f"task {task.id} has no changes to show"):
        await change_of(scene.database, task.id)
    with pytest.raises(NoSuchTask):
        await change_of(scene.database, TaskId("task-none"))


@pytest.mark.parametrize("ending", [HANDED_BACK, GONE, parked_until(NOON)])
async def test_what_a_runner_tells_at_a_halt_is_there_for_the_next_attempt(scene: Scene, ending: Outcome) -> None:
    held = await work(scene)
    outcome = replace(ending, checkpoint=LEFT)
    await (scene.finish(held, outcome) if outcome.not_before else scene.release(held, outcome))

    assert (await continue_task(scene)).continuation.checkpoint == LEFT


async def test_of_an_agent_that_was_lost_the_relay_keeps_what_it_said_last(scene: Scene) -> None:
    held = await work(scene)
    usage = {"inputTokens": 7, "costUsd": 0.25}
    await scene.record(
        held,
        fact(0, EventKind.SESSION, sessionId="s-9"),
        fact(1, text="first line\nsecond \x1b[31mline"),
        fact(2, EventKind.TOOL, name="Edit", summary="a.py"),
        output(3, b'{"type": "stream_event"}\n'),
        fact(4, EventKind.USAGE, **usage),
    )
    await scene.pass_time(RECLAIM_AFTER + timedelta(seconds=1))

    left = (await continue_task(scene)).continuation.checkpoint

    assert left == Checkpoint(
        session_id="s-9",
        output_tail=("first line", "second  [31mline", "[Edit] a.py"),
        error="its runner went away",
        usage=Usage(input_tokens=7, cost_usd=0.25),
    )


async def test_of_a_command_that_was_lost_the_relay_keeps_the_last_lines(scene: Scene) -> None:
    held = await work(scene, agent="shell", rerun=True)
    await scene.record(held, output(0, b"".join(b"line %d\n" % number for number in range(100)) + b"x" * 2_000))
    await scene.release(held, GONE)

    left = (await continue_task(scene)).continuation.checkpoint

    assert left is not None
    assert len(left.output_tail) == 50
    assert left.output_tail[-2:] == ("line 99", "x" * 500)


async def test_a_second_loss_adds_to_what_the_session_has_spent_and_keeps_the_branch(scene: Scene) -> None:
    held = await work(scene)
    await scene.release(held, replace(GONE, checkpoint=LEFT, session_id="s-1"))
    again = await continue_task(scene)
    await scene.record(again, fact(0, EventKind.USAGE, inputTokens=2, costUsd=0.25))
    await scene.release(again, GONE)

    left = (await continue_task(scene)).continuation.checkpoint

    assert left is not None
    assert (left.session_id, left.branch, left.commit, left.is_work_done) == ("s-1", "work-1", "2" * 40, False)
    assert left.usage == Usage(input_tokens=7, cost_usd=0.75)


async def test_a_task_that_another_agent_should_have_changes_its_lane(scene: Scene) -> None:
    held = await work(scene)
    outcome = replace(HANDED_BACK, wants_agent="codex", session_id="s-1")

    released = await scene.release(held, outcome)

    assert (released.agent, released.lane, released.attempts, released.session_id) == (
        "codex",
        'desk\tcodex\t{"d":false}',
        0,
        None,
    )
    assert await scene.task(held) == replace(released, started_at=NOON)
    assert released.choices[0] == Choice(field=Field.AGENT, value="codex", source=Source.REPOSITORY_FILE)
    assert await scene.claim(runner(agents=["claude"])) is None
    assert await scene.claim(runner("eve", agents=["codex"])) is not None


async def test_the_prompt_is_that_of_the_task_until_the_agent_got_a_rendered_one(scene: Scene) -> None:
    held = await work(scene, prompt="fix it")
    before = await prompt_of(scene.database, held.task.id)
    await scene.record(held, fact(0, EventKind.PROMPT, text="long"), fact(1, EventKind.PROMPT, text="longer"))

    after = await prompt_of(scene.database, held.task.id)

    assert (before.text, before.is_rendered) == ("fix it", False)
    assert (after.text, after.is_rendered) == ("longer", True)


async def test_a_lineage_is_deleted_as_a_whole_with_its_results(scene: Scene) -> None:
    failed = await scene.finish(await work(scene), replace(FAILED, checkpoint=LEFT, change=CHANGE))
    retried = await scene.retry(failed)
    later = scene.now + timedelta(days=1)

    assert await scene.database.write("drop", lambda c: drop_ended_before(c, later, 10)) == 0

    again = await continue_task(scene)
    assert (again.task.id, again.task.lineage) == (retried.id, failed.id)
    assert again.continuation.checkpoint is not None
    await scene.finish(again, FAILED)
    assert await scene.database.write("drop", lambda c: drop_ended_before(c, later, 1)) == 2
    assert await scene.database.read(lambda c: get_task(c, failed.id)) is None
