from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from delegate.runner.agents.lines import LINE_MAX, JsonLines

PIECE = 65_536


def test_objects_come_out_in_order_whatever_the_line_endings() -> None:
    lines = JsonLines()

    found = lines.feed(b'{"a":1}\n\n  \r\n{"b":2}\r\n{"c":')

    assert found == [{"a": 1}, {"b": 2}]
    assert lines.feed(b"3}\n") == [{"c": 3}]
    assert lines.parse_errors == 0


def test_what_is_not_an_object_is_counted_and_passed_over() -> None:
    lines = JsonLines()

    found = lines.feed(b'hello\n5\n[1]\n"x"\nnull\n{"a":1}{"b":2}\n{"a":\n\x00\n{"ok":1}\n')

    assert found == [{"ok": 1}]
    assert lines.parse_errors == 8


def test_deep_nesting_is_passed_over() -> None:
    lines = JsonLines()

    found = lines.feed(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}\n" + b'{"a":' * 10_000 + b'\n{"ok":1}\n')

    assert found == [{"ok": 1}]
    assert lines.parse_errors == 2


def test_huge_numbers_and_duplicate_keys_do_no_harm() -> None:
    lines = JsonLines()

    found = lines.feed(b'{"a":' + b"9" * 100_000 + b'}\n{"a":1e999,"a":2}\n{"b":NaN}\n')

    assert found[0] == {"a": 2}
    assert lines.parse_errors == 1


def test_bytes_that_are_not_utf_8_spoil_only_their_characters() -> None:
    assert JsonLines().feed(b'{"a":"x\xff\xfey"}\n') == [{"a": "x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}y"}]


def test_a_line_over_the_limit_is_skipped_up_to_its_newline_and_counted_once() -> None:
    lines = JsonLines()

    assert lines.feed(b'{"a":"' + b"x" * LINE_MAX) == []
    assert lines.feed(b"x" * LINE_MAX) == []
    assert lines.feed(b'"}\n{"ok":1}\n') == [{"ok": 1}]
    assert lines.parse_errors == 1


def test_a_line_of_exactly_the_limit_is_read() -> None:
    frame = len(b'{"a":""}')
    line = b'{"a":"' + b"x" * (LINE_MAX - frame) + b'"}'

    assert len(line) == LINE_MAX
    assert len(JsonLines().feed(line + b"\n")) == 1
    assert JsonLines().feed(line[:-2] + b'x"}\n') == []


def test_a_gigabyte_without_a_newline_takes_no_memory() -> None:
    lines = JsonLines()
    piece = b"x" * PIECE
    tracemalloc.start()

    for _ in range(2**30 // PIECE):
        lines.feed(piece)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * LINE_MAX
    assert lines.parse_errors == 1


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_in_any_pieces_are_taken(pieces: list[bytes]) -> None:
    whole, pieced = JsonLines(), JsonLines()

    found = [value for piece in pieces for value in pieced.feed(piece)] + pieced.finish()

    assert found == whole.feed(b"".join(pieces)) + whole.finish()
    assert pieced.parse_errors == whole.parse_errors
