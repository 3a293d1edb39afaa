from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delegate.model import EventKind, Stream
from delegate.runner.upload.spool import FACTS_MAX, SEGMENT, SLACK, Spool
from delegate.wire.basics import CHUNK_MAX, ITEMS_MAX
from delegate.wire.runners import RecordItem

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROOMY = 1 << 30
TIGHT = 1 << 20


NewSpool = Callable[..., Spool]


@pytest.fixture
def new_spool(tmp_path: Path) -> Iterator[NewSpool]:
    """Makes spools in the directory of the test, also one after the other."""
    made: list[Spool] = []

    def make(*, max_output: int = ROOMY, next_seq: int = 0) -> Spool:
        spool = Spool(tmp_path, max_output=max_output, next_seq=next_seq)
        spool.create()
        made.append(spool)
        return spool

    yield make
    for spool in made:
        spool.close()


def drained(spool: Spool) -> Iterator[dict[str, Any]]:
    """Everything as the relay would see it: each item parsed as the relay does."""
    while (batch := spool.batch()) is not None:
        for line in batch.lines:
            RecordItem.model_validate_json(line)
            yield json.loads(line)
        spool.acknowledge(batch.next, batch)


def printed(items: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(item["output"]) for item in items if item["kind"] == "output")


def test_items_come_out_as_they_went_in_and_numbered(new_spool: NewSpool) -> None:
    spool = new_spool()
    spool.output(Stream.STDOUT, b"one\xff", AT)
    spool.fact(EventKind.TOOL, {"name": "Bash"}, AT)
    spool.output(Stream.STDERR, b"two", AT)

    items = list(drained(spool))

    assert [item["seq"] for item in items] == [0, 1, 2]
    assert [item.get("stream") for item in items] == ["stdout", None, "stderr"]
    assert printed(items) == b"one\xfftwo"
    assert items[1]["data"] == {"name": "Bash"}
    assert spool.is_empty


def test_a_large_piece_of_output_is_cut_into_items_that_the_relay_takes(new_spool: NewSpool) -> None:
    spool = new_spool()
    data = bytes(range(256)) * 4096

    spool.output(Stream.STDOUT, data, AT)

    items = list(drained(spool))
    assert printed(items) == data
    assert all(len(base64.b64decode(item["output"])) <= CHUNK_MAX for item in items)


def test_a_batch_has_no_more_items_than_the_relay_takes(new_spool: NewSpool) -> None:
    spool = new_spool()
    for number in range(ITEMS_MAX + 1):
        spool.fact(EventKind.MESSAGE, {"text": str(number)}, AT)

    batch = spool.batch()

    assert batch is not None
    assert (len(batch.lines), batch.next) == (ITEMS_MAX, ITEMS_MAX)


def test_what_the_relay_has_is_not_sent_again_even_when_it_took_half_a_batch(new_spool: NewSpool) -> None:
    spool = new_spool()
    for number in range(5):
        spool.fact(EventKind.MESSAGE, {"text": str(number)}, AT)

    spool.acknowledge(2, spool.batch())

    assert [item["seq"] for item in drained(spool)] == [2, 3, 4]


def test_an_old_answer_changes_nothing(new_spool: NewSpool) -> None:
    spool = new_spool()
    for number in range(5):
        spool.fact(EventKind.MESSAGE, {"text": str(number)}, AT)
    spool.acknowledge(4)

    spool.acknowledge(2)

    assert [item["seq"] for item in drained(spool)] == [4]


def test_acknowledged_segments_leave_the_disk(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool()
    for _ in range(20):
        spool.output(Stream.STDOUT, b"x" * CHUNK_MAX, AT)
    before = spool.size

    list(drained(spool))

    assert before > 5 * SEGMENT
    assert spool.size == sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * SEGMENT


@pytest.mark.promise("P10")
def test_a_restarted_runner_sends_the_rest(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool()
    for number in range(20):
        spool.output(Stream.STDOUT, bytes([number]) * CHUNK_MAX, AT)
    spool.close()

    items = list(drained(Spool(tmp_path, max_output=ROOMY, next_seq=7)))

    assert [item["seq"] for item in items] == list(range(7, 20))
    assert printed(items) == b"".join(bytes([number]) * CHUNK_MAX for number in range(7, 20))


def test_a_line_torn_by_a_crash_is_left_out(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool()
    spool.output(Stream.STDOUT, b"whole", AT)
    spool.close()
    with next(tmp_path.glob("*.jsonl")).open("ab") as file:
        file.write(b'{"seq":1,"at":"2026')

    found = Spool(tmp_path, max_output=ROOMY, next_seq=0)

    assert found.next_seq == 1
    assert printed(list(drained(found))) == b"whole"


def flood(spool: Spool, megabytes: int) -> int:
    """Numbered output, a fact now and then; returns the bytes printed."""
    total = 0
    for number in range(megabytes * 4):
        spool.output(Stream.STDOUT, b"%08d" % number * (CHUNK_MAX // 8), AT)
        total += CHUNK_MAX
        if number % 10 == 0:
            spool.fact(EventKind.MESSAGE, {"text": str(number)}, AT)
    return total


@pytest.mark.promise("P10")
def test_a_flood_stays_within_its_limit_and_is_cut_visibly_and_exactly(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool(max_output=TIGHT)

    total = flood(spool, 64)

    assert spool.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert spool.size <= 2 * TIGHT + SLACK + 2 * SEGMENT
    items = list(drained(spool))
    assert gaps_in(items) == []
    skipped = sum(item["bytes"] for item in items if item["kind"] == "skipped")
    assert skipped + len(printed(items)) == total
    assert [item["data"]["text"] for item in items if item["kind"] == "message"] == [str(n) for n in range(0, 256, 10)]


def test_other_users_cannot_read_a_spool_even_after_it_was_thinned(tmp_path: Path, new_spool: NewSpool) -> None:
    flood(new_spool(max_output=TIGHT), 24)

    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.jsonl")}

    assert modes == {0o600}


def test_the_head_and_the_tail_of_a_flood_survive(new_spool: NewSpool) -> None:
    spool = new_spool(max_output=TIGHT)
    total = flood(spool, 64)

    kept = printed(list(drained(spool)))

    everything = b"".join(b"%08d" % number * (CHUNK_MAX // 8) for number in range(total // CHUNK_MAX))
    assert kept.startswith(everything[: TIGHT // 8])
    assert kept.endswith(everything[-TIGHT * 7 // 8 :])


def test_gaps_that_meet_become_one(new_spool: NewSpool) -> None:
    spool = new_spool(max_output=TIGHT)
    for _ in range(400):
        spool.output(Stream.STDOUT, b"x" * CHUNK_MAX, AT)

    gaps = [item for item in drained(spool) if item["kind"] == "skipped"]

    assert len(gaps) == 1


def test_a_batch_under_way_stays_as_it_was_sent(new_spool: NewSpool) -> None:
    spool = new_spool(max_output=TIGHT)
    spool.output(Stream.STDOUT, b"first", AT)
    under_way = spool.batch()
    assert under_way is not None

    flood(spool, 32)
    again = spool.batch()

    assert again is not None
    assert again.lines[: len(under_way.lines)] == under_way.lines


def test_a_crash_between_merging_and_removing_sends_nothing_twice(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool(max_output=TIGHT)
    flood(spool, 32)
    spool.close()
    gap = next(path for path in sorted(tmp_path.glob("*.jsonl")) if b'"skipped"' in path.read_bytes())
    first = json.loads(gap.read_bytes().splitlines()[0])["seq"]
    (tmp_path / f"{first + 1:016d}.jsonl").write_bytes(b'{"seq":%d,"at":"","kind":"output"}\n' % (first + 1))

    assert gaps_in(list(drained(Spool(tmp_path, max_output=TIGHT, next_seq=0)))) == []


def test_facts_beyond_their_limit_are_left_out_with_a_warning(new_spool: NewSpool) -> None:
    spool = new_spool()
    for _ in range(FACTS_MAX // 1000 + 100):
        spool.fact(EventKind.MESSAGE, {"text": "x" * 1000}, AT)

    items = list(drained(spool))

    assert [item["kind"] for item in items[-2:]] == ["message", "warning"]
    assert gaps_in(items) == []


def test_a_fact_too_large_to_send_becomes_a_warning(new_spool: NewSpool) -> None:
    spool = new_spool()

    spool.fact(EventKind.MESSAGE, {"text": "x" * CHUNK_MAX}, AT)

    assert [item["kind"] for item in drained(spool)] == ["warning"]


def test_a_full_disk_is_an_error_and_what_was_written_can_still_be_sent(tmp_path: Path, new_spool: NewSpool) -> None:
    spool = new_spool()
    while spool.size < SEGMENT:
        spool.output(Stream.STDOUT, b"x" * CHUNK_MAX, AT)
    (tmp_path / f"{spool.next_seq:016d}.jsonl").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        spool.output(Stream.STDOUT, b"more", AT)

    assert [item["seq"] for item in drained(spool)] == [0, 1, 2]


def gaps_in(items: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Where a number is not the next one: the number expected, and the one found."""
    following = [0, *(item.get("through", item["seq"]) + 1 for item in items)]
    return [(wanted, item["seq"]) for wanted, item in zip(following, items, strict=False) if item["seq"] != wanted]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("output"), st.integers(1, 3 * CHUNK_MAX)),
        st.tuples(st.just("fact"), st.integers(0, 2000)),
        st.tuples(st.just("send"), st.integers(0, ITEMS_MAX)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_whatever_happens_every_byte_is_sent_once_or_counted_as_skipped(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, max_output=1024, next_seq=0)
    spool.create()
    received: list[dict[str, Any]] = []
    total = 0
    for verb, size in steps:
        match verb:
            case "output":
                spool.output(Stream.STDOUT, b"x" * size, AT)
                total += size
            case "fact":
                spool.fact(EventKind.MESSAGE, {"text": "x" * size}, AT)
            case "send":
                received += take(spool, size)
            case "restart":
                spool.close()
                spool = Spool(directory, max_output=1024, next_seq=spool.acknowledged)
    received += drained(spool)

    assert gaps_in(received) == []
    assert len(printed(received)) + sum(item["bytes"] for item in received if item["kind"] == "skipped") == total
    spool.close()


def take(spool: Spool, count: int) -> list[dict[str, Any]]:
    """The relay takes some items of the next batch and its answer says so."""
    batch = spool.batch()
    if batch is None or count == 0:
        return []
    taken = [json.loads(line) for line in batch.lines[:count]]
    spool.acknowledge(taken[-1].get("through", taken[-1]["seq"]) + 1, batch)
    return taken
