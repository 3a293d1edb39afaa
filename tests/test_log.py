from __future__ import annotations

import logging
import sys

import pytest

from delegate.errors import escape
from delegate.log import KeyValueFormatter, build_secret_filter, configure, filter_log_lines


def formatted(message: str, *arguments: object, **extra: object) -> str:
    record = logging.LogRecord("delegate.queue", logging.INFO, __file__, 1, message, arguments, None)
    vars(record).update(extra, created=0.5)
    return KeyValueFormatter().format(record)


def test_a_line_is_time_level_logger_message_and_fields() -> None:
    line = formatted("task claimed", task_id="task-1", fence=3)

    assert line == "1970-01-01T00:00:00.500+00:00 info delegate.queue task claimed task_id=task-1 fence=3"


@pytest.mark.parametrize(
    "forgery",
    [
        "x\n1970-01-01T00:00:00+00:00 info delegate.queue task completed",
        "x\r\ny",
        "x\x0by\x0cz",
        "x\x85y",
        "x\u2028y\u2029z",
        "x\x1b[2K\x1b[1Ay",
        "x\x00y",
        "x\u202ey",
    ],
)
def test_no_value_can_forge_a_line_or_move_the_cursor(forgery: str) -> None:
    for line in (formatted(forgery), formatted("said %s", forgery), formatted("said", text=forgery)):
        assert line.isprintable()
        assert len(line.splitlines()) == 1


def test_a_traceback_is_one_field_of_the_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord("delegate", logging.ERROR, __file__, 1, "broke", (), sys.exc_info())

    line = KeyValueFormatter().format(record)

    assert "\n" not in line
    assert "broke traceback=Traceback (most recent call last):\\n" in line
    assert line.endswith("ValueError: first\\nsecond")


def test_what_is_printable_stays_as_it_is() -> None:
    assert escape("Grüße, 世界 🜚 a=b") == "Grüße, 世界 🜚 a=b"


def test_secrets_are_taken_out_of_every_part_of_a_line() -> None:
    record = logging.LogRecord("delegate", logging.INFO, __file__, 1, "said %s", ("the-token",), None)
    vars(record).update(why="no the-token", created=0.5)

    line = KeyValueFormatter(build_secret_filter(["the-token", "the-token-is-longer", ""])).format(record)

    assert line.endswith("said [redacted] why=no [redacted]")


def test_a_longer_secret_is_not_left_with_its_end() -> None:
    assert build_secret_filter(["token", "token-and-more"])("<token-and-more>") == "<[redacted]>"


def test_what_is_logged_from_now_on_is_concealed(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers, root.level
    try:
        configure("info")
        filter_log_lines(build_secret_filter(["the-token"]))
        logging.getLogger("delegate.x").info("here", extra={"why": "the-token"})
    finally:
        root.handlers, root.level = before, level

    assert capsys.readouterr().err.endswith("here why=[redacted]\n")
