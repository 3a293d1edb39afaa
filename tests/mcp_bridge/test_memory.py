"""How much the bridge keeps for a relay that does not take it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.mcp_bridge.conversation import bridge
from tests.mcp_bridge.scripted_mcp import ScriptedMcp, kept_home

from delegate.mcp_bridge import rpc
from delegate.mcp_bridge.dispatcher import QUEUE_BYTES, QUEUE_MAX, Dispatcher
from delegate.mcp_bridge.stdio import Output

MIB = 1024 * 1024


def new_dispatcher(home: Path) -> Dispatcher:
    return Dispatcher({"DELEGATE_HOME": str(home)}, Output(1), lambda *_, **__: None)


def call(number: int, size: int) -> rpc.ClientMessage:
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {"text": "x" * size}}
    return rpc.parse_line(json.dumps(message).encode(), str)


def test_the_client_waits_when_large_messages_wait_and_continues_when_one_is_taken_back(tmp_path: Path) -> None:
    waiting = new_dispatcher(tmp_path)
    for number in range(QUEUE_BYTES // MIB - 1):
        waiting.enqueue(call(number, MIB))
    assert not waiting.is_full

    waiting.enqueue(call(100, MIB))
    assert waiting.is_full
    cancelled = {"jsonrpc": "2.0", "method": rpc.CANCELLED, "params": {"requestId": 100}}
    waiting.enqueue(rpc.parse_line(json.dumps(cancelled).encode(), str))

    assert not waiting.is_full


def test_the_client_waits_when_many_small_messages_wait(tmp_path: Path) -> None:
    waiting = new_dispatcher(tmp_path)

    for number in range(QUEUE_MAX):
        assert not waiting.is_full
        waiting.enqueue(call(number, 1))

    assert waiting.is_full


def test_large_calls_go_to_the_relay_a_few_at_a_time_and_all_are_answered(tmp_path: Path) -> None:
    script = ScriptedMcp()
    with script.serving(), kept_home(tmp_path, script.port), bridge(tmp_path) as client:
        client.handshake()
        text = {"name": "One", "arguments": {"text": "x" * 2 * MIB}}
        asked = {client.ask("tools/call", text) for _ in range(12)}

        assert {client.read()["id"] for _ in asked} == asked
