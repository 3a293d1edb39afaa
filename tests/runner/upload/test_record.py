from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from delegate.errors import Refused
from delegate.model import EventKind, Stream
from delegate.runner.secrets.redaction import Redactor
from delegate.runner.upload.local_record import LocalRecord
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Batch, Spool
from delegate.runner.wakeup import Wakeup
from delegate.wire.basics import CHUNK_MAX
from delegate.wire.runners import Control

pytestmark = pytest.mark.anyio


class Sink:
    """Takes uploads, at most `most` items of each."""

    def __init__(self, most: int = 1000) -> None:
        self.lines: list[bytes] = []
        self.most = most

    async def take(self, batch: Batch) -> Control:
        self.lines += batch.lines[: self.most]
        return Control(next_seq=len(self.lines))


@asynccontextmanager
async def recording(directory: Path, sink: Sink) -> AsyncIterator[Record]:
    record = Record(
        Spool(directory, max_output=1 << 20, next_seq=0),
        Redactor({}).begin(),
        Wakeup(),
        local=LocalRecord(directory / "records" / "l" / "local.jsonl", output_max=0),
    )
    record.open()
    async with anyio.create_task_group() as group:
        group.start_soon(record.gather)
        group.start_soon(record.upload, sink.take)
        yield record
        with anyio.fail_after(5):
            while not record.is_uploaded:
                await record.wait_for_progress()
        group.cancel_scope.cancel()
    record.close()


async def test_small_pieces_of_one_stream_travel_together(tmp_path: Path) -> None:
    sink = Sink()

    async with recording(tmp_path, sink) as record:
        for _ in range(100):
            record.output(Stream.STDOUT, b"x")
        await record.wait_for_progress()

    assert len(sink.lines) == 1


async def test_the_order_of_the_streams_is_kept(tmp_path: Path) -> None:
    sink = Sink()

    async with recording(tmp_path, sink) as record:
        record.output(Stream.STDOUT, b"1")
        record.output(Stream.STDERR, b"2")
        record.output(Stream.STDOUT, b"3")
        record.flush()

    assert [b'"stderr"' in line for line in sink.lines] == [False, True, False]


async def test_a_lot_of_output_is_spooled_without_waiting(tmp_path: Path) -> None:
    sink = Sink()

    async with recording(tmp_path, sink) as record:
        for _ in range(9):
            record.output(Stream.STDOUT, b"x" * (CHUNK_MAX // 4))

        assert record.next_seq == 2


async def test_a_relay_that_takes_half_gets_the_other_half(tmp_path: Path) -> None:
    sink = Sink(most=1)

    async with recording(tmp_path, sink) as record:
        for number in range(5):
            record.fact(EventKind.MESSAGE, {"text": str(number)})

    assert [line[:8] for line in sink.lines] == [b'{"seq":%d' % number for number in range(5)]


async def test_output_that_is_refused_is_not_sent_for_ever(tmp_path: Path) -> None:
    class Refusing(Sink):
        async def take(self, batch: Batch) -> Control:
            raise Refused(why="no")

    async with recording(tmp_path, Refusing()) as record:
        record.fact(EventKind.MESSAGE, {"text": "hello"})

    assert not record.is_complete


async def test_a_disk_that_takes_nothing_more_calls_for_attention(tmp_path: Path) -> None:
    attention = Wakeup()
    record = Record(
        Spool(tmp_path, max_output=1 << 20, next_seq=0),
        Redactor({}).begin(),
        attention,
        local=LocalRecord(tmp_path / "records" / "l" / "local.jsonl", output_max=0),
    )
    (tmp_path / f"{0:016d}.jsonl").symlink_to("/dev/full")

    async with anyio.create_task_group() as group:
        group.start_soon(attention.wait)
        await anyio.wait_all_tasks_blocked()
        record.fact(EventKind.MESSAGE, {"text": "hello"})

    assert record.failure is not None
    assert not record.is_complete
    record.close()


async def test_secrets_are_taken_out_before_anything_is_on_disk(tmp_path: Path) -> None:
    attention = Wakeup()
    redaction = Redactor({"TOKEN": b"the-secret-token-1"}).begin()
    record = Record(
        Spool(tmp_path, max_output=1 << 20, next_seq=0),
        redaction,
        attention,
        local=LocalRecord(tmp_path / "records" / "l" / "local.jsonl", output_max=0),
    )

    first = record.output(Stream.STDOUT, b"say the-secret-to")
    second = record.output(Stream.STDOUT, b"ken-1 or the")
    rest = record.end_output(Stream.STDOUT)
    record.fact(EventKind.MESSAGE, {"text": "the-secret-token-1"})
    record.note_secrets()
    record.flush()
    record.close()

    assert (first, second, rest) == (b"say ", b"[redacted: TOKEN] or ", b"the")
    lines = (tmp_path / f"{0:016d}.jsonl").read_bytes()
    assert b"the-secret" not in lines
    assert b"secrets were removed from the output: TOKEN" in lines


async def test_an_attempt_without_secrets_says_nothing_of_them(tmp_path: Path) -> None:
    record = Record(
        Spool(tmp_path, max_output=1 << 20, next_seq=0),
        Redactor({}).begin(),
        Wakeup(),
        local=LocalRecord(tmp_path / "records" / "l" / "local.jsonl", output_max=0),
    )

    record.note_secrets()

    assert record.next_seq == 0
