"""A client that writes nonsense gets a JSON-RPC error, and the session continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp_bridge.conversation import Spoken, bridge
from tests.mcp_bridge.scripted_mcp import ScriptedMcp, kept_home

pytestmark = pytest.mark.promise("P17")
PARSE, INVALID = -32700, -32600


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoken]:
    """One bridge for all of them: none of these lines may end it."""
    place = tmp_path_factory.mktemp("bad")
    with ScriptedMcp().serving() as relay, kept_home(place / "home", relay.port) as home, bridge(home) as spoken:
        spoken.handshake()
        yield spoken


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"this is not JSON", PARSE, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "pi', PARSE, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "\xff"}', PARSE, None),
        (b"\x00\x01\x02", PARSE, None),
        (b"[" * 100_000, PARSE, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"x": NaN}}', PARSE, None),
        (b"[" + b",".join([b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'] * 10_000) + b"]", INVALID, None),
        (b'"ping"', INVALID, None),
        (b'{"id": 7, "method": "ping"}', INVALID, 7),
        (b'{"jsonrpc": "1.0", "id": "x", "method": "ping"}', INVALID, "x"),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {}}', INVALID, None),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', INVALID, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 3}', INVALID, 7),
        (b'{"jsonrpc": "2.0", "id": 7}', INVALID, 7),
        (b"{}", INVALID, None),
    ],
)
def test_a_bad_line_gets_its_error_and_harms_nothing(client: Spoken, line: bytes, code: int, id: object) -> None:
    client.write(line + b"\n")

    answer = client.read()
    assert (answer["error"]["code"], answer["id"]) == (code, id)
    assert answer["error"]["message"]
    assert client.call("ping")["result"] == {"method": "ping"}


@pytest.mark.parametrize(
    ("start", "end", "id"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": "', b'"}', 7),
        (b'{"method": "tools/call", "params": "', b'", "jsonrpc": "2.0", "id": "me"}', "me"),
        (b'{"method": "tools/call", "params": {"id": 3, "x": "', b'", "id": 4}}', None),
        (b"", b"", None),
    ],
)
def test_a_message_of_100_megabytes_is_refused_and_never_held(
    client: Spoken, start: bytes, end: bytes, id: object
) -> None:
    client.write(start)
    for _ in range(100):
        client.write(b"x" * 1_000_000)
    client.write(end + b"\n")

    answer = client.read()
    assert (answer["error"]["code"], answer["id"]) == (INVALID, id)
    assert client.peak_memory < 32_000_000
    assert client.call("ping")["result"] == {"method": "ping"}


def test_a_line_may_come_in_pieces_and_empty_ones_are_nothing(client: Spoken) -> None:
    client.write(b'\n  \n\r\n{"jsonrpc": "2.0", ')
    client.write(b'"id": "slow", "method": "ping"}')
    client.write(b"\r\n")

    assert client.read()["id"] == "slow"


def test_half_a_surrogate_pair_survives(client: Spoken) -> None:
    client.write(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a\\ud800b"}}\n')

    assert client.read()["result"]["called"] == "a\ud800b"


def test_an_id_in_use_is_refused_and_its_first_call_answered(tmp_path: Path) -> None:
    message = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}).encode()
    with ScriptedMcp().serving() as relay, kept_home(tmp_path / "home", relay.port) as home, bridge(home) as client:
        client.write(message + b"\n" + message + b"\n")
        answers = [client.read(), client.read()]

    assert sorted(answer["id"] or 0 for answer in answers) == [0, 7]
    assert next(answer for answer in answers if "error" in answer)["error"]["code"] == INVALID


def test_half_a_line_at_the_end_of_input_is_answered_before_the_bridge_ends(tmp_path: Path) -> None:
    with ScriptedMcp().serving() as relay, kept_home(tmp_path / "home", relay.port) as home, bridge(home) as client:
        client.write(b'{"jsonrpc": "2.0", "id": 7, "meth')

        assert client.close() == 0
        assert client.read()["error"]["code"] == PARSE
        assert client.read_line() == b""
