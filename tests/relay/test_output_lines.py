"""Lines out of chunks: however they were cut and however often one looks, every line is shown once and whole."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegate.errors import InvalidField
from delegate.model import AttemptId, OutputChunk, Stream
from delegate.relay.output_lines import LINE_MAX, LineReader

AT = datetime(2026, 1, 1, tzinfo=UTC)
Printed = list[tuple[int, Stream, bytes]]
pieces = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from(Stream), st.text("ab\n\r", min_size=1, max_size=8).map(str.encode)),
    max_size=12,
)


def chunks_of(printed: Printed, *, missing: int = 0) -> list[OutputChunk]:
    """As the store has them: ids with holes, and offsets that count both streams of an attempt."""
    ends: dict[int, int] = {}
    found = []
    for number, (attempt, stream, data) in enumerate(sorted(printed, key=lambda piece: piece[0])):
        offset = ends.get(attempt, 0) + (missing if number else 0)
        ends[attempt] = offset + len(data)
        found.append(
            OutputChunk(
                id=number * 3 + 7,
                attempt_id=AttemptId(f"attempt-{attempt}"),
                seq=number,
                stream=stream,
                at=AT,
                offset=offset,
                data=data,
            )
        )
    return found


def expected(printed: Printed) -> dict[Stream, list[str]]:
    lines: dict[Stream, list[str]] = {stream: [] for stream in Stream}
    for stream in Stream:
        for attempt in (1, 2):
            text = b"".join(data for number, kind, data in printed if (number, kind) == (attempt, stream))
            whole = text.removesuffix(b"\n").split(b"\n") if text else []
            lines[stream] += [line.removesuffix(b"\r").decode() for line in whole]
    return lines


@given(pieces, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 12))
def test_readers_that_stop_anywhere_read_everything_once(printed: Printed, looks: list[int], present: int) -> None:
    chunks = chunks_of(printed)
    shown: dict[Stream, list[str]] = {stream: [] for stream in Stream}
    place = str(LineReader())
    for number in range(2 * len(b"".join(data for _, _, data in printed)) + 4):
        is_over = number > 3  # the first looks see only what is there by then
        reading = LineReader.from_cursor(place)
        seen = [chunk for chunk in (chunks if is_over else chunks[:present]) if chunk.id > reading.after]
        most = looks[number % len(looks)]
        for _, line in zip(range(most), reading.lines(seen, is_over=is_over), strict=False):
            shown[line.stream].append(line.text)
        place = str(reading)

    assert shown == expected(printed)


@given(pieces, st.integers(1, 4))
def test_who_wants_the_last_lines_gets_the_same_ones(printed: Printed, most: int) -> None:
    chunks = chunks_of(printed)
    reading, quick = LineReader(), LineReader(last=most)

    everything = list(reading.lines(chunks, is_over=True))
    end = list(quick.lines(chunks, is_over=True))

    assert end[-most:] == everything[-most:]
    assert str(quick) == str(reading)


def test_the_last_lines_come_without_all_the_others() -> None:
    chunks = chunks_of([(1, Stream.STDOUT, b"ok\n" * 80_000)] * 3)

    shown = list(LineReader(last=2).lines(chunks, is_over=False))

    assert [line.text for line in shown] == ["ok"] * 6


def test_a_line_without_an_end_waits_for_it_until_there_is_none() -> None:
    first, second = chunks_of([(1, Stream.STDOUT, b"ha"), (1, Stream.STDOUT, b"lf")])
    reading = LineReader()

    assert list(reading.lines([first], is_over=False)) == []
    assert [line.text for line in reading.lines([second], is_over=True)] == ["half"]


def test_a_line_that_never_ends_is_read_in_pieces() -> None:
    (chunk,) = chunks_of([(1, Stream.STDOUT, b"x" * (2 * LINE_MAX + 1))])

    shown = [len(line.text) for line in LineReader().lines([chunk], is_over=False)]

    assert shown == [LINE_MAX, LINE_MAX]


def test_what_was_not_kept_leaves_a_word() -> None:
    chunks = chunks_of([(1, Stream.STDOUT, b"a\n"), (1, Stream.STDOUT, b"b\n")], missing=500)

    assert [line.text for line in LineReader().lines(chunks, is_over=True)] == ["a", "[… 500 bytes left out …]", "b"]


@pytest.mark.parametrize("place", ["", "now", "1.0", "1.0-1.0-1.0", "-1.0-2.0", "1.0-" + "9" * 30 + ".0", "１.0-1.0"])
def test_a_cursor_that_was_never_given_out_is_refused(place: str) -> None:
    with pytest.raises(InvalidField, match="since"):
        LineReader.from_cursor(place)
