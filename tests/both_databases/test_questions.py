"""Questions of agents, and their tasks before and after the answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.both_databases.scene import DONE, GONE, HANDED_BACK, LEASE, NOON, RECLAIM_AFTER, Scene, parked_until, runner

from delegate.errors import IllegalMove, InvalidField, NoQuestion, NoSuchTask, StaleFence
from delegate.model import ANY_MACHINE, QUESTIONS_MAX, AttemptId, EventKind, Outcome, Task, TaskId
from delegate.queue.claim import ClaimedTask
from delegate.queue.questions import answer, ask
from delegate.states import AttemptState, Reason, TaskState

pytestmark = pytest.mark.anyio
ASKED = Outcome(state=AttemptState.RELEASED, reason=Reason.QUESTION, message="asked", session_id="session-1")
FAILED = Outcome(state=AttemptState.FAILED, reason=Reason.AGENT_ERROR, message="broke", exit_code=1)
CANCELLED = Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message="cancelled")
TIMED_OUT = Outcome(state=AttemptState.FAILED, reason=Reason.TIMEOUT, message="too slow")


async def asks(scene: Scene, held: ClaimedTask, text: str = "Red or blue?", *options: str) -> Task:
    return await ask(scene.database, held.attempt.id, text, options, scene.now)


async def answers(scene: Scene, of: Task | ClaimedTask, text: str = "Blue.", key: str | None = None) -> Task:
    task_id = of.task.id if isinstance(of, ClaimedTask) else of.id
    return await answer(scene.database, task_id, text, request_key=key, now=scene.now)


async def asked(scene: Scene, **fields: Any) -> ClaimedTask:
    await scene.register(runner())
    held = await scene.take(**{"agent": "claude", **fields})
    await asks(scene, held, "Red or blue?", "red", "blue")
    return held


async def test_a_question_is_kept_with_its_options_and_shown_in_the_timeline(scene: Scene) -> None:
    held = await asked(scene)

    task = await scene.task(held)

    (question,) = task.questions
    assert (question.text, question.options, question.answer) == ("Red or blue?", ("red", "blue"), None)
    assert (question.attempt_id, question.asked_at, task.state) == (held.attempt.id, NOON, TaskState.RUNNING)
    (event,) = [event for event in await scene.events(held) if event.kind is EventKind.QUESTION]
    assert event.data == {"text": "Red or blue?", "options": ["red", "blue"]}
    assert (await scene.renew(held)).asked


async def test_a_task_that_waits_for_an_answer_is_not_done_again_and_says_what_it_wants(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, ASKED)

    for again in (scene.retry, scene.resume):
        with pytest.raises(IllegalMove) as refused:
            await again(held.task)

        assert refused.value.hint.startswith(
            f"answer it with `delegate answer {held.task.id}`, or cancel it with `delegate cancel`"
        )


async def test_an_attempt_that_asked_ends_in_waiting_and_is_not_counted(scene: Scene) -> None:
    held = await asked(scene)

    task = await scene.finish(held, ASKED)

    assert (task.state, task.attempts, task.session_id) == (TaskState.WAITING, 0, "session-1")
    assert task == await scene.task(held)
    (attempt,) = await scene.attempts(held)
    assert (attempt.state, attempt.reason) == (AttemptState.RELEASED, Reason.QUESTION)
    assert (await scene.events(held))[-1].kind is EventKind.RELEASED
    assert await scene.claim() is None


@pytest.mark.parametrize("end", [DONE, FAILED, parked_until(NOON + timedelta(hours=1))], ids=lambda end: end.reason)
async def test_however_the_agent_ends_its_turn_the_task_waits_for_the_answer(scene: Scene, end: Outcome) -> None:
    held = await asked(scene)

    task = await scene.finish(held, end)
    again = await scene.finish(held, end)

    assert (task.state, task.not_before, task.result) == (TaskState.WAITING, None, None)
    assert again == task


async def test_a_runner_that_must_go_leaves_a_task_that_asked_waiting(scene: Scene) -> None:
    held = await asked(scene)

    task = await scene.release(held, HANDED_BACK)

    assert task.state is TaskState.WAITING
    assert await scene.release(held, HANDED_BACK) == task


@pytest.mark.parametrize(("end", "state"), [(CANCELLED, TaskState.CANCELLED), (TIMED_OUT, TaskState.FAILED)])
async def test_an_end_that_no_answer_helps_against_is_the_end(scene: Scene, end: Outcome, state: TaskState) -> None:
    held = await asked(scene)

    task = await scene.finish(held, end)

    assert (task.state, task.reason) == (state, end.reason)
    with pytest.raises(NoQuestion):
        await answers(scene, held)


async def test_the_answer_queues_the_task_for_its_own_runner_and_the_next_attempt_has_it(scene: Scene) -> None:
    await scene.register(runner("berta", machine="loft"))
    held = await asked(scene, repository="acme/shop", mode=None, machine=None)
    await scene.finish(held, ASKED)

    task = await answers(scene, held, "Blue, please.")

    assert (task.state, task.machine) == (TaskState.QUEUED, ANY_MACHINE)
    assert await scene.claim(runner("berta", machine="loft")) is None
    following = await scene.claim()
    assert following is not None
    assert (following.task.session_id, following.attempt.number) == ("session-1", 1)
    assert [question.answer for question in following.task.questions] == ["Blue, please."]
    assert not (await scene.renew(following)).asked


async def test_all_open_questions_get_the_one_answer(scene: Scene) -> None:
    held = await asked(scene)
    await asks(scene, held, "Big or small?")
    await scene.finish(held, ASKED)

    task = await answers(scene, held, "Blue and small.")

    assert [question.answer for question in task.questions] == ["Blue and small."] * 2
    assert (await scene.kinds(held)).count(EventKind.ANSWER) == 1


async def test_an_answer_that_comes_while_the_agent_still_runs_is_kept_for_it(scene: Scene) -> None:
    held = await asked(scene)

    early = await answers(scene, held, "Blue.")
    task = await scene.finish(held, DONE)

    assert (early.state, task.state) == (TaskState.RUNNING, TaskState.QUEUED)
    following = await scene.claim()
    assert following is not None
    assert [question.answer for question in following.task.questions] == ["Blue."]


async def test_a_repeated_answer_changes_nothing_even_after_the_next_question(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, ASKED)
    await answers(scene, held, "Blue.", "key-1")
    again = await answers(scene, held, "Blue.", "key-1")
    following = await scene.claim()
    assert following is not None
    await asks(scene, following, "Big or small?")

    late = await answers(scene, held, "Blue.", "key-1")

    assert again.state is TaskState.QUEUED
    assert [(question.text, question.answer) for question in late.questions] == [("Big or small?", None)]
    assert (await scene.kinds(held)).count(EventKind.ANSWER) == 1


async def test_who_has_asked_nothing_cannot_be_answered(scene: Scene) -> None:
    await scene.register(runner())
    held = await scene.take(agent="claude")

    with pytest.raises(NoQuestion, match="running"):
        await answers(scene, held)
    with pytest.raises(NoSuchTask):
        await answer(scene.database, TaskId("task-0"), "Blue.", request_key=None, now=NOON)
    with pytest.raises(InvalidField, match="empty"):
        await answers(scene, held, " \n")
    with pytest.raises(InvalidField, match="asked nothing"):
        await scene.finish(held, ASKED)


async def test_a_task_that_waits_can_be_cancelled(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, ASKED)

    task = await scene.cancel(held.task, "never mind")

    assert (task.state, task.message) == (TaskState.CANCELLED, "never mind")
    with pytest.raises(NoQuestion, match="cancelled"):
        await answers(scene, held)


async def test_a_cancel_while_the_agent_has_asked_ends_the_task_with_the_attempt(scene: Scene) -> None:
    held = await asked(scene)
    await scene.cancel(held.task)

    task = await scene.finish(held, ASKED)

    assert (task.state, task.reason) == (TaskState.CANCELLED, Reason.CANCELLED)


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered", "open"])
async def test_an_attempt_lost_after_it_asked_is_lost_and_only_what_was_answered_stays(
    scene: Scene, *, is_answered: bool
) -> None:
    held = await asked(scene)
    if is_answered:
        await answers(scene, held, "Blue.")

    task = await scene.release(held, GONE)
    following = await scene.claim()

    assert task.state is TaskState.QUEUED
    assert following is not None
    assert [question.answer for question in following.task.questions] == (["Blue."] if is_answered else [])
    assert following.task == await scene.task(held)


async def test_a_silent_runner_loses_an_attempt_that_asked_like_any_other(scene: Scene) -> None:
    held = await asked(scene)
    await scene.pass_time(RECLAIM_AFTER + LEASE)

    following = await scene.claim(await scene.register(runner("berta")))

    assert following is not None
    assert (following.task.id, following.attempt.number) == (held.task.id, 2)


async def test_the_next_attempt_asks_again_and_earlier_answers_are_gone(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, ASKED)
    await answers(scene, held)
    following = await scene.claim()
    assert following is not None

    await asks(scene, following, "Big or small?")
    task = await scene.finish(following, ASKED)

    assert (task.state, [question.text for question in task.questions]) == (TaskState.WAITING, ["Big or small?"])


async def test_the_same_question_twice_is_one_and_ten_are_enough(scene: Scene) -> None:
    held = await asked(scene)
    await asks(scene, held, "Red or blue?", "red", "blue")
    for number in range(1, QUESTIONS_MAX):
        await asks(scene, held, f"Question {number}?")

    with pytest.raises(InvalidField, match="the limit is 10 per attempt"):
        await asks(scene, held, "One more?")

    assert len((await scene.task(held)).questions) == QUESTIONS_MAX
    assert (await scene.kinds(held)).count(EventKind.QUESTION) == QUESTIONS_MAX


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (" ", ()),
        ("x" * 10_001, ()),
        ("a\0b", ()),
        ("Which?", ("",)),
        ("Which?", ("a",) * 21),
        ("Which?", ("x" * 1_001,)),
    ],
)
async def test_an_unreadable_question_is_refused(scene: Scene, text: str, options: tuple[str, ...]) -> None:
    held = await asked(scene)

    with pytest.raises(InvalidField):
        await asks(scene, held, text, *options)


async def test_only_a_running_attempt_can_ask(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, ASKED)

    with pytest.raises(StaleFence):
        await asks(scene, held, "And another?")
    with pytest.raises(Exception, match="no attempt"):
        await ask(scene.database, AttemptId("att-0"), "Which?", (), NOON)


async def test_a_retry_begins_without_the_questions_of_the_task_before(scene: Scene) -> None:
    held = await asked(scene)
    await scene.finish(held, replace(FAILED, reason=Reason.TIMEOUT))

    assert (await scene.retry(held.task)).questions == ()
