from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delegate.model import EventKind, Stream, Usage
from delegate.runner.agents import AgentTurn, Ending, Fact
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.acp_reading import AcpReading
from delegate.runner.agents.claude_verdict import UNKNOWN_RESET
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

EXIT_0 = Exit(code=0, signal=None)
KILLED = Exit(code=None, signal=9)
SESSION = "ses_1"
MODELS = {
    "id": "model",
    "category": "model",
    "type": "select",
    "currentValue": "one/small",
    "options": [{"value": "one/small"}, {"value": "one/large"}],
}
EFFORTS = {
    "id": "effort",
    "category": "thought_level",
    "type": "select",
    "currentValue": "low",
    "options": [{"group": "all", "options": [{"value": "low"}, {"value": "high"}]}],
}

NewReading = Callable[..., "Talk"]


class Talk:
    """An agent's half of a conversation with a reading."""

    def __init__(self, reading: AcpReading) -> None:
        self.reading = reading
        self.asked: list[dict[str, Any]] = [{"id": 1, "method": "initialize"}]

    def send(self, *messages: object) -> list[Fact]:
        data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        facts = self.reading.feed(Stream.STDOUT, data)
        self.asked += [json.loads(line) for line in self.reading.replies().splitlines()]
        return facts

    def answer(self, result: object) -> list[Fact]:
        return self.send({"jsonrpc": "2.0", "id": self.asked[-1]["id"], "result": result})

    def refuse(self, code: int = -32603, message: str = "Internal error", **data: object) -> list[Fact]:
        error = {"code": code, "message": message, "data": data}
        return self.send({"jsonrpc": "2.0", "id": self.asked[-1]["id"], "error": error})

    def greet(self, **capabilities: object) -> None:
        self.answer({"protocolVersion": 1, "agentCapabilities": capabilities})

    def open(self, *options: object, **fields: object) -> list[Fact]:
        self.greet()
        return self.answer({"sessionId": SESSION, "configOptions": list(options), **fields})

    def update(self, what: str, **fields: object) -> list[Fact]:
        update = {"sessionUpdate": what, **fields}
        return self.send({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})

    def say(self, text: str, **fields: object) -> list[Fact]:
        return self.update("agent_message_chunk", content={"type": "text", "text": text}, **fields)

    def reason(self, now: datetime, exit: Exit = EXIT_0, ending: Ending = Ending.EXITED) -> Reason:
        return self.reading.judge(exit, ending, now).reason


@pytest.fixture
def talk(new_turn: Callable[..., AgentTurn]) -> NewReading:
    agent = Acp(command="some-agent --acp", is_root=False)
    return lambda **fields: Talk(agent.reading(new_turn(working_directory="/work", **fields)))


def methods(talk: Talk) -> list[str]:
    return [request["method"] for request in talk.asked]


# How a run goes.


def test_the_session_is_opened_in_the_tasks_directory_and_given_the_words(talk: NewReading) -> None:
    running = talk(text="Fix it \ud800 now")

    facts = running.open()

    assert methods(running) == ["initialize", "session/new", "session/prompt"]
    assert running.asked[1]["params"] == {"cwd": "/work", "mcpServers": []}
    prompt = [{"type": "text", "text": "Fix it ? now"}]
    assert running.asked[2]["params"] == {"sessionId": SESSION, "prompt": prompt}
    assert facts == [Fact(kind=EventKind.SESSION, data={"sessionId": SESSION, "model": ""})]
    assert not running.reading.result_seen


def test_a_later_attempt_in_place_learns_about_the_one_before(talk: NewReading) -> None:
    running = talk(number=2, prompt="Fix it")

    running.open()

    assert running.asked[-1]["params"]["prompt"][0]["text"].startswith("An earlier attempt")


def test_files_and_terminals_are_not_offered(new_turn: Callable[..., AgentTurn]) -> None:
    made = Acp(command="some-agent --acp", is_root=False).invocation(new_turn(), {"PATH": "/nowhere"})

    assert json.loads(made.initial_input)["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }
    assert made.argv == ("some-agent", "--acp")
    assert made.keep_input_open


@pytest.mark.parametrize(
    ("capabilities", "method"),
    [
        ({"loadSession": True, "sessionCapabilities": {"resume": {}}}, "session/resume"),
        ({"loadSession": True, "sessionCapabilities": {}}, "session/load"),
    ],
)
def test_a_session_is_continued_in_the_best_way_that_the_agent_has(
    capabilities: dict[str, object], method: str, talk: NewReading
) -> None:
    running = talk(session="ses_0", text="Go on")

    running.greet(**capabilities)
    assert running.say("all that was said before") == []
    running.answer({})

    assert methods(running) == ["initialize", method, "session/prompt"]
    assert running.asked[1]["params"]["sessionId"] == running.asked[2]["params"]["sessionId"] == "ses_0"
    assert (running.reading.session_id, running.reading.takes_more_turns) == ("ses_0", True)


def test_an_agent_that_cannot_continue_sessions_has_lost_this_one(talk: NewReading) -> None:
    running = talk(session="ses_0")

    running.greet()

    assert running.reading.session_missing
    assert running.reading.result_seen
    assert running.reading.session_id is None


def test_a_session_that_it_does_not_find_is_missing_unless_the_login_is(talk: NewReading, now: datetime) -> None:
    lost, closed = talk(session="ses_0"), talk(session="ses_0")
    for running in (lost, closed):
        running.greet(loadSession=True)

    lost.refuse(-32002, "Resource not found")
    closed.refuse(-32000, "Authentication required")

    assert (lost.reading.session_missing, closed.reading.session_missing) == (True, False)
    assert closed.reason(now) is Reason.NOT_LOGGED_IN


@pytest.mark.parametrize("session", ["--version", "a b", "", 7, None, "x" * 200])
def test_a_session_id_that_is_none_is_not_taken(session: object, talk: NewReading, now: datetime) -> None:
    running = talk()
    running.greet()

    running.answer({"sessionId": session})

    assert (running.reading.session_id, running.reading.result_seen) == (None, True)
    assert running.reason(now) is Reason.AGENT_ERROR


def test_another_version_of_the_protocol_is_an_error(talk: NewReading, now: datetime) -> None:
    running = talk()

    running.answer({"protocolVersion": 2})

    outcome = running.reading.judge(EXIT_0, Ending.EXITED, now)
    assert outcome.message == "some-agent ended with an error: it uses version 2 of the protocol"


# The preferences of the task.


def test_model_and_effort_are_set_one_after_the_other(talk: NewReading) -> None:
    running = talk(model="large", effort="high")

    running.open(MODELS, EFFORTS)
    facts = running.answer({"configOptions": [{**MODELS, "currentValue": "one/large"}, EFFORTS]})
    facts += running.answer({})

    assert [request["params"] for request in running.asked[2:4]] == [
        {"sessionId": SESSION, "configId": "model", "value": "one/large"},
        {"sessionId": SESSION, "configId": "effort", "value": "high"},
    ]
    assert methods(running)[-1] == "session/prompt"
    assert [fact.data.get("model") for fact in facts] == ["one/large"]


def test_what_is_so_already_is_not_set(talk: NewReading) -> None:
    running = talk(model="one/small", effort="low")

    running.open(MODELS, EFFORTS)

    assert methods(running)[2:] == ["session/prompt"]


def test_a_model_that_the_agent_refuses_ends_the_run_before_anything_is_asked(talk: NewReading, now: datetime) -> None:
    running = talk(model="huge")
    running.open(MODELS)

    running.refuse(details="Invalid value for config option model: huge")

    assert running.asked[-1]["params"]["value"] == "huge"
    outcome = running.reading.judge(EXIT_0, Ending.EXITED, now)
    assert (outcome.state, outcome.reason) == (AttemptState.FAILED, Reason.UNKNOWN_MODEL)
    assert "Invalid value for config option model: huge" in outcome.message


def test_a_model_cannot_be_had_from_an_agent_that_offers_no_choice(talk: NewReading, now: datetime) -> None:
    running = talk(model="huge")

    running.open()

    assert methods(running) == ["initialize", "session/new"]
    assert running.reason(now) is Reason.UNKNOWN_MODEL


@pytest.mark.parametrize("options", [[], [EFFORTS]])
def test_an_effort_that_is_not_known_is_a_warning(options: list[object], talk: NewReading) -> None:
    running = talk(effort="extreme")

    facts = running.open(*options)

    assert methods(running)[-1] == "session/prompt"
    assert facts[0].data == {"text": "some-agent does not support effort extreme; it uses its own default"}


@pytest.mark.parametrize("limit", [{"max_turns": 5}, {"budget_usd": 1.0}])
def test_a_limit_that_the_protocol_does_not_know_is_a_warning(limit: dict[str, object], talk: NewReading) -> None:
    facts = talk(**limit).open()

    words = "some-agent does not support turn or budget limits; the task's limit is not enforced"
    assert [fact.data for fact in facts][:1] == [{"text": words}]


def test_a_mode_that_the_agent_has_is_set(talk: NewReading) -> None:
    modes = {"currentModeId": "default", "availableModes": [{"id": "default"}, {"id": "plan"}]}
    planning, other = talk(permission_mode="plan"), talk(permission_mode="acceptEdits")

    planning.open(modes=modes)
    facts = planning.refuse(details="not now")
    other.open(modes=modes)

    assert planning.asked[2]["params"] == {"sessionId": SESSION, "modeId": "plan"}
    assert facts[0].data == {"text": "some-agent rejected an option: not now"}
    assert methods(planning)[-1] == methods(other)[-1] == "session/prompt"


# What it asks.

OPTIONS = [
    {"kind": "allow_always", "optionId": "always"},
    {"kind": "allow_once", "optionId": "once"},
    {"kind": "reject_once", "optionId": "no"},
]


@pytest.mark.parametrize(
    ("mode", "kind", "options", "expected"),
    [
        (None, "execute", OPTIONS, {"outcome": "selected", "optionId": "once"}),
        ("bypassPermissions", "other", OPTIONS[:1], {"outcome": "selected", "optionId": "always"}),
        ("acceptEdits", "edit", OPTIONS, {"outcome": "selected", "optionId": "once"}),
        ("acceptEdits", "execute", OPTIONS, {"outcome": "selected", "optionId": "no"}),
        ("plan", "read", OPTIONS, {"outcome": "selected", "optionId": "once"}),
        ("default", "edit", OPTIONS, {"outcome": "selected", "optionId": "no"}),
        ("dontAsk", None, OPTIONS[:2], {"outcome": "cancelled"}),
        (None, "execute", [], {"outcome": "cancelled"}),
    ],
)
def test_permission_is_given_as_the_mode_says_and_never_for_good_if_once_is_enough(
    mode: str | None, kind: str | None, options: list[object], expected: dict[str, str], talk: NewReading
) -> None:
    running = talk(permission_mode=mode)
    running.open()

    params = {"toolCall": {"toolCallId": "c", "kind": kind}, "options": options}
    running.send({"id": "r-1", "method": "session/request_permission", "params": params})

    assert running.asked[-1] == {"jsonrpc": "2.0", "id": "r-1", "result": {"outcome": expected}}


def test_an_unknown_method_is_refused_with_an_error(talk: NewReading) -> None:
    running = talk()
    running.open()

    running.send({"id": 0, "method": "fs/write_text_file", "params": {"path": "/etc/passwd", "content": ""}})

    error = {"code": -32601, "message": "Delegate does not offer fs/write_text_file"}
    assert running.asked[-1] == {"jsonrpc": "2.0", "id": 0, "error": error}


def test_a_reply_is_given_once(talk: NewReading) -> None:
    reading = talk().reading
    reading.feed(Stream.STDOUT, b'{"id":1,"result":{"protocolVersion":1}}\n')

    assert json.loads(reading.replies())["method"] == "session/new"
    assert reading.replies() == b""


def test_refused_tools_are_reported_at_the_end(talk: NewReading) -> None:
    running = talk(permission_mode="plan")
    running.open()
    prompt = running.asked[-1]
    for number in range(2):
        params = {"toolCall": {"kind": "execute"}, "options": OPTIONS}
        running.send({"id": number, "method": "session/request_permission", "params": params})

    facts = running.send({"id": prompt["id"], "result": {"stopReason": "end_turn"}})

    assert facts[-1].data == {"text": "tool calls denied: 2 (execute)"}


# What it tells.


def test_a_message_is_put_together_from_its_pieces(talk: NewReading) -> None:
    running = talk()
    running.open()

    facts = [
        *running.say("Hel", messageId="m1"),
        *running.update("usage_update", used=1),
        *running.say("lo", messageId="m1"),
    ]
    facts += running.say("Next", messageId="m2")
    facts += running.update("agent_thought_chunk", content={"type": "text", "text": "hm"})

    assert [fact.data for fact in facts] == [{"text": "Hello"}, {"text": "Next"}]
    assert running.reading.summary == "Next"


def test_a_tool_call_is_reported_once_when_its_input_is_known(talk: NewReading) -> None:
    running = talk()
    running.open()

    facts = running.update("tool_call", toolCallId="c1", title="Write", kind="edit", status="pending", rawInput={})
    assert facts == []
    for _ in range(2):
        update = {"toolCallId": "c1", "title": "Write a.txt", "rawInput": {"file_path": "/work/a.txt"}}
        facts += running.update("tool_call_update", **update)
    facts += running.update("tool_call", toolCallId="c2", title="Looking around", kind="search")
    facts += running.update("tool_call_update", toolCallId="c2", status="completed")

    assert [fact.data for fact in facts] == [
        {"name": "Write", "summary": "/work/a.txt", "id": "c1", "verb": "edit", "path": "/work/a.txt"},
        {"name": "search", "summary": "Looking around", "id": "c2", "verb": "search"},
    ]


def test_a_plan_is_the_to_do_list(talk: NewReading) -> None:
    running = talk()
    running.open()

    (fact,) = running.update(
        "plan",
        entries=[{"content": "One", "status": "completed"}, {"content": "Two", "status": "odd"}, {"content": ""}, 7],
    )

    items = [{"title": "One", "state": "completed"}, {"title": "Two", "state": "pending"}]
    assert (fact.kind, fact.data) == (EventKind.TODO, {"items": items})


def test_what_was_started_is_reported_when_the_turn_is_over(talk: NewReading) -> None:
    running = talk()
    running.open()
    running.update("tool_call", toolCallId="c1", title="Wait", kind="other")
    running.say("Bye.")

    facts = running.answer({"stopReason": "end_turn"})

    assert [fact.kind for fact in facts] == [EventKind.MESSAGE, EventKind.TOOL, EventKind.USAGE]


@pytest.mark.parametrize(("before", "cost", "expected"), [(0.0, 0.5, 0.5), (0.4, 0.5, 0.1), (0.6, 0.5, 0.5)])
def test_tokens_are_summed_and_the_sessions_cost_is_without_what_was_spent_before(
    before: float, cost: float, expected: float, talk: NewReading
) -> None:
    running = talk(spent=Usage(cost_usd=before))
    running.open()

    running.update("usage_update", used=1, size=9, cost={"amount": cost, "currency": "USD"})
    running.answer({"stopReason": "end_turn", "usage": {"inputTokens": 10, "outputTokens": 2, "cachedReadTokens": 5}})
    running.asked.append(json.loads(running.reading.message("more") or b""))
    running.answer({"stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": 1}})

    about: Any = pytest.approx(expected)
    assert running.reading.usage == Usage(
        input_tokens=11, output_tokens=3, cache_read_tokens=5, turns=2, cost_usd=about
    )


# Messages.


def test_a_message_waits_for_the_end_of_the_turn_and_is_the_next_prompt(talk: NewReading) -> None:
    running = talk()
    running.open()
    assert running.reading.message("And now?") is None

    running.answer({"stopReason": "end_turn"})
    assert running.reading.result_seen
    request = json.loads(running.reading.message("And now?") or b"")

    assert (request["method"], request["params"]["prompt"][0]["text"]) == ("session/prompt", "And now?")
    assert not running.reading.result_seen


def test_a_message_does_not_go_to_a_run_that_has_failed(talk: NewReading) -> None:
    running = talk()
    running.open()

    running.refuse()

    assert running.reading.result_seen
    assert running.reading.message("And now?") is None


# How it ended.


@pytest.mark.parametrize(
    ("stop", "exit", "ending", "reason"),
    [
        ("end_turn", EXIT_0, Ending.EXITED, Reason.DONE),
        ("end_turn", KILLED, Ending.LINGERED, Reason.DONE),
        ("end_turn", KILLED, Ending.TIMEOUT, Reason.DONE),
        ("max_turn_requests", KILLED, Ending.TIMEOUT, Reason.TIMEOUT),
        ("end_turn", EXIT_0, Ending.CANCELLED, Reason.CANCELLED),
        ("refusal", EXIT_0, Ending.EXITED, Reason.REFUSED),
        ("max_turn_requests", EXIT_0, Ending.EXITED, Reason.MAX_TURNS),
        ("max_tokens", EXIT_0, Ending.EXITED, Reason.AGENT_ERROR),
        ("cancelled", EXIT_0, Ending.EXITED, Reason.AGENT_ERROR),
        (None, EXIT_0, Ending.EXITED, Reason.AGENT_ERROR),
    ],
)
def test_why_a_turn_stopped_is_the_outcome(
    stop: str | None, exit: Exit, ending: Ending, reason: Reason, talk: NewReading, now: datetime
) -> None:
    running = talk()
    running.open()

    running.answer({"stopReason": stop})

    assert running.reason(now, exit, ending) is reason


@pytest.mark.parametrize(
    ("code", "message", "data", "reason"),
    [
        (-32000, "Authentication required", {}, Reason.NOT_LOGGED_IN),
        (-32603, "Internal error: broken", {"errorKind": "rate_limit"}, Reason.RATE_LIMITED),
        (-32603, "Internal error: API Error: 429 Too Many Requests", {}, Reason.RATE_LIMITED),
        (-32603, "You've hit your usage limit", {}, Reason.USAGE_LIMIT),
        (-32603, "Internal error", {"details": "Overloaded"}, Reason.OVERLOADED),
        (-32603, "Internal error: API Error: read ECONNRESET", {}, Reason.UNREACHABLE),
        (-32603, "Internal error: model: claude-x", {"errorName": "APIError"}, Reason.UNKNOWN_MODEL),
        (-32603, "Internal error: Prompt is too long", {"errorKind": "invalid_request"}, Reason.CONTEXT_TOO_LONG),
        (-32603, "Internal error", {"details": "cannot read properties of undefined"}, Reason.AGENT_ERROR),
    ],
)
def test_an_error_has_its_reason(
    code: int, message: str, data: dict[str, object], reason: Reason, talk: NewReading, now: datetime
) -> None:
    running = talk()
    running.open()

    running.refuse(code, message, **data)

    outcome = running.reading.judge(EXIT_0, Ending.EXITED, now)
    assert outcome.reason is reason
    is_limit = reason in {Reason.RATE_LIMITED, Reason.USAGE_LIMIT}
    assert outcome.state is (AttemptState.RELEASED if is_limit else AttemptState.FAILED)
    assert outcome.not_before == (now + UNKNOWN_RESET if is_limit else None)
    assert outcome.session_id == SESSION


def test_an_error_that_was_reported_before_is_not_repeated_as_a_message(talk: NewReading) -> None:
    running = talk()
    running.open()
    running.say("API Error: 529 Overloaded")

    facts = running.refuse(message="Internal error: API Error: 529 Overloaded")

    assert facts == []


def test_an_end_without_an_answer_is_a_crash_with_its_last_words(talk: NewReading, now: datetime) -> None:
    running = talk()
    running.open()
    running.reading.feed(Stream.STDERR, b"starting\nTypeError: x is not a function\n\n")

    outcome = running.reading.judge(Exit(code=1, signal=None), Ending.EXITED, now)

    words = "some-agent ended with exit code 1, without a result: TypeError: x is not a function"
    assert (outcome.reason, outcome.message, outcome.exit_code) == (Reason.CRASHED, words, 1)
    assert outcome.session_id == SESSION


def test_a_missing_interpreter_counts_as_not_installed(talk: NewReading, now: datetime) -> None:
    assert talk().reason(now, Exit(code=127, signal=None)) is Reason.NOT_INSTALLED


# Whatever arrives.

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan", "usage_update"]
FIELDS = ("content", "messageId", "toolCallId", "title", "kind", "status", "rawInput", "entries", "cost")
UPDATES = st.fixed_dictionaries(
    {"sessionUpdate": st.sampled_from(KINDS) | ODD},
    optional=dict.fromkeys(FIELDS, ODD),
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"method": st.just("session/update"), "params": ODD | st.fixed_dictionaries({"update": UPDATES})}
    ),
    st.fixed_dictionaries({"id": ODD, "method": st.just("session/request_permission") | st.text(), "params": ODD}),
    st.fixed_dictionaries({"id": st.integers(1, 5) | ODD, "result": ODD}),
    st.fixed_dictionaries({"id": st.integers(1, 5) | ODD, "error": ODD}),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=6), is_open=st.booleans())
def test_no_type_in_any_field_makes_it_stumble(
    messages: list[dict[str, object]], is_open: bool, talk: NewReading, now: datetime
) -> None:
    running = talk(session=None if is_open else "ses_0", model="large", effort="high")
    facts = running.open(MODELS, EFFORTS) if is_open else []

    facts += running.send(*messages)
    outcome = running.reading.judge(EXIT_0, Ending.EXITED, now)

    assert running.reading.parse_errors == 0
    json.dumps([fact.data for fact in facts], allow_nan=False).encode().decode()
    assert outcome.message.isprintable()
