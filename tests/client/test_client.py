from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.scripted_relay import LAST_CHUNK, ScriptedRelay, answer, chunked, problem

from delegate import __version__
from delegate.cli.commands import serve
from delegate.cli.context import CommandContext
from delegate.cli.follow import waits_after
from delegate.client import client
from delegate.client.client import STREAM_MESSAGE_MAX, Client, StreamItem
from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings, load
from delegate.errors import (
    BadSetting,
    DelegateError,
    EmptyToken,
    LoosePermissions,
    NoSuchTask,
    RelayUnreachable,
    Reported,
    Unauthenticated,
)

RELAY = {"version": "0.1.0", "runners": []}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_TIMEOUT", 0.5)
    monkeypatch.setattr(client, "NOTICE_AFTER", 0.1)


def settings_for(relay: ScriptedRelay, prefix: str = "") -> Settings:
    return Settings(relay_url=relay.url + prefix, token="secret", home=Path("/nonexistent"))


def test_a_call_sends_the_token_and_reads_the_answer() -> None:
    with ScriptedRelay([answer(RELAY)]) as relay:
        assert Client(settings_for(relay, "/team/")).relay() == RELAY

    asked = relay.asked[0]
    assert asked.line == "GET /team/api/relay HTTP/1.1"
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["host"] == relay.url.removeprefix("http://")


@pytest.mark.parametrize(
    "reply",
    [
        chunked(b'{"version":', b'"0.1.0",', b'"runners":[]}') + LAST_CHUNK,
        b'HTTP/1.1 200 OK\r\n\r\n{"version": "0.1.0", "runners": []}',
        b'HTTP/1.0 200\r\nContent-Length:35\r\nX-Other: y\r\n\r\n{"version": "0.1.0", "runners": []}\r\nrest',
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(RELAY),
    ],
    ids=["chunked", "until the connection closes", "content length", "after an interim one"],
)
def test_an_answer_is_read_however_it_is_framed(reply: bytes) -> None:
    with ScriptedRelay([reply]) as relay:
        assert Client(settings_for(relay)).relay() == RELAY


@pytest.mark.parametrize(
    "broken",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", answer(RELAY)[:-3], chunked(b'{"version":'), b"HTTP/1.1 200 OK\r\n"],
    ids=["closed", "half a head", "half a body", "half the chunks", "no end of head"],
)
def test_a_relay_that_dies_while_it_answers_is_asked_again(broken: bytes) -> None:
    with ScriptedRelay([broken, broken, answer(RELAY)]) as relay:
        assert Client(settings_for(relay)).relay() == RELAY

    assert len(relay.asked) == 3


def test_a_submit_that_is_sent_again_carries_the_same_request_key() -> None:
    with ScriptedRelay([b"", problem("503 Busy", "store_busy", "busy"), answer({"taskId": "task-1"})]) as relay:
        Client(settings_for(relay)).submit({"prompt": "x"})

    bodies = [json.loads(asked.body) for asked in relay.asked]
    assert len(bodies[0]["requestKey"]) >= 20
    assert bodies == [bodies[0]] * 3


def test_two_submits_are_two_tasks() -> None:
    with ScriptedRelay([answer({}), answer({})]) as relay:
        for _ in range(2):
            Client(settings_for(relay)).submit({"prompt": "x"})

    keys = {json.loads(asked.body)["requestKey"] for asked in relay.asked}
    assert len(keys) == 2


def test_a_problem_keeps_its_words_and_gets_its_exit_code() -> None:
    replies = [
        problem("404 Not Found", "no_such_task", "no task task-1", "`delegate status` lists all tasks"),
        problem("422 Odd", "from_the_future", "no"),
        problem("401 No", "unauthenticated", "no"),
    ]
    with ScriptedRelay(replies) as relay:
        errors = [raised(Client(settings_for(relay))) for _ in replies]

    assert (errors[0].message, errors[0].hint) == ("no task task-1", "`delegate status` lists all tasks")
    assert [(error.code, error.exit_code) for error in errors] == [
        ("no_such_task", 5),
        ("from_the_future", 2),
        ("unauthenticated", 4),
    ]


def raised(asker: Client) -> Reported:
    with pytest.raises(Reported) as caught:
        asker.task("task-1")
    return caught.value


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "it does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "its response is not JSON"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
            "it returned HTTP status 302 and is probably not a relay",
        ),
        (chunked() + b"zz\r\n", "its response has an invalid chunk"),
        (chunked() + b"-5\r\nhello\r\n", "its response has an invalid chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n{}", "its response has an invalid length"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "its response has no end of headers"),
    ],
)
def test_what_is_not_a_relay_is_reported_as_such(reply: bytes, why: str) -> None:
    with ScriptedRelay([reply]) as relay, pytest.raises(RelayUnreachable) as caught:
        Client(settings_for(relay)).relay()

    assert caught.value.message == f"cannot reach the relay at {relay.url}: {why}"
    assert caught.value.hint == "check the relay's URL (DELEGATE_RELAY_URL) and the network"


def test_an_answer_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RESPONSE_MAX", 1000)
    with ScriptedRelay([answer("x" * 2000)]) as relay, pytest.raises(RelayUnreachable, match="larger than 1,000"):
        Client(settings_for(relay)).relay()


def test_a_relay_that_is_away_is_waited_for_and_a_notice_says_so() -> None:
    with ScriptedRelay([]) as relay:
        settings = settings_for(relay)
    notices: list[str] = []

    with pytest.raises(RelayUnreachable, match="connection refused"):
        Client(settings, notice=notices.append).relay()

    assert len(notices) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://relay.example", "must be https"),
        ("ftp://relay.example", "must look like"),
        ("relay.example:80", "must look like"),
        ("https://", "must look like"),
        ("http://127.0.0.1:99999", "must look like"),
        ("https://rélay.example", "must look like"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        load({"DELEGATE_RELAY_URL": url, "DELEGATE_HOME": "/nonexistent"})


@pytest.mark.parametrize("token", ["", "with\nnewline", "nicht-ascii-ü"])
def test_a_relay_elsewhere_needs_a_token_of_its_own(token: str, tmp_path: Path) -> None:
    home_files.make_token(Home(tmp_path))

    with pytest.raises(Unauthenticated):
        Client(Settings(relay_url="https://relay.example", token=token, home=tmp_path)).relay()


def test_an_address_without_a_living_keeper_is_not_sent_the_token(tmp_path: Path) -> None:
    with ScriptedRelay([answer(RELAY)]) as relay:
        leave_address(Home(tmp_path), relay)

        with pytest.raises(RelayUnreachable, match="none is running"):
            Client(Settings(home=tmp_path)).relay()

        assert relay.asked == []


def test_the_local_relay_is_found_while_its_keeper_lives(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with ScriptedRelay([answer(RELAY)]) as relay, kept(place):
        leave_address(place, relay)

        assert Client(Settings(home=tmp_path)).relay() == RELAY

    assert relay.asked[0].headers["authorization"] == f"Bearer {home_files.read_token(place)}"


def test_a_local_relay_is_waited_for_longer_while_its_keeper_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a keeper may need longer than RETRY_TIMEOUT to restart its relay."""
    monkeypatch.setattr(client, "RETRY_TIMEOUT", 0.0)
    place = Home(tmp_path)
    with ScriptedRelay([b"", b"", answer(RELAY)]) as relay, kept(place):
        leave_address(place, relay)

        assert Client(Settings(home=tmp_path)).relay() == RELAY


def test_a_stream_waits_longer_for_a_relay_whose_keeper_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_TIMEOUT", 0.0)
    place = Home(tmp_path)
    rest = chunked(sse("end", 1, {})) + LAST_CHUNK
    with ScriptedRelay([chunked(), chunked(b": ping")[:-4], chunked(b": ping")[:-4], rest]) as relay, kept(place):
        leave_address(place, relay)

        assert [item for item in Client(Settings(home=tmp_path)).stream("task-1") if item] == [
            StreamItem(id="e1", kind="end", data={})
        ]


def test_a_relay_elsewhere_is_waited_for_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_TIMEOUT", 0.0)
    with ScriptedRelay([b"", answer(RELAY)]) as relay, kept(Home(tmp_path)), pytest.raises(RelayUnreachable):
        Client(Settings(relay_url=relay.url, token="secret", home=tmp_path)).relay()


def test_the_local_relay_is_opened_by_the_token_of_its_home_only(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with ScriptedRelay([answer({})]) as relay, kept(place):
        leave_address(place, relay)
        Client(Settings(home=tmp_path, token="of another relay")).relay()

    assert relay.asked[0].headers["authorization"] == f"Bearer {home_files.read_token(place)}"


def test_a_follower_asks_why_only_while_its_task_waits() -> None:
    events = [("submitted", True), ("claimed", False), ("started", False), ("released", True), ("claimed", False)]
    is_waiting, seen = True, []

    for kind, _ in events:
        is_waiting = waits_after(StreamItem(id="", kind="event", data={"kind": kind}), is_waiting)
        seen.append((kind, is_waiting))
    after_output = waits_after(StreamItem(id="", kind="output", data={}), is_waiting)

    assert (seen, after_output) == (events, False)


def test_a_drain_names_a_task_once_even_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "FIRST_REPORT_AFTER", 0.0)
    monkeypatch.setattr(serve, "REPORT_INTERVAL", 0.0)
    began = "2026-01-01T00:00:00+00:00"
    task = {"taskId": "task-1", "agent": "shell", "timeout": 1000, "startedAt": began, "createdAt": began}
    busy, detail = answer({"processes": [{"taskId": "task-1"}]}), answer({"task": task})
    place = Home(tmp_path)
    with ScriptedRelay([busy, detail, busy, detail]) as relay, kept(place):
        leave_address(place, relay)
        waits = serve.DrainReporter(CommandContext(environ={"DELEGATE_HOME": str(tmp_path)}))
        waits.report()
        waits.report()

    assert [asked.line.split()[1] for asked in relay.asked] == ["/api/relay", "/api/tasks/task-1", "/api/relay"]
    assert capsys.readouterr().err.count("waiting for task-1") == 1


def test_a_relay_of_another_version_is_pointed_out(tmp_path: Path) -> None:
    place, notices = Home(tmp_path), list[str]()
    with ScriptedRelay([answer(RELAY)]) as relay, kept(place):
        leave_address(place, relay, version="0.0.9")

        Client(Settings(home=tmp_path), notice=notices.append).relay()

    assert notices == [f"the relay runs version 0.0.9, this is {__version__}; restart the relay when idle"]


def test_an_empty_token_is_named_and_the_next_start_writes_a_new_one(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with ScriptedRelay([answer(RELAY)]) as relay, kept(place):
        leave_address(place, relay)
        place.token.write_text("\n")

        with pytest.raises(EmptyToken) as caught:
            Client(Settings(home=tmp_path)).relay()
        home_files.make_token(place)

        assert Client(Settings(home=tmp_path)).relay() == RELAY

    assert str(place.token) in caught.value.message
    assert len(home_files.read_token(place)) == 64


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with ScriptedRelay([answer(RELAY)]) as relay, kept(place):
        leave_address(place, relay)
        place.token.chmod(0o640)

        with pytest.raises(LoosePermissions) as caught:
            Client(Settings(home=tmp_path)).relay()

    assert caught.value.hint == f"run: chmod 600 {place.token}"


def leave_address(place: Home, relay: ScriptedRelay, version: str = __version__) -> None:
    port = int(relay.url.rpartition(":")[2])
    address = home_files.Address(url=relay.url, port=port, pid=1, keeper_pid=1, version=version, started_at="now")
    home_files.write_private(place.address, address.as_json())
    home_files.make_token(place)


@contextmanager
def kept(place: Home) -> Iterator[None]:
    """A home that has a keeper."""
    lock = home_files.lock_home(place, 0)
    try:
        yield
    finally:
        os.close(lock)


def sse(kind: str, number: int, data: object) -> bytes:
    return f"id: e{number}\r\nevent: {kind}\r\ndata: {json.dumps(data)}\r\n\r\n".encode()


def test_a_stream_continues_where_it_was_when_the_relay_restarts() -> None:
    first = chunked(b": ping\r\n\r\n", sse("event", 1, {"n": 1}), sse("output", 2, {"n": 2})[:-10])
    rest = chunked(sse("output", 2, {"n": 2}) + sse("end", 3, {"n": 3})) + LAST_CHUNK
    with ScriptedRelay([first, b"", problem("503 Busy", "stopping", "stopping"), rest]) as relay:
        items = list(Client(settings_for(relay)).stream("task-1"))

    assert items == [
        StreamItem(id="e1", kind="event", data={"n": 1}),
        StreamItem(id="e2", kind="output", data={"n": 2}),
        StreamItem(id="e3", kind="end", data={"n": 3}),
    ]
    assert [asked.headers.get("last-event-id") for asked in relay.asked] == [None, "e1", "e1", "e1"]


def test_a_stream_of_an_unknown_task_ends_with_the_relays_words() -> None:
    with (
        ScriptedRelay([problem("404 No", "no_such_task", "no task task-1")]) as relay,
        pytest.raises(DelegateError) as caught,
    ):
        list(Client(settings_for(relay)).stream("task-1"))

    assert caught.value.exit_code == 5


def test_a_stream_whose_message_never_ends_is_given_up() -> None:
    endless = chunked(b"data: " + b"x" * STREAM_MESSAGE_MAX)
    with ScriptedRelay([endless]) as relay, pytest.raises(RelayUnreachable, match="more than 8,388,608 bytes"):
        list(Client(settings_for(relay)).stream("task-1"))


@pytest.mark.parametrize("task_id", ["", "../relay?x=1\r\nX-Evil: 1", "a/b", "task-é"])
def test_task_ids_cannot_reach_another_route(task_id: str) -> None:
    with ScriptedRelay([]) as relay, pytest.raises(NoSuchTask):
        Client(settings_for(relay)).task(task_id)

    assert relay.asked == []
