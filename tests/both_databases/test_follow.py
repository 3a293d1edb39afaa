from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.both_databases.scene import HANDED_BACK, LEASE, NOON, Scene, fact, output, runner

from delegate.errors import IllegalMove, NoSuchTask
from delegate.intake.messages import send_message
from delegate.model import EventKind, TaskId
from delegate.relay.output_lines import Line, LineReader, OutputTail, read_to_end
from delegate.report.follow import (
    ID_GAP_TIMEOUT,
    Cursor,
    IdGaps,
    end_of_task_feed,
    read_full_task,
    read_task_updates,
    relay_state,
)
from delegate.states import TaskState
from delegate.store.events import events_after, last_event_id

pytestmark = pytest.mark.anyio


async def test_tasks_are_listed_newest_first_page_by_page(scene: Scene) -> None:
    prompts = [(await scene.submit(str(number))).prompt for number in range(5)]

    first = await scene.page(limit=2)
    second = await scene.page(before=first[-1][0], limit=2)
    third = await scene.page(before=second[-1][0], limit=2)

    assert [task.prompt for _, task in first + second + third] == prompts[::-1]


async def test_a_page_can_be_of_some_states_only(scene: Scene) -> None:
    running = await scene.take()
    queued = await scene.submit()
    ended = await scene.cancel(await scene.submit())

    async def ids(*states: TaskState) -> list[str]:
        return [task.id for _, task in await scene.page(states=states)]

    assert await ids(TaskState.QUEUED) == [queued.id]
    assert await ids(TaskState.CANCELLED, TaskState.RUNNING) == [ended.id, running.task.id]
    assert await ids(TaskState.FAILED) == []


async def test_a_follower_of_a_task_gets_everything_once_and_then_the_end(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, fact(0, text="a"), output(1, b"one"))
    first = await read_task_updates(scene.database, held.task.id, Cursor())
    cursor = Cursor(event=first.events[-1].id, output=first.chunks[-1].id)
    await scene.record(held, output(2, b"two"))
    await scene.finish(held, next_seq=3)

    second = await read_task_updates(scene.database, held.task.id, cursor)

    assert [event.kind for event in first.events] == [EventKind.SUBMITTED, EventKind.CLAIMED, EventKind.MESSAGE]
    assert [chunk.data for chunk in first.chunks] == [b"one"]
    assert ([event.kind for event in second.events], [chunk.data for chunk in second.chunks]) == (
        [EventKind.FINISHED],
        [b"two"],
    )
    assert second.task.state is TaskState.COMPLETED


async def test_a_follower_from_now_on_gets_only_what_comes(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, output(0, b"old"))
    cursor = await end_of_task_feed(scene.database, held.task.id)

    await scene.record(held, output(1, b"new"), fact(2))

    news = await read_task_updates(scene.database, held.task.id, cursor)
    assert ([chunk.data for chunk in news.chunks], [event.kind for event in news.events]) == (
        [b"new"],
        [EventKind.MESSAGE],
    )


async def test_the_feed_of_all_tasks_has_every_event_in_order(scene: Scene) -> None:
    start = await scene.database.read(last_event_id)
    first, second = await scene.submit(), await scene.submit()
    await scene.cancel(first)

    events = await scene.database.read(partial(events_after, after=start, limit=10))

    assert [(event.task_id, event.kind) for event in events] == [
        (first.id, EventKind.SUBMITTED),
        (second.id, EventKind.SUBMITTED),
        (first.id, EventKind.FINISHED),
    ]
    assert await scene.database.read(partial(events_after, after=events[-1].id, limit=10)) == []


async def test_a_hole_in_the_numbers_is_waited_for_and_then_passed(scene: Scene) -> None:
    """In PostgreSQL a transaction takes its numbers before it commits: another may be seen before it."""
    start = await scene.database.read(last_event_id)
    for _ in range(5):
        await scene.submit()
    first, missing, third, also_missing, fifth = await scene.database.read(partial(events_after, after=start, limit=10))
    seen, patience = [first, third, fifth], ID_GAP_TIMEOUT.total_seconds()
    holes = IdGaps()

    assert holes.take_contiguous(seen, start, now=0.0) == [first]
    assert holes.take_contiguous([third, fifth], first.id, now=patience - 0.1) == []
    assert holes.take_contiguous([third, fifth], first.id, now=patience) == [third, fifth]
    assert {missing.id, also_missing.id} == {first.id + 1, third.id + 1}


async def test_an_event_that_fills_a_gap_in_time_is_delivered(scene: Scene) -> None:
    start = await scene.database.read(last_event_id)
    for _ in range(3):
        await scene.submit()
    first, late, third = await scene.database.read(partial(events_after, after=start, limit=10))
    holes = IdGaps()

    assert holes.take_contiguous([first, third], start, now=0.0) == [first]
    assert holes.take_contiguous([late, third], first.id, now=1.0) == [late, third]


async def test_the_end_of_a_long_timeline_is_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await scene.take()
    await scene.record(held, *(fact(seq, text=str(seq)) for seq in range(6)))
    await scene.finish(held, next_seq=6)
    monkeypatch.setattr("delegate.report.follow.TIMELINE_MAX", 3)

    full = await read_full_task(scene.database, held.task.id, scene.rules, scene.now)

    assert [event.kind for event in full.events] == [EventKind.MESSAGE, EventKind.MESSAGE, EventKind.FINISHED]


async def test_a_task_that_does_not_exist_cannot_be_followed(scene: Scene) -> None:
    nothing = TaskId("task-none")

    with pytest.raises(NoSuchTask):
        await read_full_task(scene.database, nothing, scene.rules, scene.now)
    with pytest.raises(NoSuchTask):
        await read_task_updates(scene.database, nothing, Cursor())


async def test_the_state_of_the_relay_counts_everything(scene: Scene) -> None:
    anna = await scene.register(runner())
    held = await scene.take()
    await scene.submit()
    await scene.cancel(await scene.submit())

    state = await relay_state(scene.database, "desk", scene.now)

    assert state.counts == {TaskState.RUNNING: 1, TaskState.QUEUED: 1, TaskState.CANCELLED: 1}
    assert [known.id for known in state.slots] == [anna.id]
    assert [attempt.id for attempt in state.attempts] == [held.attempt.id]


async def test_a_runner_without_a_renewal_for_a_lease_is_silent_and_not_busy(scene: Scene) -> None:
    held = await scene.take()

    during = await scene.snapshot(now=NOON + LEASE)
    after = await scene.snapshot(now=NOON + LEASE + timedelta(microseconds=1))

    assert (during.busy, during.silent) == ({held.attempt.slot_id}, frozenset())
    assert (after.busy, after.silent) == (frozenset(), {held.task.id})


async def test_only_a_running_agent_accepts_messages(scene: Scene) -> None:
    command = await scene.take(agent="shell")
    waiting = await scene.take(agent="claude")
    await scene.release(waiting, HANDED_BACK)

    for task in (command.task, waiting.task):
        with pytest.raises(IllegalMove, match="cannot be sent a message"):
            await send_message(scene.database, task.id, "hello", request_key=None, now=scene.now)
    with pytest.raises(NoSuchTask):
        await send_message(scene.database, TaskId("task-none"), "hello", request_key=None, now=scene.now)


async def test_who_reads_much_output_gives_others_their_turn_after_each_chunk(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, *(output(seq, b"line %d\n" % seq) for seq in range(5)))
    turns = 0
    seen = []

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    class Watched(OutputTail):
        def add(self, lines: Iterable[Line]) -> None:
            super().add(lines)
            seen.append(turns)

    tail = Watched(2, 1024)
    async with anyio.create_task_group() as group:
        group.start_soon(neighbour)
        await read_to_end(scene.database, held.task.id, LineReader(last=2), tail)
        group.cancel_scope.cancel()

    assert len(set(seen)) == 5
    assert [line.text for line in tail.lines] == ["line 3", "line 4"]
