"""An answer and its events are the same, in whatever pieces they come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delegate.client.http_response import HEAD_MAX, EventStreamParser, NotHttp, Response

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SIZES = (1, 2, 3, 7, 1000)


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    return (text[start : start + size] for start in range(0, len(text), size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        OK + b"content-length: 5\r\n\r\nhello",
        CHUNKED + b"2\r\nhe\r\n03;name=x\r\nllo\r\n0\r\n\r\n",
        CHUNKED + b"5 \r\nhello\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunks", "trailers", "interim heads"],
)
def test_an_answer_may_come_in_any_pieces(text: bytes, size: int) -> None:
    answer = Response()

    body = b"".join(answer.feed(piece) for piece in pieces(text, size))

    assert (answer.status, body, answer.is_complete, answer.keeps_connection_open) == (200, b"hello", True, True)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"2\r\nhello\r\n",
        CHUNKED + b"2\r\nhe\r\n\r\n",
        CHUNKED + b"5" * 10_000,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * (HEAD_MAX // 5),
        b"HTTP/1.1 100 Continue\r\n\r\n" * (HEAD_MAX // 20),
    ],
    ids=[
        "short status", "another version", "less than nothing", "no number", "no size", "odd size", "chunk too long",
        "empty line", "endless size", "endless trailers", "endless interim heads",
    ],
)  # fmt: skip
def test_what_is_not_http_is_refused(text: bytes) -> None:
    answer = Response()

    with pytest.raises(NotHttp):
        answer.feed(text)


@pytest.mark.parametrize("text", [b"", OK, OK + b"Content-Length: 5\r\n\r\nhell", CHUNKED + b"5\r\nhello\r\n0\r\n"])
def test_an_answer_that_breaks_off_is_not_complete(text: bytes) -> None:
    answer = Response()
    answer.feed(text)

    with pytest.raises(ConnectionResetError):
        answer.end()


@pytest.mark.parametrize("size", SIZES)
def test_events_may_come_in_any_pieces(size: int) -> None:
    text = 'id: e1\r\nevent: output\r\ndata: "日"\r\n\r\n: ping\n\ndata:[1,\ndata:  2]\n\nid: e2\ndata:\n\n'.encode()
    events = EventStreamParser(100)

    found = [(event.id, event.kind, event.data) for piece in pieces(text, size) for event in events.feed(piece)]

    assert found == [("e1", "output", '"日"'.encode()), ("e1", "message", b"[1,\n 2]")]
    assert events.last_id == "e2"


def test_an_event_that_breaks_off_is_not_the_last_one() -> None:
    events = EventStreamParser(100)

    events.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")

    assert events.last_id == "1"


@pytest.mark.parametrize("line", [b"data: " + b"x" * 100, b"data: xxxx\n" * 30], ids=["one line", "many lines"])
def test_a_message_without_end_is_refused(line: bytes) -> None:
    events = EventStreamParser(100)

    with pytest.raises(NotHttp, match="more than 100 bytes"):
        events.feed(line)
