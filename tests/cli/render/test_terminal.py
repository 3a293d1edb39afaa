from __future__ import annotations

import pytest

from delegate.cli.render.screen import OutputSanitizer
from delegate.cli.render.terminal import cells, fit, one_line, pad


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("short", 10, "short"),
        ("exactly", 7, "exactly"),
        ("too long", 5, "too …"),
        ("日本語", 4, "日…"),
        ("日本語", 5, "日本…"),
        ("x", 0, ""),
    ],
)
def test_text_is_cut_where_the_reader_sees_it(text: str, columns: int, shown: str) -> None:
    assert fit(text, columns) == shown
    assert cells(shown) <= columns


def test_a_cell_is_padded_by_the_columns_it_takes() -> None:
    assert pad("日本", 6) == "日本  "


def test_foreign_text_in_a_table_is_one_printable_line() -> None:
    assert one_line("a\n\tb\x1b[2Jc\u202ed") == "a b\\x1b[2Jc\\u202ed"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[1;38;5;9mbold\x1b[m", "\x1b[1;38;5;9mbold\x1b[m"),
        ("a\x1b[2Jb\x1b[1A\x1b[Kc", "abc"),
        ("\x1b]52;c;c2VjcmV0\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\x", "x"),
        ("\x1bcreset", "reset"),
        ("a\x9b2Jb\x9d0;t\x9cc", "abc"),
        ("bell\x07 back\x08 null\x00", "bell back null"),
        ("50%\r100%\r\n", "50%\n100%\n"),
        ("cut\x1b[3", "cut3"),
        ("never ended \x1b]0;title", "never ended 0;title"),
    ],
)
def test_a_terminal_is_only_sent_text_and_colours(hostile: str, shown: str) -> None:
    assert OutputSanitizer().feed(hostile.encode(), final=True) == shown


def test_an_escape_sequence_in_pieces_is_still_one() -> None:
    screen = OutputSanitizer()
    pieces = [b"a\x1b", b"]52;c;", b"AAAA", b"\x07b\x1b[3", b"1mc\r", b"\nd\xe6\x97", b"\xa5"]

    shown = "".join(screen.feed(piece) for piece in pieces) + screen.feed(b"", final=True)

    assert shown == "ab\x1b[31mc\nd日"
