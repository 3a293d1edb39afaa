"""Of an attempt's output the first eighth and the last seven are kept, and what is missing is counted exactly."""

from __future__ import annotations

import random

import pytest
from tests.both_databases.scene import Scene, output
from tests.both_databases.test_record import kept

from delegate.queue.claim import ClaimedTask
from delegate.report.follow import with_gaps

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P10")]
LIMIT = 1024
HEAD = LIMIT // 8
TAIL = LIMIT - HEAD


def lines(count: int) -> bytes:
    return b"".join(b"%06d\n" % number for number in range(count))


def pieces(data: bytes, sizes: random.Random) -> list[bytes]:
    cut = []
    while data:
        size = sizes.choice([1, 7, 100, 500, 3000])
        cut.append(data[:size])
        data = data[size:]
    return cut


async def assert_kept_as_promised(scene: Scene, held: ClaimedTask, printed: bytes) -> None:
    [attempt] = await scene.attempts(held)
    chunks = await kept(scene, held.attempt.id)
    gaps = [missing for missing, _ in with_gaps(chunks, 0) if missing]
    if len(printed) <= LIMIT:
        assert b"".join(chunk.data for chunk in chunks) == printed
        assert (attempt.output_bytes, attempt.truncated_bytes, gaps) == (len(printed), 0, [])
        return
    assert b"".join(chunk.data for chunk in chunks) == printed[:HEAD] + printed[-TAIL:]
    lost = len(printed) - LIMIT
    assert (attempt.output_bytes, attempt.truncated_bytes, gaps) == (len(printed), lost, [lost])


@pytest.mark.parametrize("size", [0, 1, HEAD, HEAD + 1, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + HEAD, 5 * LIMIT])
async def test_one_chunk_of_any_size_is_kept_as_promised(scene: Scene, size: int) -> None:
    held = await scene.take(max_output=LIMIT)
    printed = lines(1000)[:size]

    await scene.record(held, output(0, printed))

    await assert_kept_as_promised(scene, held, printed)


@pytest.mark.parametrize("seed", range(5))
async def test_chunks_of_random_sizes_are_kept_as_promised_after_every_one(scene: Scene, seed: int) -> None:
    held = await scene.take(max_output=LIMIT)
    dice = random.Random(seed)
    printed = b""
    for seq, piece in enumerate(pieces(lines(1200), dice)):
        await scene.record(held, output(seq, piece))
        printed += piece
        if dice.random() < 0.2:
            await assert_kept_as_promised(scene, held, printed)

    await assert_kept_as_promised(scene, held, printed)


async def test_what_the_limit_cut_may_be_sent_again(scene: Scene) -> None:
    """One upload went over the limit and its answer was lost: of its first chunk only the beginning is left."""
    held = await scene.take(max_output=LIMIT)
    printed = lines(600)
    items = [output(seq, printed[seq * 700 : seq * 700 + 700]) for seq in range(6)]
    await scene.record(held, *items)

    assert (await scene.record(held, *items)).next_seq == 6

    await assert_kept_as_promised(scene, held, printed)


async def test_the_limit_holds_for_each_attempt_alone(scene: Scene) -> None:
    held = await scene.take(agent="claude", max_output=LIMIT)
    await scene.record(held, output(0, lines(300)))
    await scene.release(held)
    again = await scene.claim()
    assert again is not None

    await scene.record(again, output(0, b"fresh"))

    assert [chunk.data for chunk in await kept(scene, again.attempt.id)] == [b"fresh"]
    assert sum(len(chunk.data) for chunk in await kept(scene, held.attempt.id)) == LIMIT
