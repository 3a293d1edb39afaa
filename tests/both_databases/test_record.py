from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from tests.both_databases.scene import GONE, NOON, Scene, fact, holder, only_reading, output, skipped

from delegate.errors import EventConflict, Forbidden, KeyUsed, NoSuchAttempt, SequenceGap, StaleFence
from delegate.intake.messages import send_message
from delegate.model import AttemptId, EventKind, OutputChunk, SlotId, Stream
from delegate.report.record import ReportItem, signals
from delegate.store.events import output_of_attempt

pytestmark = pytest.mark.anyio


async def kept(scene: Scene, attempt: AttemptId) -> list[OutputChunk]:
    return await scene.database.read(partial(output_of_attempt, attempt_id=attempt, offset=0, limit=100))


async def test_a_report_is_kept_in_its_order(scene: Scene) -> None:
    held = await scene.take()

    await scene.record(held, fact(0, text="hello"), output(1, b"one\n"), output(2, b"two\n", Stream.STDERR))
    standing = await scene.record(held, output(3, b"\xff\x00three"), fact(4, EventKind.TOOL, name="Bash"))

    assert standing.next_seq == 5
    events = [(event.kind, event.data) for event in await scene.events(held)]
    assert events[2:] == [(EventKind.MESSAGE, {"text": "hello"}), (EventKind.TOOL, {"name": "Bash"})]
    chunks = await kept(scene, held.attempt.id)
    assert [(chunk.seq, chunk.stream, chunk.offset, chunk.data) for chunk in chunks] == [
        (1, Stream.STDOUT, 0, b"one\n"),
        (2, Stream.STDERR, 4, b"two\n"),
        (3, Stream.STDOUT, 8, b"\xff\x00three"),
    ]
    [attempt] = await scene.attempts(held)
    assert (attempt.next_seq, attempt.output_bytes, attempt.truncated_bytes) == (5, 15, 0)


@pytest.mark.promise("P10")
async def test_what_is_sent_again_is_not_kept_again(scene: Scene) -> None:
    held = await scene.take()
    items = [fact(0, text="a"), output(1, b"x"), fact(2, text="b", more={"n": [1, 2.5, None]})]
    await scene.record(held, *items)

    standing = await scene.record(held, *items, output(3, b"y"))

    assert standing.next_seq == 4
    assert (await scene.kinds(held))[2:] == [EventKind.MESSAGE, EventKind.MESSAGE]
    assert b"".join(chunk.data for chunk in await kept(scene, held.attempt.id)) == b"xy"


@pytest.mark.promise("P10")
@pytest.mark.parametrize(
    "other",
    [
        fact(0, text="something else"),
        fact(0, EventKind.WARNING, text="hello"),
        output(0, b"hello"),
        output(1, b"other"),
        output(1, b"words", Stream.STDERR),
        fact(1, text="words"),
        skipped(0, 0, 5),
    ],
)
async def test_another_content_under_a_number_that_is_taken_is_refused(scene: Scene, other: ReportItem) -> None:
    held = await scene.take()
    await scene.record(held, fact(0, text="hello"), output(1, b"words"))
    before = (await scene.attempts(held), await scene.events(held), await kept(scene, held.attempt.id))
    scene.now += timedelta(seconds=1)

    with pytest.raises(EventConflict, match=f"already has an event {other.seq}"):
        await scene.record(held, other)

    assert (await scene.attempts(held), await scene.events(held), await kept(scene, held.attempt.id)) == before


@pytest.mark.promise("P10")
@pytest.mark.parametrize(
    ("items", "expected", "given"),
    [
        ([output(1, b"x")], 0, 1),
        ([output(0, b"x"), output(2, b"y")], 1, 2),
        ([output(0, b"x"), output(0, b"x")], 1, 0),
        ([skipped(0, 4, 9), output(4, b"y")], 5, 4),
    ],
)
async def test_a_gap_is_refused_with_everything_that_came_with_it(
    scene: Scene, items: list[ReportItem], expected: int, given: int
) -> None:
    held = await scene.take()

    with pytest.raises(SequenceGap, match=f"expects event {expected}, not {given}"):
        await scene.record(held, *items)

    assert (await scene.renew(held)).next_seq == 0
    assert await kept(scene, held.attempt.id) == []


async def test_a_stretch_the_runner_had_to_skip_is_counted_to_the_byte(scene: Scene) -> None:
    held = await scene.take()

    await scene.record(held, output(0, b"abc"), skipped(1, 9, 1000), output(10, b"xyz"))

    [attempt] = await scene.attempts(held)
    assert (attempt.next_seq, attempt.output_bytes, attempt.truncated_bytes) == (11, 1006, 1000)
    assert [chunk.offset for chunk in await kept(scene, held.attempt.id)] == [0, 1003]
    event = (await scene.events(held))[-1]
    assert (event.kind, event.data) == (EventKind.SKIPPED, {"bytes": 1000})


async def test_a_skipped_stretch_may_be_sent_again(scene: Scene) -> None:
    held = await scene.take()
    items = [output(0, b"abc"), skipped(1, 9, 1000)]
    await scene.record(held, *items)

    assert (await scene.record(held, *items)).next_seq == 10

    [attempt] = await scene.attempts(held)
    assert (attempt.output_bytes, attempt.truncated_bytes) == (1003, 1000)


async def test_output_of_no_bytes_takes_a_number_and_nothing_else(scene: Scene) -> None:
    held = await scene.take()

    await scene.record(held, output(0, b""), output(1, b"x"))

    assert (await scene.renew(held)).next_seq == 2
    assert [chunk.data for chunk in await kept(scene, held.attempt.id)] == [b"x"]


async def test_the_time_of_an_event_is_kept_to_the_microsecond(scene: Scene) -> None:
    held = await scene.take()
    at = NOON + timedelta(microseconds=1)

    await scene.record(held, ReportItem(seq=0, through=0, at=at, kind=EventKind.MESSAGE))

    assert (await scene.events(held))[-1].at == at


async def test_messages_reach_the_runner_until_it_has_seen_them(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    for text in ("one", "two"):
        await send_message(scene.database, held.task.id, text, request_key=None, now=scene.now)

    first, second = (await scene.renew(held)).messages
    assert (first.text, second.text) == ("one", "two")
    assert (await scene.renew(held, messages_seen=first.id)).messages == (second,)
    assert (await scene.record(held, fact(0))).messages == (second,)
    assert (await scene.renew(held, messages_seen=second.id)).messages == ()
    assert (await scene.renew(held, messages_seen=0)).messages == ()
    assert (await scene.record(held, fact(1))).messages == ()


async def test_the_same_message_sent_twice_is_one_message(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    for _ in range(2):
        await send_message(scene.database, held.task.id, "stop", request_key="k", now=scene.now)

    assert [message.text for message in (await scene.renew(held)).messages] == ["stop"]


async def test_a_continued_session_does_not_get_old_messages_again(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.record(held, fact(0, kind=EventKind.SESSION, sessionId="s-1"))
    await send_message(scene.database, held.task.id, "hello", request_key="k", now=scene.now)
    [message] = (await scene.renew(held)).messages
    await scene.renew(held, messages_seen=message.id)
    await scene.release(held, GONE)

    again = await scene.claim()

    assert again is not None
    assert (await scene.renew(again)).messages == ()


async def test_a_message_sent_again_after_the_end_is_still_the_same_message(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await send_message(scene.database, held.task.id, "hello", request_key="k", now=scene.now)
    await scene.finish(held)

    again = await send_message(scene.database, held.task.id, "hello", request_key="k", now=scene.now)

    assert again.id == held.task.id


async def test_the_key_of_a_message_to_one_task_is_refused_for_another(scene: Scene) -> None:
    held, other = await scene.take(agent="claude"), await scene.take(agent="claude")
    await send_message(scene.database, held.task.id, "stop", request_key="k", now=scene.now)

    with pytest.raises(KeyUsed, match="used for a different request"):
        await send_message(scene.database, other.task.id, "go on", request_key="k", now=scene.now)

    assert [message.text for message in (await scene.renew(held)).messages] == ["stop"]
    assert (await scene.renew(other)).messages == ()


async def test_reading_the_signals_of_an_attempt_locks_nothing(scene: Scene) -> None:
    """PostgreSQL refuses locks in a transaction that only reads."""
    held = await scene.take(agent="claude")
    await send_message(scene.database, held.task.id, "hello", request_key=None, now=scene.now)

    found = await signals(only_reading(scene.database), holder(held), 0)

    assert found == await scene.renew(held)


async def test_a_runner_that_does_not_hold_an_attempt_gets_no_signals(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    mine = holder(held)
    strangers = (
        (replace(mine, attempt_id=AttemptId("attempt-none")), NoSuchAttempt),
        (replace(mine, slot_id=SlotId("runner-eve")), Forbidden),
        (replace(mine, fence=mine.fence + 1), StaleFence),
    )

    for stranger, refusal in strangers:
        with pytest.raises(refusal):
            await signals(scene.database, stranger, 0)
    await scene.finish(held)
    with pytest.raises(StaleFence):
        await signals(scene.database, mine, 0)


async def test_output_that_could_not_be_sent_is_noted_in_the_timeline(scene: Scene) -> None:
    held = await scene.take()

    await scene.finish(held, next_seq=None)

    assert (await scene.kinds(held))[-2:] == [EventKind.WARNING, EventKind.FINISHED]
