from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.both_databases.scene import DONE, GONE, HANDED_BACK, NOON, Scene, fact, holder, parked_until, runner

from delegate.errors import Forbidden, IllegalMove, NoSuchAttempt, NoSuchTask, Refused, SequenceGap, StaleFence
from delegate.model import AttemptId, EventKind, Outcome, TaskId, Usage
from delegate.queue.finish import cancel, finish
from delegate.report.record import record, renew
from delegate.states import AttemptState, Reason, TaskState

pytestmark = pytest.mark.anyio
SPENT = Usage(input_tokens=5, output_tokens=7, cost_usd=0.25, turns=2)
ENDS = [
    (AttemptState.COMPLETED, Reason.DONE, TaskState.COMPLETED),
    (AttemptState.FAILED, Reason.COMMAND_FAILED, TaskState.FAILED),
    (AttemptState.FAILED, Reason.TIMEOUT, TaskState.FAILED),
    (AttemptState.CANCELLED, Reason.CANCELLED, TaskState.CANCELLED),
]


@pytest.mark.parametrize(("state", "reason", "becomes"), ENDS)
async def test_the_end_of_an_attempt_is_the_end_of_its_task(
    scene: Scene, state: AttemptState, reason: Reason, becomes: TaskState
) -> None:
    held = await scene.take()
    scene.now += timedelta(seconds=90)

    await scene.finish(
        held, Outcome(state=state, reason=reason, message="so", exit_code=3, session_id="s-1", usage=SPENT)
    )

    task = await scene.task(held)
    [attempt] = await scene.attempts(held)
    assert (task.state, task.reason, task.message, task.exit_code) == (becomes, reason, "so", 3)
    assert (task.started_at, task.finished_at) == (NOON, NOON + timedelta(seconds=90))
    assert (task.usage, task.session_id) == (SPENT, "s-1")
    assert (attempt.state, attempt.reason, attempt.message, attempt.exit_code) == (state, reason, "so", 3)
    assert (attempt.finished_at, attempt.usage, attempt.session_id) == (task.finished_at, SPENT, "s-1")
    assert (await scene.events(held))[-1].data == {"state": becomes, "reason": reason, "message": "so", "exitCode": 3}


@pytest.mark.promise("P1")
async def test_an_end_that_is_reported_twice_is_one_end(scene: Scene) -> None:
    held = await scene.take()
    first = await scene.finish(held)
    scene.now += timedelta(minutes=1)

    second = await scene.finish(held)

    assert (second.state, second.finished_at) == (TaskState.COMPLETED, first.finished_at)
    assert (await scene.kinds(held)).count(EventKind.FINISHED) == 1


@pytest.mark.parametrize(
    "other",
    [
        Outcome(state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message="no"),
        Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="ended well", exit_code=1),
        HANDED_BACK,
    ],
)
async def test_another_end_after_the_end_is_refused(scene: Scene, other: Outcome) -> None:
    held = await scene.take()
    await scene.finish(held)

    with pytest.raises(StaleFence):
        await scene.finish(held, other)

    assert (await scene.task(held)).state is TaskState.COMPLETED


@pytest.mark.promise("P10")
async def test_an_end_that_comes_before_all_of_the_report_is_refused(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, fact(0), fact(1))

    with pytest.raises(SequenceGap, match="expects event 2, not 3"):
        await scene.finish(held, next_seq=3)

    assert (await scene.task(held)).state is TaskState.RUNNING
    assert (await scene.finish(held, next_seq=2)).state is TaskState.COMPLETED


async def test_an_end_without_the_whole_report_is_taken_when_the_runner_says_so(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, fact(0))

    assert (await scene.finish(held, next_seq=None)).state is TaskState.COMPLETED


@pytest.mark.promise("P3")
@pytest.mark.parametrize("wrong", ["older fence", "newer fence", "another runner", "unknown attempt"])
async def test_a_write_of_a_runner_that_does_not_hold_the_task_changes_nothing(scene: Scene, wrong: str) -> None:
    first = await scene.take(agent="claude")
    await scene.release(first)
    held = await scene.claim()
    assert held is not None
    before = (await scene.task(held), await scene.attempts(held), await scene.events(held))
    stranger, error = {
        "older fence": (replace(holder(held), fence=held.attempt.fence - 1), StaleFence),
        "newer fence": (replace(holder(held), fence=held.attempt.fence + 1), StaleFence),
        "another runner": (replace(holder(held), slot_id=runner("eve").id), Forbidden),
        "unknown attempt": (replace(holder(held), attempt_id=AttemptId("att-0")), NoSuchAttempt),
    }[wrong]

    with pytest.raises(error):
        await finish(scene.database, stranger, DONE, next_seq=0, now=scene.now)
    with pytest.raises(error):
        await record(scene.database, stranger, [fact(0)], scene.now)
    with pytest.raises(error):
        await renew(scene.database, stranger, 0, scene.now)

    assert (await scene.task(held), await scene.attempts(held), await scene.events(held)) == before


@pytest.mark.promise("P3")
async def test_the_holder_of_an_ended_attempt_can_write_nothing(scene: Scene) -> None:
    held = await scene.take()
    await scene.finish(held)

    with pytest.raises(StaleFence):
        await scene.renew(held)
    with pytest.raises(StaleFence):
        await scene.record(held, fact(0))


async def test_a_task_handed_back_waits_again_and_no_attempt_is_counted(scene: Scene) -> None:
    held = await scene.take()

    given = await scene.release(held, replace(HANDED_BACK, session_id="s-9"))

    task = await scene.task(held)
    assert task == given
    assert (task.state, task.attempts, task.fence, task.session_id) == (TaskState.QUEUED, 0, 1, "s-9")
    assert [attempt.state for attempt in await scene.attempts(held)] == [AttemptState.RELEASED]
    assert (await scene.kinds(held))[-1] is EventKind.RELEASED
    again = await scene.claim()
    assert again is not None
    assert (again.attempt.number, again.attempt.fence) == (1, 2)


async def test_handing_back_twice_is_handing_back_once(scene: Scene) -> None:
    held = await scene.take()
    await scene.release(held)

    await scene.release(held)

    assert (await scene.task(held)).attempts == 0
    assert (await scene.kinds(held)).count(EventKind.RELEASED) == 1


async def test_a_limit_parks_the_task_with_what_it_spent_and_its_session(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    until = NOON + timedelta(hours=5)

    parked = await scene.finish(held, parked_until(until, usage=SPENT, session_id="s-1"))

    task = await scene.task(held)
    assert task == parked
    assert (task.state, task.not_before, task.attempts, task.finished_at) == (TaskState.QUEUED, until, 0, None)
    assert (task.usage, task.session_id) == (SPENT, "s-1")
    event = (await scene.events(held))[-1]
    assert event.kind is EventKind.PARKED
    assert event.data == {"reason": "usage_limit", "message": "limit", "until": until.isoformat()}


async def test_what_the_attempts_spent_adds_up(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.finish(held, parked_until(NOON, usage=SPENT))
    again = await scene.claim()
    assert again is not None

    await scene.finish(again, replace(DONE, usage=SPENT))

    assert (await scene.task(held)).usage == SPENT.plus(SPENT)


@pytest.mark.parametrize("ending", ["hand back", "park", "lose"])
async def test_a_task_whose_end_was_asked_for_does_not_go_back_to_the_queue(scene: Scene, ending: str) -> None:
    held = await scene.take(agent="claude")
    await scene.cancel(held.task, "not needed any more")

    if ending == "park":
        await scene.finish(held, parked_until(NOON + timedelta(hours=1)))
    else:
        await scene.release(held, HANDED_BACK if ending == "hand back" else GONE)

    task = await scene.task(held)
    assert (task.state, task.reason, task.message) == (TaskState.CANCELLED, Reason.CANCELLED, "not needed any more")
    assert task.finished_at == NOON
    assert (await scene.kinds(held))[-1] is EventKind.FINISHED


async def test_cancelling_a_queued_task_ends_it(scene: Scene) -> None:
    queued = await scene.submit()

    answered = await scene.cancel(queued, "a mistake")

    task = await scene.task(queued)
    assert task == answered
    assert (task.state, task.reason, task.message) == (TaskState.CANCELLED, Reason.CANCELLED, "a mistake")
    assert await scene.kinds(queued) == [EventKind.SUBMITTED, EventKind.FINISHED]
    assert await scene.claim() is None


async def test_cancelling_a_running_task_asks_its_runner(scene: Scene) -> None:
    held = await scene.take()

    answered = await scene.cancel(held.task, "stop that")

    assert (answered.state, answered.cancel_requested_at) == (TaskState.RUNNING, NOON)
    assert (await scene.renew(held)).cancel == "stop that"
    assert (await scene.record(held, fact(0))).cancel == "stop that"
    assert (await scene.kinds(held))[2] is EventKind.CANCEL_REQUESTED
    stopped = Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message="stop that")
    assert (await scene.finish(held, stopped, next_seq=1)).state is TaskState.CANCELLED


async def test_cancelling_twice_is_cancelling_once(scene: Scene) -> None:
    held = await scene.take()
    await scene.cancel(held.task, "first")
    scene.now += timedelta(seconds=1)

    again = await scene.cancel(held.task, "second")

    assert (again.cancel_reason, again.cancel_requested_at) == ("first", NOON)
    assert (await scene.kinds(held)).count(EventKind.CANCEL_REQUESTED) == 1
    queued = await scene.submit()
    assert await scene.cancel(queued) == await scene.cancel(queued)


async def test_the_first_reason_of_a_cancel_is_kept_though_it_comes_later(scene: Scene) -> None:
    held = await scene.take()
    await scene.cancel(held.task)
    reason = (await scene.renew(held)).cancel
    await scene.cancel(held.task, "second")
    await scene.cancel(held.task, "third")
    await scene.cancel(held.task)
    stopped = Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message=reason or "")

    ended = await scene.finish(held, stopped)

    assert (ended.message, ended.cancel_requested_at) == ("second", NOON)
    assert (await scene.kinds(held)).count(EventKind.CANCEL_REQUESTED) == 2


async def test_an_ended_task_cannot_be_cancelled(scene: Scene) -> None:
    held = await scene.take()
    await scene.finish(held)

    with pytest.raises(IllegalMove, match="is completed: it cannot be cancelled"):
        await scene.cancel(held.task)
    with pytest.raises(NoSuchTask):
        await cancel(scene.database, TaskId("task-none"), "", scene.now)


async def test_a_name_that_cannot_be_stored_names_nothing(scene: Scene) -> None:
    """SQLite finds nothing, PostgreSQL does not look; neither is a defect of the relay."""
    with pytest.raises((NoSuchTask, Refused)):
        await cancel(scene.database, TaskId("task-\0"), "", scene.now)
