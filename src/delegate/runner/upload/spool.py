"""Stores an attempt's output and facts on disk until the relay has them.

Items are numbered when they are written, in segment files named after their first number. A segment is removed when
the relay has all of it. There is no fsync: the spool must survive a crash of the runner, not of the machine, which
also ends the agent.

When the files exceed their limit (the relay is away, or slower than the agent), the oldest segment is *thinned*: its
facts stay, and each run of output between them becomes one `skipped` item that covers exactly their numbers and counts
exactly their bytes. Never thinned are the head (the first eighth of the output, which the relay keeps), the segment
being uploaded (the relay may have part of it) and the one being written. Facts are limited when they arrive: beyond
FACTS_MAX they are dropped with one warning; the output still contains them.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from delegate.config.home_files import PRIVATE_DIRECTORY, PRIVATE_FILE
from delegate.model import HEAD_SHARE, EventKind, Stream
from delegate.wire.basics import CHUNK_MAX, ITEMS_MAX

SEGMENT = 1024 * 1024  # bytes at which a segment is closed; with its last item it fits into one upload
FACTS_MAX = 4 * 1024 * 1024

SLACK = 2 * FACTS_MAX + 4 * SEGMENT  # facts, each with a gap beside it, and the segments that are never thinned
MERGE_MAX = 64 * 1024  # bytes; the next segment is merged into a smaller thinned one


@dataclass(slots=True)
class Segment:
    path: Path
    first: int
    next: int  # the number after its last item
    size: int = 0
    is_head: bool = False
    is_thinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The lines for the body of one upload, and the number that follows them."""

    lines: list[bytes]
    next: int

    @property
    def size(self) -> int:
        return sum(len(line) + 1 for line in self.lines)


class Spool:
    """The items of one attempt. Every method may raise OSError; after that, nothing more may be written."""

    def __init__(self, directory: Path, *, max_output: int, next_seq: int) -> None:
        self._directory = directory
        self._limit = 2 * max_output + SLACK  # base64 and the JSON frame at most double an item
        self._head = max_output // HEAD_SHARE
        self._segments = list(_recover_segments(directory))
        self._size = sum(segment.size for segment in self._segments)
        self._offset = 0  # in the oldest segment, of the first item that the relay lacks
        self._printed = 0
        self._facts = 0
        self._file: BinaryIO | None = None
        self.next_seq = max([next_seq, *(segment.next for segment in self._segments)])
        self.acknowledged = -1
        self.acknowledge(next_seq)

    @property
    def is_empty(self) -> bool:
        return self.acknowledged >= self.next_seq

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._size

    def create(self) -> None:
        self._directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)

    def output(self, stream: Stream, data: bytes, at: datetime) -> None:
        for start in range(0, len(data), CHUNK_MAX):
            chunk = data[start : start + CHUNK_MAX]
            self._append(output_line(self.next_seq, stream, chunk, at))
            self._printed += len(chunk)

    def fact(self, kind: EventKind, data: dict[str, object], at: datetime) -> None:
        if self._facts > FACTS_MAX:
            return
        line = fact_line(self.next_seq, kind, data, at)
        if len(line) > CHUNK_MAX:
            line = self._warning(
                f"an event ({kind}) of {len(line):,} bytes is too large for the timeline; see the output", at
            )
        self._facts += len(line)
        if self._facts > FACTS_MAX:
            line = self._warning("too many events for the timeline; see the output for the rest", at)
        self._append(line)

    def kept(self, size: int, at: datetime) -> None:
        """Report output that stays on this machine."""
        self._append(gap_line(self.next_seq, self.next_seq, size, at.isoformat(), is_kept=True) + b"\n")

    def batch(self) -> Batch | None:
        """The next items to upload, all from the oldest segment; None when the relay has everything."""
        if self.is_empty:
            return None
        oldest = self._segments[0]
        with oldest.path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read(oldest.size - self._offset).split(b"\n", ITEMS_MAX)[:ITEMS_MAX]
        if not lines[-1]:
            lines.pop()
        return Batch(lines=lines, next=span(lines[-1])[1] + 1)

    def acknowledge(self, next_seq: int, sent: Batch | None = None) -> None:
        """The relay has everything before `next_seq`; `sent` is the batch it has just received."""
        if next_seq <= self.acknowledged:
            return
        self.acknowledged = next_seq
        self.next_seq = max(next_seq, self.next_seq)
        is_next_segment = self._remove_acknowledged()
        if sent is not None and sent.next == next_seq and not is_next_segment:
            self._offset += sent.size
        else:
            self._offset = _offset_of(self._segments[0], next_seq) if self._segments else 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _warning(self, text: str, at: datetime) -> bytes:
        return fact_line(self.next_seq, EventKind.WARNING, {"text": text}, at)

    def _append(self, line: bytes) -> None:
        if self._file is None or self._segments[-1].size >= SEGMENT:
            self._file = self._open_segment()
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        segment = self._segments[-1]
        segment.size += len(line)
        self._size += len(line)
        self.next_seq += 1
        segment.next = self.next_seq

    def _open_segment(self) -> BinaryIO:
        self.close()
        if self._remove_acknowledged():
            self._offset = 0
        self._thin()
        path = self._directory / f"{self.next_seq:016d}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        self._segments.append(Segment(path, self.next_seq, self.next_seq, is_head=self._printed < self._head))
        return os.fdopen(descriptor, "ab", buffering=0)

    def _remove_acknowledged(self) -> bool:
        """Keeps the segment being written, so that live output does not create a file for every line."""
        closed = self._segments if self._file is None else self._segments[:-1]
        done = [segment for segment in closed if segment.next <= self.acknowledged]
        for segment in done:
            self._remove(segment)
        return bool(done)

    def _remove(self, segment: Segment) -> None:
        segment.path.unlink(missing_ok=True)
        self._segments.remove(segment)
        self._size -= segment.size

    def _thin(self) -> None:
        for segment in self._segments[1:]:
            if self._size <= self._limit:
                return
            if not segment.is_head and not segment.is_thinned:
                self._thin_segment(segment)

    def _thin_segment(self, segment: Segment) -> None:
        index = self._segments.index(segment)
        before = self._segments[index - 1]
        into = before if index > 1 and before.is_thinned and before.size < MERGE_MAX else segment
        lines = _lines(segment) if into is segment else [*_lines(before), *_lines(segment)]
        kept = b"".join(thin_lines(lines))
        scratch = into.path.with_suffix(".new")
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(kept)
        # A runner that dies between these two steps leaves both files; their numbers show that one includes the other.
        scratch.replace(into.path)
        self._size += len(kept) - into.size
        into.size, into.next, into.is_thinned = len(kept), segment.next, True
        if into is not segment:
            self._remove(segment)


def _recover_segments(directory: Path) -> Iterator[Segment]:
    """Load the segments of an earlier process; ignore an incomplete last line, delete segments that were merged."""
    follows = 0
    for path in sorted(directory.glob("*.jsonl")):
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole or span(whole)[0] < follows:
            path.unlink()
            continue
        last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        follows = span(last)[1] + 1
        yield Segment(path, span(whole)[0], follows, size=len(whole))


def _lines(segment: Segment) -> list[bytes]:
    return segment.path.read_bytes()[: segment.size].splitlines()


def _offset_of(segment: Segment, seq: int) -> int:
    """The offset of the first item that ends at `seq` or later."""
    if segment.first >= seq:
        return 0
    offset = 0
    for line in _lines(segment):
        if span(line)[1] >= seq:
            break
        offset += len(line) + 1
    return offset


# Every line begins with its sequence number, which can be read without parsing the whole line.
SPAN = re.compile(rb'\{"seq":(\d+)(?:,"through":(\d+))?,')


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A run of output that is not sent: the numbers it covers and its size in bytes."""

    first: int
    last: int
    size: int
    at: str

    def line(self) -> bytes:
        return gap_line(self.first, self.last, self.size, self.at) + b"\n"


def gap_line(first: int, last: int, size: int, at: str, *, is_kept: bool = False) -> bytes:
    """A gap as an item; `is_kept`: the output is on the runner's machine."""
    frame = '{"seq":%d,"through":%d,"at":"%s","kind":"%s","bytes":%d'
    opening = (frame % (first, last, at, EventKind.SKIPPED.value, size)).encode()
    return opening + (b',"data":{"kept":true}}' if is_kept else b"}")


def output_line(seq: int, stream: Stream, data: bytes, at: datetime) -> bytes:
    frame = '{"seq":%d,"at":"%s","kind":"%s","stream":"%s","output":"'
    opening = (frame % (seq, at.isoformat(), EventKind.OUTPUT.value, stream.value)).encode()
    return b"".join((opening, b64encode(data), b'"}\n'))


def fact_line(seq: int, kind: EventKind, data: dict[str, object], at: datetime) -> bytes:
    item = {"seq": seq, "at": at.isoformat(), "kind": kind, "data": data}
    return json.dumps(item, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def span(line: bytes) -> tuple[int, int]:
    """The first and the last sequence number of an item."""
    found = SPAN.match(line)
    assert found is not None, "every line of a spool begins with its number"
    first = int(found[1])
    return first, int(found[2] or first)


def thin_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Replace each run of output with one gap that covers the same numbers; facts stay as they are."""
    gap: Gap | None = None
    for line in lines:
        found = _gap_of(line)
        if found is not None:
            gap = found if gap is None else replace(gap, last=found.last, size=gap.size + found.size)
            continue
        if gap is not None:
            yield gap.line()
            gap = None
        yield line + b"\n"
    if gap is not None:
        yield gap.line()


def _gap_of(line: bytes) -> Gap | None:
    """The gap that replaces an output item; None for a fact."""
    item = json.loads(line)
    first, last = span(line)
    match item["kind"]:
        case EventKind.OUTPUT:
            return Gap(first=first, last=last, size=decoded_size(item["output"]), at=item["at"])
        case EventKind.SKIPPED:
            return Gap(first=first, last=last, size=item["bytes"], at=item["at"])
        case _:
            return None


def decoded_size(encoded: str) -> int:
    return len(encoded) // 4 * 3 - encoded[-2:].count("=")
