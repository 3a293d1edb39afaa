"""The relay goes away, comes back, forgets: the client notices nothing but the time."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from tests.cli.scripted_relay import ScriptedRelay, answer
from tests.mcp_bridge.conversation import META, PATIENCE, bridge
from tests.mcp_bridge.scripted_mcp import Json, ScriptedMcp, kept_home


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
def test_a_call_that_breaks_off_is_sent_again_with_the_same_key(tmp_path: Path, streams: bool) -> None:
    seen: list[Json] = []

    def tool(params: Json) -> Json | None:
        seen.append(params)
        return {"tries": len(seen)} if len(seen) > 2 else None

    script = ScriptedMcp(tool=tool, streams=streams)
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()

        assert client.tool("Delegate")["result"] == {"tries": 3}

    assert seen[0]["_meta"]["delegate/requestKey"]
    assert seen[0] == seen[1] == seen[2]


def test_a_call_that_always_breaks_off_is_refused_in_the_end(tmp_path: Path) -> None:
    script = ScriptedMcp(tool=lambda _: None)
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()

        assert "failed to handle this request" in client.tool("Deadly")["error"]["message"]
        assert client.call("ping")["result"] == {"method": "ping"}


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", "its response has an invalid chunk"),
        (b"Content-Length: \xb2\r\n\r\n{}", "its response has an invalid length"),
    ],
)
def test_an_answer_that_is_none_does_not_hold_the_bridge_up(tmp_path: Path, broken: bytes, why: str) -> None:
    whole = answer({"jsonrpc": "2.0", "id": 2, "result": {}})
    with ScriptedRelay([b"HTTP/1.1 200 OK\r\n" + broken] * 6 + [whole]) as relay:
        port = int(relay.url.rpartition(":")[2])
        with kept_home(tmp_path / "home", port) as home, bridge(home) as client:
            assert why in client.call("ping", {"_meta": META})["error"]["message"]
            assert client.call("ping", {"_meta": META})["result"] == {}


def test_calls_made_while_the_relay_is_down_wait_for_it(tmp_path: Path) -> None:
    script = ScriptedMcp()
    with kept_home(tmp_path / "home", 1) as home, bridge(home, "-v") as client:
        with script.serving(), kept_home(tmp_path / "other", script.port) as other:
            (other / "relay.json").replace(home / "relay.json")
            client.handshake()
            script.wait_for(lambda: script.listeners)
        asked = [client.ask("tools/call", {"name": name}) for name in ("One", "Two")]
        assert client.process.stderr is not None
        while b"relay not reachable" not in client.process.stderr.readline():
            pass
        script.forget_sessions()
        with script.serving():
            answers = {answer["id"]: answer["result"]["called"] for answer in (client.read(), client.read())}

    assert answers == {asked[0]: "One", asked[1]: "Two"}


def test_a_forgotten_session_is_opened_again_with_the_clients_own_words(tmp_path: Path) -> None:
    script = ScriptedMcp()
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        script.wait_for(lambda: script.listeners)
        script.forget_sessions()

        assert client.tool("One")["result"]["called"] == "One"
        assert client.tool("Two")["result"]["called"] == "Two"
        script.wait_for(lambda: len([one for one in script.asked if one.method == "GET"]) == 2)

    first, second = script.of("initialize")
    assert first.message == second.message
    assert len(script.of("notifications/initialized")) == 2
    assert script.of("tools/call")[-1].session == script.of("tools/call")[-2].session != second.session


def test_an_idle_client_gets_a_new_session_when_its_ear_was_cut(tmp_path: Path) -> None:
    script = ScriptedMcp()
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        script.wait_for(lambda: script.listeners)
        script.forget_sessions()
        script.listeners.pop().put(None)
        script.wait_for(lambda: len(script.of("initialize")) == 2 and script.listeners)
        script.listeners[0].put(changed)

        assert client.read() == changed


def test_progress_is_not_reported_twice_when_a_call_is_sent_again(tmp_path: Path) -> None:
    script = ScriptedMcp(streams=True, progress=3, break_after_progress=1)
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        client.ask("tools/call", {"name": "Logs"})
        received = [client.read() for _ in range(4)]

    assert [one["params"]["progress"] for one in received[:3]] == [0, 1, 2]
    assert received[3]["result"]["called"] == "Logs"
    assert len(script.of("tools/call")) == 2


def test_a_busy_relay_is_asked_again(tmp_path: Path) -> None:
    script = ScriptedMcp(refusal=(503, b"{}"))
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.ask("ping", {"_meta": META})
        script.wait_for(lambda: len(script.asked) > 1)
        script.refusal = None

        assert client.read()["result"] == {"method": "ping"}


def test_a_cancelled_call_that_waits_for_the_relay_never_leaves(tmp_path: Path) -> None:
    script = ScriptedMcp()
    with script.serving(), kept_home(tmp_path / "home", script.port) as home:
        pass
    with kept_home(tmp_path / "home", script.port) as home, bridge(home, "-v") as client:
        asked = client.ask("tools/call", {"name": "Regretted", "_meta": META})
        assert client.process.stderr is not None
        client.process.stderr.readline()
        client.send({"method": "notifications/cancelled", "params": {"requestId": asked}})
        other = client.ask("tools/call", {"name": "Wanted", "_meta": META})
        with script.serving():
            assert client.read()["id"] == other

    assert [one.message["params"]["name"] for one in script.of("tools/call")] == ["Wanted"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_session_and_the_bridge(tmp_path: Path, number: signal.Signals) -> None:
    script = ScriptedMcp()
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        client.call("ping")

        client.process.send_signal(number)
        assert client.process.wait(20) == 0

    assert "DELETE" in {one.method for one in script.asked}


def test_a_client_that_stops_reading_has_gone(tmp_path: Path) -> None:
    script = ScriptedMcp()
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        assert client.process.stdout is not None
        client.process.stdout.close()

        assert client.process.wait(20) == 0

    assert "DELETE" in {one.method for one in script.asked}


def test_a_client_that_is_slow_to_read_gets_everything(tmp_path: Path) -> None:
    text = "long " * 20_000
    script = ScriptedMcp(tool=lambda _: {"text": text})
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        asked = [client.ask("tools/call", {"name": "Logs"}) for _ in range(60)]  # more than pipe and backlog hold
        script.wait_for(lambda: len(script.of("tools/call")) > 20)
        answers = [client.read() for _ in asked]

    assert {answer["id"] for answer in answers} == set(asked)
    assert {answer["result"]["text"] for answer in answers} == {text}


def test_calls_are_answered_after_the_end_of_input(tmp_path: Path) -> None:
    input_ended = threading.Event()

    def answer_late(params: Json) -> Json:
        assert input_ended.wait(PATIENCE)
        time.sleep(0.5)  # longer than the bridge waits when nothing is open
        return {"called": params["name"]}

    script = ScriptedMcp(tool=answer_late)
    with script.serving(), kept_home(tmp_path / "home", script.port) as home, bridge(home) as client:
        client.handshake()
        asked = [client.ask("tools/call", {"name": "Delegate"}) for _ in range(64)]
        assert client.process.stdin is not None
        client.process.stdin.close()
        input_ended.set()
        answers = [client.read() for _ in asked]

        assert client.read_line() == b""
        assert client.process.wait(PATIENCE) == 0

    assert {answer["id"] for answer in answers} == set(asked)
    assert {answer["result"]["called"] for answer in answers} == {"Delegate"}
    assert script.sessions == set()


def test_a_signal_after_the_end_of_input_leaves_an_error_for_every_open_call(tmp_path: Path) -> None:
    with kept_home(tmp_path / "home", 1) as home, bridge(home, "-v") as client:
        client.ask("initialize", {})
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert client.process.stderr is not None
        while b"relay not reachable" not in client.process.stderr.readline():
            pass
        client.process.send_signal(signal.SIGTERM)

        error = client.read()
        assert client.process.wait(PATIENCE) == 1

    assert (error["id"], error["error"]["data"]) == (1, {"code": "relay_unreachable"})
    assert "the relay does not respond" in error["error"]["message"]


def test_calls_that_no_relay_can_take_are_refused_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with bridge(tmp_path / "home", DELEGATE_RELAY_URL="ftp://nowhere") as client:
        asked = client.ask("ping", {"_meta": META})

        assert client.close() == 1
        assert client.read()["id"] == asked


def test_a_notification_does_not_hold_the_end_up(tmp_path: Path) -> None:
    with kept_home(tmp_path / "home", 1) as home, bridge(home) as client:
        client.send({"method": "notifications/initialized"})

        assert client.close() == 0
