"""What the client writes reaches the relay, and what the relay answers comes back, in both protocols."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_bridge.conversation import META, MODERN, Spoken, bridge
from tests.mcp_bridge.scripted_mcp import VERSION, Json, ScriptedMcp, kept_home

Open = Callable[..., tuple[ScriptedMcp, Spoken]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """A scripted relay, and a bridge that has found it."""
    with ExitStack() as stack:

        def begin(cwd: Path | None = None, **script: Any) -> tuple[ScriptedMcp, Spoken]:
            relay = stack.enter_context(ScriptedMcp(**script).serving())
            home = stack.enter_context(kept_home(tmp_path / "home", relay.port))
            return relay, stack.enter_context(bridge(home, cwd=cwd))

        yield begin


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
def test_a_session_is_opened_used_and_ended(opened: Open, tmp_path: Path, streams: bool) -> None:
    work = tmp_path / "my wörk"
    work.mkdir()
    relay, client = opened(cwd=work, streams=streams)

    assert client.handshake()["result"]["serverInfo"] == {"name": "scripted"}
    assert client.call("tools/list")["result"] == {"method": "tools/list"}
    assert client.tool("Delegate")["result"]["called"] == "Delegate"
    assert client.close() == 0

    first, *rest = relay.asked
    session = rest[0].session
    assert (first.session, first.headers.get("mcp-protocol-version")) == (None, None)
    assert session
    assert {one.session for one in rest} == {session}
    assert {one.headers["mcp-protocol-version"] for one in rest} == {VERSION}
    assert {one.headers["authorization"] for one in relay.asked} == {"Bearer secret-token"}
    assert {one.headers["delegate-machine"] for one in relay.asked} == {"lathe-1234"}
    assert first.headers["delegate-directory"].endswith("/my%20w%C3%B6rk")
    assert "DELETE" in {one.method for one in rest}
    assert relay.sessions == set()


def test_every_call_of_a_tool_has_a_key_of_its_own_and_a_client_may_give_one(opened: Open) -> None:
    relay, client = opened()
    client.handshake()

    client.tool("One", text="schön")
    client.tool("Two")
    client.call("tools/call", {"name": "Three", "_meta": {"delegate/requestKey": "mine", "progressToken": 3}})

    params = [one.message["params"] for one in relay.of("tools/call")]
    keys = [given["_meta"]["delegate/requestKey"] for given in params]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"
    assert params[0]["arguments"] == {"text": "schön"}
    assert params[2]["_meta"]["progressToken"] == 3


def test_a_message_that_names_its_protocol_belongs_to_no_session(opened: Open) -> None:
    relay, client = opened()
    client.handshake()

    client.call("server/discover", {"_meta": META})
    client.call("tools/call", {"name": "grüße", "_meta": META})

    discover, call = relay.of("server/discover")[0].headers, relay.of("tools/call")[0].headers
    assert (discover["mcp-protocol-version"], discover["mcp-method"]) == (MODERN, "server/discover")
    assert "mcp-name" not in discover
    assert call["mcp-name"] == f"=?base64?{base64.b64encode('grüße'.encode()).decode()}?="
    assert "mcp-session-id" not in discover
    assert "mcp-session-id" not in call


def test_thirty_two_calls_are_carried_at_once_and_more_follow(opened: Open) -> None:
    together = threading.Barrier(32)

    def tool(params: Json) -> Json:
        if params["arguments"]["number"] < 32:
            together.wait(20)
        return {"number": params["arguments"]["number"]}

    _, client = opened(tool=tool)
    client.handshake()

    asked = [client.ask("tools/call", {"name": "Wait", "arguments": {"number": number}}) for number in range(40)]
    answers = [client.read() for _ in asked]

    assert {answer["id"]: answer["result"]["number"] for answer in answers} == dict(zip(asked, range(40), strict=True))


def test_what_the_relay_says_by_itself_reaches_the_client_also_after_it_was_cut(opened: Open) -> None:
    relay, client = opened()
    client.handshake()
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}

    relay.wait_for(lambda: relay.listeners)
    relay.listeners[0].put(changed)
    assert client.read() == changed
    relay.listeners[0].put(None)
    relay.wait_for(lambda: [one for one in relay.asked if one.method == "GET"][1:])

    assert [one.headers.get("last-event-id") for one in relay.asked if one.method == "GET"] == [None, "7"]


def test_a_question_of_the_relay_is_answered_by_the_client(opened: Open) -> None:
    relay, client = opened()
    client.handshake()
    relay.wait_for(lambda: relay.listeners)

    relay.listeners[0].put({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    assert client.read()["id"] == "q"
    client.send({"id": "q", "result": {"roots": []}})

    relay.wait_for(lambda: any(b'"roots": []' in one.body for one in relay.asked))


def test_a_cancelled_call_of_a_session_is_reported_to_the_relay_and_never_answered(opened: Open) -> None:
    going_on = threading.Event()
    relay, client = opened(tool=lambda _: going_on.wait(20) and {"late": True})
    client.handshake()

    asked = client.ask("tools/call", {"name": "Slow"})
    relay.wait_for(lambda: relay.of("tools/call"))
    client.send({"method": "notifications/cancelled", "params": {"requestId": asked}})
    relay.wait_for(lambda: relay.of("notifications/cancelled"))
    going_on.set()

    assert client.call("ping")["result"] == {"method": "ping"}


def test_a_call_without_a_session_is_cancelled_by_hanging_up(opened: Open) -> None:
    held = threading.Event()
    relay, client = opened(tool=lambda _: held.wait(20) and {"late": True})

    asked = client.ask("tools/call", {"name": "Slow", "_meta": META})
    relay.wait_for(lambda: relay.of("tools/call"))
    client.send({"method": "notifications/cancelled", "params": {"requestId": asked}})
    answer = client.call("ping", {"_meta": META})
    held.set()

    assert answer["result"] == {"method": "ping"}
    assert relay.of("notifications/cancelled") == []
    assert client.close() == 0


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, {"type": "unauthenticated", "detail": "who are you", "hint": "say it"}, "who are you: say it"),
        (413, {"type": "payload_too_large", "detail": "too large", "hint": None}, "too large"),
        (404, {"anything": 1}, "but not with an MCP message"),
    ],
)
def test_a_relay_that_refuses_is_quoted_to_the_client(opened: Open, status: int, body: Json, said: str) -> None:
    _, client = opened(refusal=(status, json.dumps(body).encode()))

    error = client.call("initialize")["error"]

    assert error["code"] == -32000
    assert said in error["message"]


def test_an_error_without_an_id_gets_that_of_its_call(opened: Open) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad"}}
    _, client = opened(refusal=(400, json.dumps(body).encode()))

    assert client.call("tools/list")["error"] == {"code": -32602, "message": "bad"}
