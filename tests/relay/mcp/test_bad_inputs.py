"""Bad inputs of the MCP server: each gets an answer that says what to change, never a failure of the relay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator
from tests.fakes.hostile import EVERYTHING, NO_MOMENTS
from tests.relay.mcp.test_tools import Outer, speaking
from tests.relay.peers import RelayProcess, client, problem_of, raw_exchange, request_bytes

from delegate.errors import DelegateError
from delegate.relay.mcp.calls import parse_arguments
from delegate.relay.mcp.schemas import schema_of
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER
from delegate.wire.basics import Wire

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P17")]

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
VERSION = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
DEEP = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + '{"a":' * 10_000 + "1" + "}" * 10_001
# What an attacker may hope that a program takes for more than text, and what is hardly any.
EMPTY = ("\u200d", "\x00", "\ud800", "", " ")
PLACES = ("https://user:password@host/x", "/tmp/../etc", "http://169.254.169.254/latest/meta-data", "</issue>")
OR_LEAVE_OUT = "is empty; give it a value, or leave it out"
STRINGS = (*EVERYTHING, *PLACES, *EMPTY)


@pytest.fixture
async def owner(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(relay.url) as http:
        http.headers.update(ACCEPT)
        yield http


def modern(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": ENVELOPE, **params}}


def refused(response: httpx2.Response, *statuses: int) -> str:
    assert response.status_code in statuses, response.text
    assert "Traceback" not in response.text
    assert len(response.text) < 2_000
    return response.text


BODIES: list[tuple[str, str | bytes, int]] = [
    ("empty", "", -32700),
    ("half an object", '{"jsonrpc": "2.0"', -32700),
    ("not UTF-8", b'{"jsonrpc": "\xff"}', -32700),
    ("arrays 10,000 deep", "[" * 10_000, -32700),
    ("objects 10,000 deep", DEEP, -32700),
    ("a number of 5,000 digits", '{"jsonrpc":"2.0","id":' + "1" * 5_000 + ',"method":"ping"}', -32600),
    ("null", "null", -32600),
    ("an empty object", "{}", -32600),
    ("a string", '"x"', -32600),
    ("a batch of 10,000", json.dumps([PING] * 10_000), -32600),
    ("no method", '{"jsonrpc": "2.0", "id": 1}', -32600),
    ("an id that is an object", '{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
    ("another version of JSON-RPC", '{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
]


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("body", "code"), [case[1:] for case in BODIES], ids=[case[0] for case in BODIES])
async def test_a_message_that_is_none_is_refused(
    owner: httpx2.AsyncClient, body: str | bytes, code: int, era: str
) -> None:
    headers = {"mcp-protocol-version": VERSION} if era == "modern" else {}

    text = refused(await owner.post("/mcp", content=body, headers=headers), 400)

    error = json.loads(text)["error"]
    assert error["code"] in {code, -32700, -32602}
    assert len(error["message"].splitlines()) == 1
    assert "validation error" not in error["message"].lower()


async def test_calls_out_of_order_are_refused_with_a_word(owner: httpx2.AsyncClient) -> None:
    early = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "TaskStatus"}}

    assert "Missing session ID" in refused(await owner.post("/mcp", json=early), 400)
    assert "Session not found" in refused(
        await owner.post("/mcp", json=early, headers={"mcp-session-id": "of-nobody"}), 404
    )
    assert "Missing session ID" in refused(await owner.get("/mcp"), 400)
    stranger = modern("ping") | {"params": {"_meta": {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "1999"}}}
    headers = {"mcp-protocol-version": "1999", "mcp-method": "ping"}
    assert VERSION in refused(await owner.post("/mcp", json=stranger, headers=headers), 400)
    problem_of(await owner.put("/mcp", json=PING), 405, "method_not_allowed")
    refused(await owner.post("/mcp", json=PING, headers={"accept": "text/html"}), 406)
    refused(await owner.post("/mcp", content="x", headers={"content-type": "text/plain"}), 400)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"name": "Nothing"}, "there is no tool Nothing"),
        ({"name": "\x1b[2J"}, "there is no tool \\\\x1b[2J"),
        ({"name": 5}, "params.name: "),
        ({}, "params.name: "),
        ({"name": "TaskStatus", "arguments": "{}"}, "params.arguments: "),
        ({"name": "TaskStatus", "arguments": [1]}, "params.arguments: "),
    ],
    ids=repr,
)
async def test_a_call_that_cannot_be_made_names_what_is_wrong(
    owner: httpx2.AsyncClient, params: dict[str, Any], word: str
) -> None:
    headers = {"mcp-protocol-version": VERSION, "mcp-method": "tools/call"}
    if isinstance(name := params.get("name"), str) and name.isprintable():
        headers["mcp-name"] = name

    text = refused(await owner.post("/mcp", json=modern("tools/call", **params), headers=headers), 400, 200)

    assert word in text or "header" in text
    async with client(str(owner.base_url)) as http:
        http.headers.update(ACCEPT)
        assert word in refused(await legacy(http, "tools/call", params), 200)


async def legacy(http: httpx2.AsyncClient, method: str, params: Any) -> httpx2.Response:
    """One request of a session that has begun."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    begun = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    http.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
    return await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_half_of_a_character_is_refused(owner: httpx2.AsyncClient, era: str) -> None:
    params = {"name": "TaskStatus", "arguments": {"taskId": "\ud800"}}
    headers = {"mcp-protocol-version": VERSION, "mcp-method": "tools/call", "mcp-name": "TaskStatus"}
    body = json.dumps(modern("tools/call", **params))  # written as an escape, which is ASCII

    response = await owner.post("/mcp", content=body, headers=headers if era == "modern" else {})

    text = refused(response, 200, 400)
    assert "lone surrogate" in text or "hex escape" in text


def test_a_message_of_100_megabytes_is_refused_unread(relay: RelayProcess) -> None:
    lines = [f"{name}: {value}" for name, value in ACCEPT.items()]

    answer = raw_exchange(relay, request_bytes(relay, "POST", "/mcp", *lines, f"Content-Length: {100_000_000}"))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"too_large" in answer


async def test_a_message_that_grows_too_large_on_the_way_is_refused(owner: httpx2.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100_000

    response = await owner.post("/mcp", content=endless())

    assert problem_of(response, 413, "too_large")["detail"].startswith("the body is larger than ")


@pytest.mark.parametrize("text", STRINGS, ids=range(len(STRINGS)))
def test_every_text_in_every_argument_is_taken_or_refused_by_name(text: str) -> None:
    for name, arguments, key in texts_of_all_tools(text):
        refusal = fault_in(FOR_OWNER[name].parameters, arguments)

        assert refusal is None or str(refusal.field).startswith(("arguments", key)), (name, arguments, refusal)
        assert refusal is None or refusal.message.isprintable()


def test_a_misspelled_name_is_reported_before_a_missing_one() -> None:
    refusal = fault_in(FOR_OWNER["DelegateTask"].parameters, {"promt": "x"})

    assert refusal is not None
    assert refusal.message == "promt: is not a parameter of DelegateTask; did you mean prompt?"


@pytest.mark.parametrize(
    ("step", "ending"),
    [
        ({"promt": "x"}, "steps.1.promt: is not a parameter of a step; did you mean prompt?"),
        ({"prompt": "x", "zzz": 1}, "steps.1.zzz: is not a parameter of a step; valid names: prompt, priority, "),
        ({"prompt": ""}, "steps.1.prompt: is empty; give it a value"),
        ({"prompt": "x", "model": 1}, "steps.1.model: "),
    ],
)
def test_a_fault_in_a_step_is_reported_of_the_step(step: dict[str, Any], ending: str) -> None:
    refusal = fault_in(FOR_OWNER["CreatePipeline"].parameters, {"steps": [{"prompt": "x"}, step]})

    assert refusal is not None
    assert refusal.message.startswith(ending)
    assert refusal.message.endswith((", delay", ending)) or "model" in step


@pytest.mark.parametrize(
    ("name", "arguments", "ending"),
    [
        ("DelegateTask", {"prompt": ""}, "prompt: is empty; give it a value"),
        ("AnswerTask", {"taskId": "t", "answer": ""}, "answer: is empty; give it a value"),
        (
            "DelegateTask",
            {"prompt": "x", "model": "", "agent": ""},
            "agent: is empty; give it a value, or leave it out",
        ),
        (
            "DelegateTask",
            {"prompt": "x", "continueFrom": ""},
            "continueFrom: is empty; give it a value, or leave it out",
        ),
    ],
)
def test_only_optional_arguments_are_said_to_be_optional(name: str, arguments: dict[str, Any], ending: str) -> None:
    refusal = fault_in(FOR_OWNER[name].parameters, arguments)

    assert refusal is not None
    assert refusal.message == ending


@pytest.mark.parametrize("moment", NO_MOMENTS, ids=repr)
@pytest.mark.parametrize("field", ["scheduledAt", "expiresAt"])
def test_a_moment_is_written_out_with_its_zone(field: str, moment: object) -> None:
    refusal = fault_in(FOR_OWNER["ScheduleTask"].parameters, {"prompt": "x", "scheduleType": "one_time", field: moment})

    assert refusal is not None
    assert refusal.message == f"{field}: is not an ISO 8601 time with a zone; write it like 2030-02-19T08:00:00Z"


def fault_in(parameters: type[Wire], arguments: dict[str, Any]) -> DelegateError | None:
    try:
        parse_arguments(parameters, arguments)
    except DelegateError as error:
        return error
    return None


def texts_of_all_tools(text: str) -> list[tuple[str, dict[str, Any], str]]:
    """Every tool with this text in one of its arguments, the others as they should be."""
    good = {"taskId": "task-x", "scheduleId": "schedule-x", "prompt": "x", "answer": "x", "scheduleType": "cron"}
    found = []
    for name, tool in FOR_OWNER.items():
        schema = schema_of(tool.parameters)
        needed = {key: good.get(key, [{"prompt": "x"}] * 2) for key in schema.get("required", [])}
        for key in schema["properties"]:
            value = [text] if key == "dependsOn" else [{"prompt": text}] * 2 if key == "steps" else text
            found.append((name, {**needed, key: value}, key))
    return found


async def test_no_text_that_gets_further_does_harm(relay: RelayProcess) -> None:
    lines = len(relay.log.splitlines())
    cron = {"prompt": "x", "scheduleType": "cron"}
    async with speaking(relay, delegate_directory="/tmp", delegate_machine="nowhere") as outer:
        for text in STRINGS:
            if text.isascii() or text.encode(errors="replace") == text.encode(errors="ignore"):  # the client cannot
                await harmless(outer, "DelegateTask", {"prompt": text})
                await harmless(outer, "DelegateTask", {"prompt": "x", "repository": text})
                await harmless(outer, "DelegateTask", {"prompt": "x", "workingDirectory": f"/tmp/{text}"})
                await harmless(outer, "TaskStatus", {"taskId": text})
                await harmless(outer, "ScheduleTask", {**cron, "cronExpression": text})
                await harmless(outer, "ScheduleTask", {**cron, "cronExpression": "0 0 * * *", "timezone": text})

    said = relay.log.splitlines()[lines:]
    assert [line for line in said if "Traceback" in line or " error " in line] == []


async def harmless(outer: Outer, tool: str, arguments: dict[str, Any]) -> None:
    result = await outer.client.call_tool(tool, arguments)
    assert not result.is_error or "code: internal" not in result.content[0].text, (tool, arguments)
    if tool == "DelegateTask" and not result.is_error:  # other tests have runners that would take it
        await outer.call("CancelTask", taskId=result.structured_content["taskId"])


def verdicts(name: str, arguments: dict[str, Any]) -> tuple[bool, bool]:
    """Whether what is advertised allows it, and whether the relay takes it."""
    parameters = {**FOR_OWNER, **FOR_AGENTS}[name].parameters
    advertised = Draft202012Validator(schema_of(parameters)).is_valid(arguments)
    return advertised, fault_in(parameters, arguments) is None


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("DelegateTask", {"prompt": "x" * 250_000}),
    ("DelegateTask", {"prompt": "x", "priority": "P0", "timeout": 1_000, "maxOutputBuffer": 1_073_741_824}),
    ("DelegateTask", {"prompt": "x", "timeout": 86_400_000, "maxOutputBuffer": 1_024, "dependsOn": ["t"] * 100}),
    ("DelegateTask", {"prompt": "x", "onDependencyFailure": "run", "maxBudgetUsd": 0.5, "model": None}),
    ("TaskStatus", {"limit": 100, "status": "waiting", "cursor": "t1"}),
    ("TaskLogs", {"taskId": "t", "tail": 1_000}),
    ("TaskLogs", {"taskId": "t", "tail": 1}),
    ("ScheduleTask", {"prompt": "x", "scheduleType": "cron", "cronExpression": "0 2 * * *", "maxRuns": 1}),
    ("ScheduleTask", {"prompt": "x", "scheduleType": "one_time", "scheduledAt": "2030-01-01T00:00:00Z"}),
    ("GetSchedule", {"scheduleId": "s", "historyLimit": 100}),
    ("CreatePipeline", {"steps": [{"prompt": "x", "delay": 5}] * 20}),
    ("ask_user", {"question": "?", "options": ["yes"] * 20}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("DelegateTask", {}),
    ("DelegateTask", {"prompt": "x" * 250_001}),
    ("DelegateTask", {"prompt": ""}),
    ("DelegateTask", {"prompt": "a\x00b"}),
    ("DelegateTask", {"prompt": "x", "priority": "P3"}),
    ("DelegateTask", {"prompt": "x", "timeout": 999}),
    ("DelegateTask", {"prompt": "x", "timeout": 86_400_001}),
    ("DelegateTask", {"prompt": "x", "timeout": "1000"}),
    ("DelegateTask", {"prompt": "x", "maxOutputBuffer": 1_023}),
    ("DelegateTask", {"prompt": "x", "maxOutputBuffer": 1_073_741_825}),
    ("DelegateTask", {"prompt": "x", "dependsOn": ["t"] * 101}),
    ("DelegateTask", {"prompt": "x", "dependsOn": "t"}),
    ("DelegateTask", {"prompt": "x", "worktree": 1}),
    ("DelegateTask", {"prompt": "x", "maxBudgetUsd": 0}),
    ("DelegateTask", {"prompt": "x", "working_directory": "/tmp"}),
    ("DelegateTask", {"prompt": "x", "machine": "m"}),
    ("TaskStatus", {"limit": 101}),
    ("TaskStatus", {"limit": 0}),
    ("TaskStatus", {"cursor": "x"}),
    ("TaskLogs", {"taskId": "t", "tail": 0}),
    ("TaskLogs", {"taskId": "t", "tail": 1_001}),
    ("TaskLogs", {"taskId": "a b"}),
    ("ScheduleTask", {"prompt": "x", "scheduleType": "daily"}),
    ("ScheduleTask", {"prompt": "x", "scheduleType": "cron", "timezone": "a b"}),
    ("GetSchedule", {"scheduleId": "s", "historyLimit": 0}),
    ("CreatePipeline", {"steps": [{"prompt": "x"}]}),
    ("CreatePipeline", {"steps": [{"prompt": "x"}] * 21}),
    ("CreatePipeline", {"steps": [{"prompt": "x", "delay": -1}] * 2}),
    ("ask_user", {"question": "", "options": []}),
    ("ask_user", {"question": "?", "options": ["yes"] * 21}),
]


@pytest.mark.parametrize(("name", "arguments"), GOOD)
def test_what_is_advertised_is_taken(name: str, arguments: dict[str, Any]) -> None:
    assert verdicts(name, arguments) == (True, True)


@pytest.mark.parametrize(("name", "arguments"), BAD)
def test_what_is_not_advertised_is_not_taken(name: str, arguments: dict[str, Any]) -> None:
    assert verdicts(name, arguments) == (False, False)


BAD_IDS = ["null", "{}", "[]", "NaN", "1.5", "true"]


@pytest.mark.parametrize("era", ["modern", "session"])
@pytest.mark.parametrize("bad", BAD_IDS)
async def test_a_request_with_a_bad_id_gets_an_error_not_silence(owner: httpx2.AsyncClient, bad: str, era: str) -> None:
    if era == "session":
        await legacy(owner, "ping", {})
    headers = {"mcp-protocol-version": VERSION, "mcp-method": "ping"} if era == "modern" else {}

    response = await owner.post("/mcp", content=f'{{"jsonrpc":"2.0","id":{bad},"method":"ping"}}', headers=headers)

    error = json.loads(refused(response, 400))["error"]
    assert (error["code"], error["message"]) == (-32600, 'the "id" of a request must be a string or an integer')


async def test_a_batch_works_in_a_session_of_the_version_that_has_them(owner: httpx2.AsyncClient) -> None:
    await legacy(owner, "ping", {})
    call = {"name": "TaskStatus", "arguments": {"limit": 1}}
    batch: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "no/such"},
    ]

    response = await owner.post("/mcp", json=batch)
    silent = await owner.post("/mcp", json=batch[1:2])

    answers = response.json()
    assert [answer["id"] for answer in answers] == ["a", 2, None, 3]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, None, -32600, -32601]
    assert "structuredContent" in answers[1]["result"]
    assert (silent.status_code, silent.content) == (202, b"")


@pytest.mark.parametrize("batch", [[], [PING] * 101], ids=len)
async def test_a_batch_of_none_or_too_many_is_refused(owner: httpx2.AsyncClient, batch: list[Any]) -> None:
    await legacy(owner, "ping", {})

    assert "a batch has 1 to 100 messages" in refused(await owner.post("/mcp", json=batch), 400)


async def test_a_message_with_a_key_twice_is_refused(owner: httpx2.AsyncClient) -> None:
    body = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}'

    assert "the key a more than once" in refused(await owner.post("/mcp", content=body), 400)


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("initialize", {"protocolVersion": "2025-03-26", "capabilities": 3}, "params.capabilities: must be an object"),
        ("tools/call", {"name": "TaskStatus", "_meta": 5}, "params._meta: must be an object"),
        ("tools/list", {"cursor": 5}, "params.cursor: must be a valid string"),
    ],
)
async def test_no_class_of_ours_or_the_sdks_is_in_an_error(
    owner: httpx2.AsyncClient, method: str, params: dict[str, Any], message: str
) -> None:
    assert f'"message":"{message}"' in refused(await legacy(owner, method, params), 200)
