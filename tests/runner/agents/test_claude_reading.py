from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delegate.model import EventKind, Outcome, Stream, Usage
from delegate.runner.agents import AgentTurn, Ending, Fact
from delegate.runner.agents.claude_reading import ClaudeReading
from delegate.runner.agents.claude_verdict import RESET_MAX, UNKNOWN_RESET
from delegate.runner.agents.timeline_facts import TEXT_MAX
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

EXIT_0 = Exit(code=0, signal=None)
EXIT_1 = Exit(code=1, signal=None)
KILLED = Exit(code=None, signal=9)
FUZZED_LINES = 50_000
GOOD_RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "All done."}

NewReading = Callable[..., ClaudeReading]


@pytest.fixture
def new_reading(new_turn: Callable[..., AgentTurn]) -> NewReading:
    return lambda **fields: ClaudeReading(new_turn(**fields))


def feed(reading: ClaudeReading, *events: object) -> list[Fact]:
    return reading.feed(Stream.STDOUT, b"".join(json.dumps(event).encode() + b"\n" for event in events))


def feed_capture(reading: ClaudeReading, path: Path) -> list[Fact]:
    return reading.feed(Stream.STDOUT, path.read_bytes())


def data_of(facts: list[Fact], kind: EventKind) -> list[dict[str, object]]:
    return [fact.data for fact in facts if fact.kind is kind]


def says(*blocks: dict[str, object], **fields: object) -> dict[str, object]:
    return {"type": "assistant", "message": {"content": list(blocks)}, "parent_tool_use_id": None, **fields}


def limit_result(**limit: object) -> list[dict[str, object]]:
    rejected: dict[str, object] = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", **limit}}
    return [rejected, {**GOOD_RESULT, "is_error": True, "api_error_status": 429}]


# What the output tells.


def test_a_run_becomes_a_timeline(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "edit_and_bash.jsonl")

    assert " ".join(fact.kind for fact in facts) == "session message tool tool tool tool message usage"
    assert facts[0].data == {"sessionId": "ca707ef4-4daa-4cd0-a783-06b41aa065ce", "model": "claude-sonnet-4-5"}
    assert facts[1].data == {"text": "I will write the file."}
    assert facts[2].data == {
        "name": "Write",
        "summary": "/scratch/c/repo/hello.txt",
        "id": "toolu_acad2ff946fb476c97ad8a4a",
        "verb": "edit",
        "path": "/scratch/c/repo/hello.txt",
        "additions": 1,
    }
    assert facts[5].data["summary"] == 'python3 -c "import calc; print(calc.add(2,3))" && git status --short'
    assert facts[-1].data == {
        "inputTokens": 500,
        "outputTokens": 100,
        "cacheReadTokens": 0,
        "cacheWriteTokens": 0,
        "costUsd": 0.003,
        "turns": 5,
    }


def test_a_session_that_continues_is_announced_once(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "background_bash.jsonl")

    assert len(data_of(facts, EventKind.SESSION)) == 1
    assert [usage["turns"] for usage in data_of(facts, EventKind.USAGE)] == [2, 3]


def test_a_sub_agents_tools_are_reported_but_not_its_words(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "subagent.jsonl")

    assert [tool["name"] for tool in data_of(facts, EventKind.TOOL)] == ["Task", "Bash"]
    assert data_of(facts, EventKind.MESSAGE) == [{"text": "All done."}]


def test_an_api_error_is_in_the_outcome_and_not_in_the_agents_messages(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "not_logged_in.jsonl")

    assert data_of(facts, EventKind.MESSAGE) == []


def test_the_to_do_list_is_followed_through_single_changes(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "todo_tasks.jsonl")

    fix, test = "Write the fix", "Test it"
    assert [todo["items"] for todo in data_of(facts, EventKind.TODO)] == [
        [{"title": fix, "state": "pending"}],
        [{"title": fix, "state": "pending"}, {"title": test, "state": "pending"}],
        [{"title": fix, "state": "in_progress"}, {"title": test, "state": "pending"}],
        [{"title": fix, "state": "completed"}, {"title": test, "state": "pending"}],
        [{"title": fix, "state": "completed"}],
    ]


def test_the_to_do_list_is_taken_whole_from_todo_write(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "todo_write.jsonl")

    assert [todo["items"] for todo in data_of(facts, EventKind.TODO)] == [
        [{"title": "Write the fix", "state": "in_progress"}, {"title": "Test it", "state": "pending"}],
        [{"title": "Write the fix", "state": "completed"}, {"title": "Test it", "state": "pending"}],
    ]


@pytest.mark.parametrize(
    ("capture", "warnings"),
    [
        (
            "overloaded_529_exhausted",
            [
                "the model's service answered 529 (overloaded); retry 1 of 2 in 0.5 s",
                "the model's service answered 529 (overloaded); retry 2 of 2 in 1.0 s",
            ],
        ),
        ("connection_dropped_then_ok", ["the model's service could not be reached; retry 1 of 10 in 0.6 s"]),
        ("usage_limit_warning_subscription", ["the subscription's five_hour limit is nearly reached (92%)"]),
        ("usage_limit_subscription", ["the subscription's five_hour limit is reached"]),
        ("permission_denied_default_mode", ["tool calls denied: 2 (Bash, Write)"]),
    ],
)
def test_troubles_on_the_way_are_warnings(
    capture: str, warnings: list[str], new_reading: NewReading, captures: Path
) -> None:
    facts = feed_capture(new_reading(), captures / f"{capture}.jsonl")

    assert [warning["text"] for warning in data_of(facts, EventKind.WARNING)] == warnings


def test_a_change_of_model_is_a_warning(new_reading: NewReading, captures: Path) -> None:
    facts = feed_capture(new_reading(), captures / "fallback_model.jsonl")

    words = "the model claude-sonnet-4-5 was replaced by claude-haiku-4-5: overloaded"
    assert data_of(facts, EventKind.WARNING)[-1] == {"text": words}


def test_long_text_is_cut_and_a_tools_summary_is_one_short_line(new_reading: NewReading) -> None:
    text: dict[str, object] = {"type": "text", "text": "x" * 100_000}
    command = {"command": "a\n\tb\x1b[31m " + "c" * 900}
    tool: dict[str, object] = {"type": "tool_use", "id": "t", "name": "Bash", "input": command}

    message, call = feed(new_reading(), says(text, tool))

    assert len(str(message.data["text"])) == TEXT_MAX
    assert str(call.data["summary"]).startswith("a b\N{REPLACEMENT CHARACTER}[31m ccc")
    assert len(str(call.data["summary"])) == 200


def test_facts_hold_nothing_that_a_database_refuses(new_reading: NewReading) -> None:
    line = b'{"type":"assistant","message":{"content":[{"type":"text","text":"a\\u0000b\\ud800c"}]}}\n'

    (message,) = new_reading().feed(Stream.STDOUT, line)

    assert message.data == {"text": "a\N{REPLACEMENT CHARACTER}b?c"}


@pytest.mark.promise("P22")
def test_events_of_another_session_do_not_count(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    other = {"session_id": "other", "total_cost_usd": 99.0}
    feed(reading, {"type": "system", "subtype": "init", "session_id": "own"})

    facts = feed(reading, {"type": "system", "subtype": "init", **other}, {**GOOD_RESULT, **other})

    assert (facts, reading.result_seen) == ([], False)
    outcome = reading.judge(EXIT_0, Ending.EXITED, now)
    assert (outcome.reason, outcome.session_id, outcome.usage) == (Reason.CRASHED, "own", Usage())


# Whatever arrives, in whatever pieces.


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_pieces_that_output_arrives_in_make_no_difference(
    size: int, new_reading: NewReading, captures: Path
) -> None:
    data = (captures / "partial_messages.jsonl").read_bytes()
    whole, pieced = new_reading(), new_reading()

    facts = [fact for i in range(0, len(data), size) for fact in pieced.feed(Stream.STDOUT, data[i : i + size])]

    assert facts == whole.feed(Stream.STDOUT, data)


def test_a_result_without_its_newline_counts(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    reading.feed(Stream.STDOUT, json.dumps(GOOD_RESULT).encode())

    assert reading.judge(EXIT_0, Ending.EXITED, now).reason is Reason.DONE


def test_half_a_line_at_the_end_is_counted_and_no_result(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    reading.feed(Stream.STDOUT, json.dumps(GOOD_RESULT).encode()[:40])

    outcome = reading.judge(EXIT_0, Ending.EXITED, now)

    assert (outcome.reason, reading.parse_errors) == (Reason.CRASHED, 1)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["success", "completed", "deleted", "rejected", "tool_use", "text", "TaskCreate", "TodoWrite"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVENT_KINDS = [
    ("system", "init"),
    ("system", "api_retry"),
    ("system", "model_fallback"),
    ("system", "task_started"),
    ("system", "task_updated"),
    ("rate_limit_event", None),
    ("assistant", None),
    ("user", None),
    ("result", "success"),
]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use"]) | ODD},
    optional={
        "text": ODD,
        "id": ODD,
        "name": ODD,
        "input": ODD | st.fixed_dictionaries({"todos": ODD, "taskId": ODD}),
        "tool_use_id": ODD,
    },
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "message": ODD | st.fixed_dictionaries({"content": ODD | st.lists(BLOCKS, max_size=3)}),
        "session_id": ODD,
        "model": ODD,
        "is_error": ODD,
        "result": ODD,
        "errors": ODD,
        "usage": ODD,
        "modelUsage": ODD,
        "total_cost_usd": ODD,
        "num_turns": ODD,
        "api_error_status": ODD,
        "stop_reason": ODD,
        "terminal_reason": ODD,
        "rate_limit_info": ODD
        | st.fixed_dictionaries(
            {
                "status": st.sampled_from(["rejected", "allowed_warning"]),
                "resetsAt": ODD,
                "utilization": ODD,
                "rateLimitType": ODD,
            }
        ),
        "tool_use_result": ODD,
        "permission_denials": ODD,
        "error": ODD,
        "attempt": ODD,
        "error_status": ODD,
        "retry_delay_ms": ODD,
        "task_id": ODD,
        "status": ODD,
        "patch": ODD,
        "parent_tool_use_id": ODD,
        "trigger": ODD,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(events=st.lists(st.tuples(st.sampled_from(EVENT_KINDS), FIELDS), max_size=5))
def test_no_type_in_any_field_makes_it_stumble(
    events: list[tuple[tuple[str, str | None], dict[str, object]]], new_reading: NewReading, now: datetime
) -> None:
    reading = new_reading(session="5e5f3def")

    facts = feed(reading, *({**fields, "type": kind, "subtype": subtype} for (kind, subtype), fields in events))
    outcome = reading.judge(EXIT_1, Ending.EXITED, now)

    assert reading.parse_errors == 0
    json.dumps([fact.data for fact in facts], allow_nan=False).encode().decode()
    assert outcome.message.isprintable()


def test_fifty_thousand_spoilt_lines_hide_no_good_one(new_reading: NewReading, now: datetime) -> None:
    source = random.Random(20261115)
    good = json.dumps(says({"type": "text", "text": "ä€😀"})).encode()
    data = b"".join(_spoilt(good, source) + b"\n" + good + b"\n" for _ in range(FUZZED_LINES))
    reading = new_reading()

    facts = [fact for piece in _pieces(data, source) for fact in reading.feed(Stream.STDOUT, piece)]
    feed(reading, GOOD_RESULT)

    assert data_of(facts, EventKind.MESSAGE).count({"text": "ä€😀"}) >= FUZZED_LINES
    assert reading.parse_errors > FUZZED_LINES // 2
    assert reading.judge(EXIT_0, Ending.EXITED, now).state is AttemptState.COMPLETED


def _spoilt(line: bytes, source: random.Random) -> bytes:
    at = source.randrange(1, len(line))
    match source.randrange(6):
        case 0:
            return line[:at]
        case 1:
            return line[:at] + bytes([source.choice([0x00, 0x0D, 0x80, 0xC3, 0xFF])]) + line[at:]
        case 2:
            return line + line
        case 3:
            return b'{"type":' + b"[" * source.randrange(1, 2_000)
        case 4:
            return b'{"a":1,"a":' + b"9" * source.randrange(1, 6_000) + b"}"
        case _:
            return line[:at] + line[at:].swapcase()


def _pieces(data: bytes, source: random.Random) -> list[bytes]:
    cuts = sorted({0, len(data), *(source.randrange(len(data)) for _ in range(1_000))})
    return [data[start:end] for start, end in pairwise(cuts)]


# When it has said its last word.


def test_a_result_is_its_last_word(new_reading: NewReading) -> None:
    reading = new_reading()

    feed(reading, {"type": "system", "subtype": "init"}, says({"type": "text", "text": "x"}))
    assert not reading.result_seen
    feed(reading, GOOD_RESULT)
    assert reading.result_seen


def test_a_message_after_the_result_makes_it_wait_for_another(new_reading: NewReading) -> None:
    reading = new_reading()
    feed(reading, GOOD_RESULT)

    data = reading.message("And the tests?")

    assert data is not None
    assert json.loads(data)["message"]["content"] == [{"type": "text", "text": "And the tests?"}]
    assert data.count(b"\n") == 1
    assert not reading.result_seen
    feed(reading, GOOD_RESULT)
    assert reading.result_seen


def test_a_message_does_not_go_to_a_run_that_has_failed(new_reading: NewReading) -> None:
    reading = new_reading()
    feed(reading, *limit_result())

    assert reading.message("And the tests?") is None
    assert reading.result_seen


def test_its_last_words_are_its_summary_and_its_session_takes_more_turns(
    new_reading: NewReading, captures: Path
) -> None:
    reading = new_reading()
    assert (reading.summary, reading.takes_more_turns) == ("", False)

    feed_capture(reading, captures / "subagent.jsonl")

    assert (reading.summary, reading.takes_more_turns) == ("All done.", True)
    assert reading.replies() == b""


@pytest.mark.parametrize("capture", ["background_bash", "stream_input_background_bash"])
def test_a_command_in_the_background_is_waited_for(capture: str, new_reading: NewReading, captures: Path) -> None:
    reading = new_reading()
    seen = []

    for line in (captures / f"{capture}.jsonl").read_bytes().splitlines(keepends=True):
        reading.feed(Stream.STDOUT, line)
        seen.append(reading.result_seen)

    assert seen.index(True) == len(seen) - 1


def test_a_sub_agent_that_is_stopped_in_the_background_leaves_the_result_as_it_was(new_reading: NewReading) -> None:
    reading = new_reading()
    started = {"type": "system", "subtype": "task_started", "task_id": "a1"}
    words = says({"type": "text", "text": "x"}, parent_tool_use_id="toolu_1", error="server_error")

    feed(reading, started, GOOD_RESULT, words)
    assert not reading.result_seen
    feed(reading, {"type": "system", "subtype": "task_notification", "task_id": "a1", "status": "stopped"})
    assert reading.result_seen


def test_commands_left_in_the_background_are_named_unless_an_agent_works_there_too(new_reading: NewReading) -> None:
    reading = new_reading()
    call: dict[str, object] = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "npm run dev"}}
    server = {"type": "system", "subtype": "task_started", "task_id": "b1", "tool_use_id": "t1"}
    watch = {"type": "system", "subtype": "task_started", "task_id": "b2", "description": "watch the files"}
    agent = {"type": "system", "subtype": "task_started", "task_id": "a1", "task_type": "local_agent"}

    feed(reading, says(call), server)
    assert reading.left_running == ""
    feed(reading, GOOD_RESULT)
    assert reading.left_running == "npm run dev"
    feed(reading, watch)
    assert reading.left_running == "npm run dev and 1 more"
    feed(reading, agent)
    assert reading.left_running == ""
    feed(reading, {"type": "system", "subtype": "task_updated", "task_id": "a1", "patch": {"status": "killed"}})
    assert reading.left_running == "npm run dev and 1 more"
    feed(reading, {"type": "system", "subtype": "task_updated", "task_id": "b1", "patch": {"status": "failed"}})
    assert reading.left_running == ""  # its end begins another turn


def test_a_command_in_the_background_does_not_hold_up_an_error(new_reading: NewReading) -> None:
    reading = new_reading()
    started = {"type": "system", "subtype": "task_started", "task_id": "b1"}

    feed(reading, started, {**GOOD_RESULT, "subtype": "error_max_turns", "is_error": True})

    assert reading.result_seen


# How it ended.


def test_a_result_of_several_megabytes_is_read(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()

    feed(reading, {**GOOD_RESULT, "result": "x" * 3_000_000})

    assert (reading.judge(EXIT_0, Ending.EXITED, now).reason, reading.parse_errors) == (Reason.DONE, 0)


@pytest.mark.parametrize("error", ["ECONNRESET", "ConnectionRefused", "ENOTFOUND"])
def test_a_broken_connection_is_not_an_overload(error: str, new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    text = f"API Error: Unable to connect to API ({error})"

    feed(reading, says(error="server_error"), {**GOOD_RESULT, "is_error": True, "result": text})

    outcome = reading.judge(EXIT_1, Ending.EXITED, now)
    assert (outcome.reason, outcome.message) == (
        Reason.UNREACHABLE,
        f"the model's service could not be reached: {text}",
    )


@pytest.mark.parametrize(
    ("events", "exit", "ending", "state", "reason"),
    [
        ([GOOD_RESULT], EXIT_0, Ending.EXITED, AttemptState.COMPLETED, Reason.DONE),
        ([GOOD_RESULT, GOOD_RESULT], EXIT_0, Ending.EXITED, AttemptState.COMPLETED, Reason.DONE),
        ([GOOD_RESULT], EXIT_1, Ending.EXITED, AttemptState.FAILED, Reason.CRASHED),
        ([GOOD_RESULT], KILLED, Ending.EXITED, AttemptState.FAILED, Reason.CRASHED),
        ([GOOD_RESULT], KILLED, Ending.LINGERED, AttemptState.COMPLETED, Reason.DONE),
        ([GOOD_RESULT], KILLED, Ending.STALLED, AttemptState.COMPLETED, Reason.DONE),
        ([GOOD_RESULT, says()], KILLED, Ending.STALLED, AttemptState.FAILED, Reason.STALLED),
        ([GOOD_RESULT], KILLED, Ending.TIMEOUT, AttemptState.COMPLETED, Reason.DONE),
        ([GOOD_RESULT, says()], KILLED, Ending.TIMEOUT, AttemptState.FAILED, Reason.TIMEOUT),
        ([{**GOOD_RESULT, "is_error": True}], KILLED, Ending.TIMEOUT, AttemptState.FAILED, Reason.TIMEOUT),
        ([GOOD_RESULT], KILLED, Ending.CANCELLED, AttemptState.CANCELLED, Reason.CANCELLED),
        ([{**GOOD_RESULT, "is_error": True}], EXIT_0, Ending.EXITED, AttemptState.FAILED, Reason.AGENT_ERROR),
        ([{"type": "result", "subtype": "success"}], EXIT_0, Ending.EXITED, AttemptState.FAILED, Reason.AGENT_ERROR),
        ([{**GOOD_RESULT, "is_error": True}], KILLED, Ending.LINGERED, AttemptState.FAILED, Reason.AGENT_ERROR),
        ([], EXIT_0, Ending.EXITED, AttemptState.FAILED, Reason.CRASHED),
        ([], EXIT_1, Ending.EXITED, AttemptState.FAILED, Reason.CRASHED),
        ([], KILLED, Ending.EXITED, AttemptState.FAILED, Reason.CRASHED),
        ([], Exit(code=127, signal=None), Ending.EXITED, AttemptState.FAILED, Reason.NOT_INSTALLED),
        ([], KILLED, Ending.STALLED, AttemptState.FAILED, Reason.STALLED),
        ([], KILLED, Ending.NO_START, AttemptState.FAILED, Reason.NO_START),
        ([], KILLED, Ending.TIMEOUT, AttemptState.FAILED, Reason.TIMEOUT),
    ],
)
def test_result_exit_and_ending_are_judged_together(
    events: list[dict[str, object]],
    exit: Exit,
    ending: Ending,
    state: AttemptState,
    reason: Reason,
    new_reading: NewReading,
    now: datetime,
) -> None:
    reading = new_reading()
    feed(reading, *events)

    outcome = reading.judge(exit, ending, now)

    assert (outcome.state, outcome.reason) == (state, reason)
    assert outcome.message
    assert outcome.exit_code == (0 if state is AttemptState.COMPLETED else exit.code or 128 + (exit.signal or -128))


def test_the_last_result_decides(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    feed(reading, {**GOOD_RESULT, "subtype": "error_during_execution", "is_error": True}, GOOD_RESULT)

    assert reading.judge(EXIT_0, Ending.EXITED, now).state is AttemptState.COMPLETED


def test_an_error_of_an_earlier_turn_is_not_held_against_a_later_one(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    overloaded = says(error="server_error")
    feed(reading, overloaded, {**GOOD_RESULT, "is_error": True}, {**GOOD_RESULT, "is_error": True})

    assert reading.judge(EXIT_1, Ending.EXITED, now).reason is Reason.AGENT_ERROR


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.NOT_LOGGED_IN),
        (403, Reason.NOT_LOGGED_IN),
        (404, Reason.UNKNOWN_MODEL),
        (413, Reason.CONTEXT_TOO_LONG),
        (429, Reason.RATE_LIMITED),
        (500, Reason.OVERLOADED),
        (529, Reason.OVERLOADED),
        (400, Reason.AGENT_ERROR),
        (None, Reason.AGENT_ERROR),
        ("529", Reason.AGENT_ERROR),
    ],
)
def test_an_unnamed_error_is_reported_by_its_status(
    status: object, reason: Reason, new_reading: NewReading, now: datetime
) -> None:
    reading = new_reading()
    feed(reading, {**GOOD_RESULT, "is_error": True, "api_error_status": status})

    assert reading.judge(EXIT_1, Ending.EXITED, now).reason is reason


@pytest.mark.parametrize("resets_at", [None, "soon", -1, 0, 1e300, True, {}])
def test_a_limit_with_a_nonsense_reset_parks_for_a_moment(
    resets_at: object, new_reading: NewReading, now: datetime
) -> None:
    reading = new_reading()
    feed(reading, *limit_result(resetsAt=resets_at))

    outcome = reading.judge(EXIT_1, Ending.EXITED, now)

    assert (outcome.reason, outcome.not_before) == (Reason.USAGE_LIMIT, now + UNKNOWN_RESET)


@pytest.mark.parametrize("away", [timedelta(seconds=-1), RESET_MAX + timedelta(seconds=1)])
def test_a_reset_in_the_past_or_too_far_away_is_not_believed(
    away: timedelta, new_reading: NewReading, now: datetime
) -> None:
    reading = new_reading()
    feed(reading, *limit_result(resetsAt=(now + away).timestamp()))

    assert reading.judge(EXIT_1, Ending.EXITED, now).not_before == now + UNKNOWN_RESET


def test_a_program_that_cannot_start_is_quoted_with_its_last_words(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading()
    for piece in (b"x" * 10_000, b"\nenv: 'node': No such", b" file or directory\n\n"):
        reading.feed(Stream.STDERR, piece)

    outcome = reading.judge(Exit(code=127, signal=None), Ending.EXITED, now)

    words = "claude ended with exit code 127, without a result: env: 'node': No such file or directory"
    assert outcome.message == words


def test_a_timeout_names_the_time(new_reading: NewReading, now: datetime) -> None:
    def message(milliseconds: int) -> str:
        return new_reading(timeout_ms=milliseconds).judge(KILLED, Ending.TIMEOUT, now).message

    assert message(1_800_000) == "it was stopped because it reached its time limit of 30 minutes"
    assert message(3_600_000) == "it was stopped because it reached its time limit of 1 hour"
    assert message(1_000) == "it was stopped because it reached its time limit of 1 second"
    assert message(1_500) == "it was stopped because it reached its time limit of 1.5 seconds"


# Sessions.


def resumed_outcome(reading: ClaudeReading, capture: Path, now: datetime) -> Outcome:
    feed_capture(reading, capture)
    return reading.judge(EXIT_1, Ending.EXITED, now)


@pytest.mark.parametrize("capture", ["resume_unknown_session", "resume_from_other_cwd"])
def test_a_session_that_is_not_there_is_recognised(
    capture: str, new_reading: NewReading, captures: Path, now: datetime
) -> None:
    reading = new_reading(session="99999999-2222-4333-8444-555555555555")

    outcome = resumed_outcome(reading, captures / f"{capture}.jsonl", now)

    assert reading.session_missing
    assert outcome.session_id is None


def test_a_session_that_was_resumed_is_not_missing_when_its_run_fails(new_reading: NewReading, captures: Path) -> None:
    reading = new_reading(session="22222222-2222-4333-8444-555555555555")

    feed_capture(reading, captures / "sigint_during_stream.jsonl")

    assert not reading.session_missing


def test_a_run_killed_before_its_session_opened_keeps_the_one_to_resume(new_reading: NewReading, now: datetime) -> None:
    reading = new_reading(session="22222222-2222-4333-8444-555555555555")

    outcome = reading.judge(KILLED, Ending.EXITED, now)

    assert outcome.session_id == "22222222-2222-4333-8444-555555555555"


@pytest.mark.parametrize("session", ["", "--version", "a b", "x" * 200, 7, None])
def test_a_session_id_that_could_be_an_option_is_not_taken(session: object, new_reading: NewReading) -> None:
    reading = new_reading()

    facts = feed(reading, {"type": "system", "subtype": "init", "session_id": session})

    assert (facts, reading.session_id) == ([], None)


# What it cost.


def test_the_cost_of_a_process_runs_on_and_never_falls(new_reading: NewReading) -> None:
    reading = new_reading()

    feed(reading, {**GOOD_RESULT, "total_cost_usd": 0.5, "usage": {"input_tokens": 10}, "num_turns": 2})
    feed(reading, {**GOOD_RESULT, "total_cost_usd": 0.2, "usage": {"input_tokens": 5}, "num_turns": 1})

    assert reading.usage == Usage(input_tokens=15, cost_usd=0.5, turns=3)


def test_tokens_of_sub_agents_and_broken_answers_are_counted(new_reading: NewReading) -> None:
    reading = new_reading()
    paid = {"a": {"inputTokens": 7, "cacheReadInputTokens": 3}, "b": {"outputTokens": 5, "cacheCreationInputTokens": 2}}

    feed(reading, {**GOOD_RESULT, "usage": {"input_tokens": 1}, "modelUsage": paid})

    assert reading.usage == Usage(input_tokens=7, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)


@pytest.mark.parametrize("nonsense", [-5, float("nan"), float("inf"), "12", True, [1], 10**40])
def test_nonsense_numbers_cost_nothing_and_break_nothing(nonsense: object, new_reading: NewReading) -> None:
    reading = new_reading()

    facts = feed(reading, {**GOOD_RESULT, "total_cost_usd": nonsense, "usage": {"input_tokens": nonsense}})

    assert reading.usage.cost_usd == 0
    assert len(data_of(facts, EventKind.USAGE)) == 1
