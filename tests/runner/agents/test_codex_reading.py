from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runner.agents.codex_turns import SESSION, codex_turn

from delegate.model import EventKind, Stream, Usage
from delegate.runner.agents import Ending, Fact
from delegate.runner.agents.claude_verdict import UNKNOWN_RESET
from delegate.runner.agents.codex_reading import CodexReading
from delegate.runner.agents.codex_verdict import last_error_line, reset_time
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

CAPTURES = Path(__file__).parents[2] / "fixtures" / "codex"
EXIT_0 = Exit(code=0, signal=None)
EXIT_1 = Exit(code=1, signal=None)
KILLED = Exit(code=None, signal=9)
NOW = datetime(2026, 11, 15, 8, 0, tzinfo=UTC)
STARTED = {"type": "thread.started", "thread_id": SESSION}
DONE = {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 20}}


def said(text: str) -> dict[str, object]:
    return {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": text}}


def error(text: str) -> dict[str, object]:
    return {"type": "error", "message": text}


def failed(text: str) -> dict[str, object]:
    return {"type": "turn.failed", "error": {"message": text}}


def item(kind: str, **fields: object) -> dict[str, object]:
    return {"id": "item_1", "type": kind, **fields}


def feed(reading: CodexReading, *events: object) -> list[Fact]:
    return reading.feed(Stream.STDOUT, b"".join(json.dumps(event).encode() + b"\n" for event in events))


def feed_capture(name: str) -> list[Fact]:
    return CodexReading(codex_turn()).feed(Stream.STDOUT, (CAPTURES / f"{name}.jsonl").read_bytes())


def data_of(facts: list[Fact], kind: EventKind) -> list[dict[str, object]]:
    return [fact.data for fact in facts if fact.kind is kind]


# What the output tells.


def test_a_run_becomes_a_timeline() -> None:
    facts = feed_capture("edit_and_shell")

    assert " ".join(fact.kind for fact in facts) == "session message tool tool tool message usage"
    assert facts[0].data == {"sessionId": "01a1ddfa-cfeb-70c0-99a2-3f0dea204086", "model": ""}
    assert facts[1].data == {"text": "I will patch the file."}
    assert facts[2].data == {
        "name": "edit",
        "summary": "/scratch/x/repo/calc.py",
        "id": "item_2",
        "verb": "edit",
        "path": "/scratch/x/repo/calc.py",
    }
    assert facts[3].data["path"] == "/scratch/x/repo/hello.txt"
    assert facts[4].data["summary"] == 'python3 -c "import calc; print(calc.add(2,3))" && git status --short'
    assert facts[-1].data == {
        "inputTokens": 300,
        "outputTokens": 60,
        "cacheReadTokens": 0,
        "cacheWriteTokens": 0,
        "costUsd": 0.0,
        "turns": 1,
    }


def test_a_tool_of_a_server_has_both_names() -> None:
    (tool,) = data_of(feed_capture("mcp_tool_call"), EventKind.TOOL)

    assert tool["name"] == "demo.report"


@pytest.mark.parametrize(
    ("command", "summary"),
    [
        ("/bin/bash -lc 'echo bad >&2; exit 3'", "echo bad >&2; exit 3"),
        ("bash -c ls", "ls"),
        ('/bin/zsh -lc "it\'s"', "it's"),
        ("/bin/bash -lc 'not closed", "'not closed"),
        ("make test", "make test"),
    ],
)
def test_a_command_is_shown_as_the_model_wrote_it(command: str, summary: str) -> None:
    (tool,) = feed(
        CodexReading(codex_turn()), {"type": "item.started", "item": item("command_execution", command=command)}
    )

    assert (tool.data["name"], tool.data["summary"]) == ("shell", summary)


def test_a_call_whose_start_was_not_reported_is_reported_at_its_end() -> None:
    searched = item("web_search", query="anyio subreaper")
    reading = CodexReading(codex_turn())

    (tool,) = feed(reading, {"type": "item.completed", "item": searched})

    assert (tool.data["name"], tool.data["summary"]) == ("web_search", "anyio subreaper")


def test_the_to_do_list_is_reported_when_it_changes() -> None:
    reading = CodexReading(codex_turn())
    first = item("todo_list", items=[{"text": "Write the fix", "completed": False}])
    then = item("todo_list", items=[{"text": "Write the fix", "completed": True}])

    facts = feed(
        reading,
        {"type": "item.started", "item": first},
        {"type": "item.updated", "item": first},
        {"type": "item.updated", "item": then},
        {"type": "item.completed", "item": then},
    )

    states = [fact.data["items"] for fact in facts]
    assert states == [
        [{"title": "Write the fix", "state": "pending"}],
        [{"title": "Write the fix", "state": "completed"}],
    ]


def test_the_summary_is_the_last_message_whole() -> None:
    reading = CodexReading(codex_turn())

    feed(reading, STARTED, said("I begin."), said("Line one.\nLine two.\n"), DONE)

    assert reading.summary == "Line one.\nLine two."


@pytest.mark.parametrize(
    ("capture", "warnings"),
    [
        (
            "failed_rate_limit_then_ok",
            [
                "the model's service failed (rate limit exceeded: Rate limit reached. Please try again in 1.5s.); "
                "retry 1 of 5"
            ],
        ),
        (
            "unknown_model_metadata",
            [
                "Model metadata for `some-unknown-model` not found. Defaulting to fallback metadata; this can degrade "
                "performance and cause issues."
            ],
        ),
        ("failed_context_length", []),
    ],
)
def test_troubles_on_the_way_are_warnings_and_the_last_one_is_the_outcome(capture: str, warnings: list[str]) -> None:
    assert [warning["text"] for warning in data_of(feed_capture(capture), EventKind.WARNING)] == warnings


def test_a_limit_of_turns_is_said_not_to_hold() -> None:
    facts = feed(CodexReading(codex_turn(max_turns=5)), STARTED)

    assert data_of(facts, EventKind.WARNING) == [
        {"text": "codex does not support turn limits; the task's limit is not enforced"}
    ]


def test_a_limit_of_money_is_said_not_to_hold() -> None:
    facts = feed(CodexReading(codex_turn(budget_usd=5.0)), STARTED)

    assert data_of(facts, EventKind.WARNING) == [
        {"text": "codex does not report costs; the task's budget is not enforced"}
    ]


# What it costs.


def test_only_this_turns_share_of_the_threads_tokens_is_reported() -> None:
    before = Usage(input_tokens=150, output_tokens=40, cache_read_tokens=50, turns=1)
    reading = CodexReading(codex_turn(session=SESSION, spent=before))
    whole = {"input_tokens": 500, "cached_input_tokens": 150, "cache_write_input_tokens": 50, "output_tokens": 60}

    feed(reading, STARTED, {"type": "turn.completed", "usage": whole})

    assert reading.usage == Usage(
        input_tokens=150, output_tokens=20, cache_read_tokens=100, cache_write_tokens=50, turns=1
    )


def test_a_new_thread_starts_counting_at_nothing() -> None:
    before = Usage(input_tokens=1_000, output_tokens=1_000)
    other = {"type": "thread.started", "thread_id": "11111111-2222-4333-8444-555555555555"}
    fresh, replaced = CodexReading(codex_turn(spent=before)), CodexReading(codex_turn(session=SESSION, spent=before))

    feed(fresh, STARTED, DONE)
    feed(replaced, other, DONE)

    assert fresh.usage == replaced.usage == Usage(input_tokens=100, output_tokens=20, turns=1)


def test_a_count_that_is_smaller_than_before_costs_nothing() -> None:
    reading = CodexReading(codex_turn(session=SESSION, spent=Usage(input_tokens=1_000, output_tokens=1_000)))

    feed(reading, STARTED, DONE)

    assert reading.usage == Usage(turns=1)


# How it ended.


def test_the_result_is_seen_when_the_turn_has_ended() -> None:
    reading = CodexReading(codex_turn())

    feed(reading, STARTED, {"type": "turn.started"}, said("Done."))
    before = reading.result_seen
    feed(reading, DONE)

    assert (before, reading.result_seen) == (False, True)


@pytest.mark.parametrize(
    ("exit", "ending", "reason", "message"),
    [
        (EXIT_0, Ending.EXITED, Reason.DONE, "codex finished: Done."),
        (EXIT_1, Ending.EXITED, Reason.CRASHED, "codex reported success but then ended with exit code 1"),
        (KILLED, Ending.EXITED, Reason.CRASHED, "codex reported success but then was killed by SIGKILL"),
        (
            KILLED,
            Ending.LINGERED,
            Reason.DONE,
            "codex finished, and was stopped because it did not exit: Done.",
        ),
        (
            KILLED,
            Ending.STALLED,
            Reason.DONE,
            "codex finished, and was stopped because it did not exit: Done.",
        ),
        (
            KILLED,
            Ending.TIMEOUT,
            Reason.DONE,
            "codex finished, and was stopped because it did not exit: Done.",
        ),
        (KILLED, Ending.CANCELLED, Reason.CANCELLED, "it was cancelled"),
    ],
)
def test_a_completed_turn_counts_with_the_way_its_process_ended(
    exit: Exit, ending: Ending, reason: Reason, message: str
) -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED, said("Done."), DONE)

    outcome = reading.judge(exit, ending, NOW)

    assert (outcome.reason, outcome.message) == (reason, message)


def test_exit_code_0_without_a_completed_turn_is_a_failure() -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED, {"type": "turn.started"}, said("Half a"))

    outcome = reading.judge(EXIT_0, Ending.EXITED, NOW)

    assert (outcome.state, outcome.reason) == (AttemptState.FAILED, Reason.CRASHED)
    assert outcome.message == "codex ended with exit code 0, without a result"


def test_a_bad_request_is_shown_whole() -> None:
    reading = CodexReading(codex_turn())
    why = "Unsupported value: 'xhigh' is not supported with this model. " + "Supported values are: low, medium. " * 9
    body = json.dumps({"error": {"message": why.strip(), "code": "unsupported_value"}})

    feed(reading, STARTED, {"type": "turn.failed", "error": {"message": body}})

    outcome = reading.judge(EXIT_1, Ending.EXITED, NOW)
    assert outcome.message == f"codex ended with an error: {why.strip()}"


@pytest.mark.parametrize(
    "error", ["error sending request for url (http://x.test/)", "Connection reset by peer (os error 104)", "ECONNRESET"]
)
def test_a_broken_connection_is_not_an_overload(error: str) -> None:
    reading = CodexReading(codex_turn())
    message = f"stream disconnected before completion: {error}"

    feed(reading, STARTED, {"type": "turn.failed", "error": {"message": message}})

    assert reading.judge(EXIT_1, Ending.EXITED, NOW).reason is Reason.UNREACHABLE


def test_a_failed_turn_is_a_failure_whatever_the_exit_code() -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED, failed("unexpected status 503 Service Unavailable: Overloaded"))

    assert reading.judge(EXIT_0, Ending.EXITED, NOW).reason is Reason.OVERLOADED


def test_an_error_that_nothing_follows_is_the_reason() -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED, error("You’ve hit your usage limit. Try again later."))

    assert reading.judge(EXIT_1, Ending.EXITED, NOW).reason is Reason.USAGE_LIMIT


def test_an_error_that_the_turn_outlived_is_a_warning_and_no_failure() -> None:
    reading = CodexReading(codex_turn())

    facts = feed(reading, STARTED, error("the weather is bad"), said("Done."), DONE)

    assert data_of(facts, EventKind.WARNING) == [{"text": "codex reported an error: the weather is bad"}]
    assert reading.judge(EXIT_0, Ending.EXITED, NOW).reason is Reason.DONE


def test_a_program_that_a_shell_cannot_find_is_not_installed() -> None:
    reading = CodexReading(codex_turn())
    reading.feed(Stream.STDERR, b"/usr/bin/env: 'node': No such file or directory\n")

    outcome = reading.judge(Exit(code=127, signal=None), Ending.EXITED, NOW)

    assert outcome.reason is Reason.NOT_INSTALLED
    assert "'node': No such file" in outcome.message


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "Error loading config.toml:\n/h/config.toml:1:10: unclosed array\n  |\n1 | model = [\n",
            "Error loading config.toml: /h/config.toml:1:10: unclosed array",
        ),
        (
            "WARNING: proceeding\nError: it broke\n\nStack backtrace:\n   0: <unknown>\n   1: <unknown>\n",
            "Error: it broke",
        ),
        ("Reading prompt from stdin...\nNo prompt provided via stdin.\n", "No prompt provided via stdin."),
        ("2026-11-15T06:52:46.534939Z ERROR codex_core::tools::router: error=patch rejected\n", ""),
        ("", ""),
    ],
)
def test_the_line_that_tells_most_is_found_on_stderr(stderr: str, words: str) -> None:
    assert last_error_line(stderr) == words


# Sessions.


def test_a_session_that_is_not_there_is_reported_and_not_kept() -> None:
    reading = CodexReading(codex_turn(session=SESSION))

    reading.feed(Stream.STDERR, b"Error: thread/resume: thread/resume failed: no rollout found for thread id x\n")

    assert reading.session_missing
    assert reading.session_id is None
    assert not reading.takes_more_turns


def test_a_resumed_run_that_ends_early_keeps_its_session() -> None:
    reading = CodexReading(codex_turn(session=SESSION))

    outcome = reading.judge(KILLED, Ending.EXITED, NOW)

    assert (outcome.session_id, reading.session_missing, reading.takes_more_turns) == (SESSION, False, True)


def test_it_takes_no_message_while_it_works_and_owes_no_reply() -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED)

    assert reading.message("mind the gap") is None
    assert reading.replies() == b""
    assert reading.takes_more_turns


@pytest.mark.parametrize("thread", ["--last", "../x", "", "x" * 300])
def test_a_thread_id_that_is_none_is_not_kept(thread: str) -> None:
    reading = CodexReading(codex_turn())

    feed(reading, {"type": "thread.started", "thread_id": thread})

    assert reading.session_id is None


# When a limit is over.


@pytest.mark.parametrize(
    ("zone", "text", "expected"),
    [
        ("UTC", "or try again at 8:53 AM.", datetime(2026, 11, 15, 8, 54, tzinfo=UTC)),
        ("UTC", "Try again at 12:05 PM.", datetime(2026, 11, 15, 12, 6, tzinfo=UTC)),
        ("America/New_York", "try again at 7:43 AM.", datetime(2026, 11, 15, 12, 44, tzinfo=UTC)),
        ("America/New_York", "try again at Nov 18th, 2026 6:43 AM.", datetime(2026, 11, 18, 11, 44, tzinfo=UTC)),
        ("UTC", "try again at Dec 1st, 2026 12:00 AM.", datetime(2026, 12, 1, 0, 1, tzinfo=UTC)),
        ("UTC", "try again at Nov 3rd, 2026 6:43 AM.", None),
        ("UTC", "try again at Feb 30th, 2027 6:43 AM.", None),
        ("UTC", "try again at Nov 18th, 9999 6:43 AM.", None),
        ("UTC", "try again at 7:10 AM.", None),
        ("UTC", "try again at 9:99 PM.", None),
        ("UTC", "try again later.", None),
    ],
)
def test_a_reset_time_is_read_by_the_machines_clock(
    zone: str, text: str, expected: datetime | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        found = reset_time(f"You’ve hit your usage limit. {text}", NOW)
    time.tzset()

    assert found == expected


def test_a_nonsense_reset_time_parks_for_a_moment() -> None:
    reading = CodexReading(codex_turn())
    feed(reading, STARTED, failed("You’ve hit your usage limit. Try again at Jan 1st, 2999 1:00 AM."))

    assert reading.judge(EXIT_1, Ending.EXITED, NOW).not_before == NOW + UNKNOWN_RESET


# Whatever arrives, in whatever pieces.


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_pieces_that_output_arrives_in_make_no_difference(size: int) -> None:
    data = (CAPTURES / "sandbox_workspace_write.jsonl").read_bytes()
    pieced = CodexReading(codex_turn())

    facts = [fact for i in range(0, len(data), size) for fact in pieced.feed(Stream.STDOUT, data[i : i + size])]

    assert facts == feed_capture("sandbox_workspace_write")


def test_a_completed_turn_without_its_newline_counts() -> None:
    reading = CodexReading(codex_turn())
    reading.feed(Stream.STDOUT, json.dumps(DONE).encode())

    assert reading.judge(EXIT_0, Ending.EXITED, NOW).reason is Reason.DONE


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["completed", SESSION]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ITEM_KINDS = [
    "agent_message",
    "reasoning",
    "command_execution",
    "file_change",
    "mcp_tool_call",
    "web_search",
    "todo_list",
    "error",
]
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(ITEM_KINDS) | ODD},
    optional=dict.fromkeys(("id", "text", "command", "changes", "server", "tool", "query", "items", "message"), ODD),
)
KINDS = ["thread.started", "turn.started", "turn.completed", "turn.failed", "error", "item.started", "item.completed"]
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | ODD},
    optional={"thread_id": ODD, "usage": ODD, "error": ODD, "message": ODD, "item": ODD | ITEMS},
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(EVENTS, max_size=8), st.binary(max_size=200), st.sampled_from([EXIT_0, EXIT_1, KILLED]))
def test_no_output_whatever_breaks_the_reading(events: list[object], noise: bytes, exit: Exit) -> None:
    reading = CodexReading(codex_turn(session=SESSION, spent=Usage(input_tokens=5)))

    facts = [fact for event in events for fact in feed(reading, event)]
    facts += reading.feed(Stream.STDOUT, noise)
    reading.feed(Stream.STDERR, noise)
    outcome = reading.judge(exit, Ending.EXITED, NOW)

    json.dumps([fact.data for fact in facts]).encode()
    reading.summary.encode()
    assert outcome.state in (AttemptState.COMPLETED, AttemptState.FAILED, AttemptState.RELEASED)
    assert (outcome.not_before is not None) == (outcome.state is AttemptState.RELEASED)
    assert outcome.usage.input_tokens >= 0
    assert outcome.not_before is None or outcome.not_before <= NOW + timedelta(days=35)
