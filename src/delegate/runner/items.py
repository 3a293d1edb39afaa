"""The lines of a spool: one numbered item each, as the relay takes them."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from delegate.model import EventKind, Stream

# Every line begins with its number, so that its place in the sequence is known without reading all of it.
SPAN = re.compile(rb'\{"seq":(\d+)(?:,"through":(\d+))?,')


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A run of output that is not sent: the numbers it covers and how many bytes it was."""

    first: int
    last: int
    size: int
    at: str

    def line(self) -> bytes:
        frame = '{"seq":%d,"through":%d,"at":"%s","kind":"%s","bytes":%d}\n'
        return (frame % (self.first, self.last, self.at, EventKind.SKIPPED.value, self.size)).encode()


def output_line(seq: int, stream: Stream, data: bytes, at: datetime) -> bytes:
    frame = '{"seq":%d,"at":"%s","kind":"%s","stream":"%s","output":"'
    opening = (frame % (seq, at.isoformat(), EventKind.OUTPUT.value, stream.value)).encode()
    return b"".join((opening, b64encode(data), b'"}\n'))


def fact_line(seq: int, kind: EventKind, data: dict[str, object], at: datetime) -> bytes:
    item = {"seq": seq, "at": at.isoformat(), "kind": kind, "data": data}
    return json.dumps(item, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def span(line: bytes) -> tuple[int, int]:
    """The first and the last sequence number that an item stands for."""
    found = SPAN.match(line)
    assert found is not None, "every line of a spool begins with its number"
    first = int(found[1])
    return first, int(found[2] or first)


def thinned(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same numbers with less to tell: each run of output becomes one gap, facts stay as they are."""
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
    """What is left of an item that need not be sent; None for a fact."""
    item = json.loads(line)
    first, last = span(line)
    match item["kind"]:
        case EventKind.OUTPUT:
            return Gap(first=first, last=last, size=_decoded_size(item["output"]), at=item["at"])
        case EventKind.SKIPPED:
            return Gap(first=first, last=last, size=item["bytes"], at=item["at"])
        case _:
            return None


def _decoded_size(encoded: str) -> int:
    return len(encoded) // 4 * 3 - encoded[-2:].count("=")
