"""Of an attempt's output the first eighth and the last seven are kept, and what is missing is counted exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Kept:
    """What the relay keeps of an attempt's output, and what it says of the rest."""

    data: bytes
    printed: int
    lost: int
    gaps: list[int]


async def kept_of(scene: Scene, held: ClaimedTask) -> Kept:
    [attempt] = await scene.attempts(held)
    chunks = await kept(scene, held.attempt.id)
    return Kept(
        data=b"".join(chunk.data for chunk in chunks),
        printed=attempt.output_bytes,
        lost=attempt.truncated_bytes,
        gaps=[missing for missing, _ in with_gaps(chunks, 0) if missing],
    )


def promised(printed: bytes) -> Kept:
    if len(printed) <= LIMIT:
        return Kept(data=printed, printed=len(printed), lost=0, gaps=[])
    lost = len(printed) - LIMIT
    return Kept(data=printed[:HEAD] + printed[-TAIL:], printed=len(printed), lost=lost, gaps=[lost])


@pytest.mark.parametrize("size", [0, 1, HEAD, HEAD + 1, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + HEAD, 5 * LIMIT])
async def test_one_chunk_of_any_size_is_kept_as_promised(scene: Scene, size: int) -> None:
    held = await scene.take(max_output=LIMIT)
    printed = lines(1000)[:size]

    await scene.record(held, output(0, printed))

    assert await kept_of(scene, held) == promised(printed)


@pytest.mark.parametrize("seed", range(5))
async def test_chunks_of_random_sizes_are_kept_as_promised_after_every_one(scene: Scene, seed: int) -> None:
    held = await scene.take(max_output=LIMIT)
    dice = random.Random(seed)
    printed = b""
    for seq, piece in enumerate(pieces(lines(1200), dice)):
        await scene.record(held, output(seq, piece))
        printed += piece
        if dice.random() < 0.2:
            assert await kept_of(scene, held) == promised(printed)

    assert await kept_of(scene, held) == promised(printed)


async def test_what_the_limit_cut_may_be_sent_again(scene: Scene) -> None:
    """One upload went over the limit and its answer was lost: of its first chunk only the beginning is left."""
    held = await scene.take(max_output=LIMIT)
    printed = lines(600)
    items = [output(seq, printed[seq * 700 : seq * 700 + 700]) for seq in range(6)]
    await scene.record(held, *items)

    assert (await scene.record(held, *items)).next_seq == 6

    assert await kept_of(scene, held) == promised(printed)


async def test_the_limit_holds_for_each_attempt_alone(scene: Scene) -> None:
    held = await scene.take(agent="claude", max_output=LIMIT)
    await scene.record(held, output(0, lines(300)))
    await scene.release(held)
    again = await scene.claim()
    assert again is not None

    await scene.record(again, output(0, b"fresh"))

    assert [chunk.data for chunk in await kept(scene, again.attempt.id)] == [b"fresh"]
    assert sum(len(chunk.data) for chunk in await kept(scene, held.attempt.id)) == LIMIT
