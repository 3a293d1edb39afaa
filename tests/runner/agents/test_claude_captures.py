"""Every captured run of the real program is judged as a person would judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.runner.agents.captures import Bad

from delegate.model import Outcome, Stream, Usage
from delegate.runner.agents import AgentTurn, Ending
from delegate.runner.agents.claude_reading import ClaudeReading
from delegate.runner.agents.claude_verdict import UNKNOWN_RESET
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason


@dataclass(frozen=True)
class Good:
    session: str
    input_tokens: int
    output_tokens: int
    cost: float
    turns: int


GOOD = {
    "background_bash": Good("5e5f3def-b7e4-4e7b-accf-6fbacaba2df8", 300, 60, 0.0018, 3),
    "connection_dropped_mid_stream": Good("0cb436ce-15ce-463d-ac44-6bd3f7120ce5", 100, 20, 0.0006, 1),
    "connection_dropped_then_ok": Good("fe14c8d1-47f5-4f0c-b805-7d10fa666d6f", 100, 20, 0.0006, 1),
    "edit_and_bash": Good("ca707ef4-4daa-4cd0-a783-06b41aa065ce", 500, 100, 0.0030, 5),
    "effort_high_thinking": Good("c5560552-b9cf-4306-8729-425263a214bb", 100, 20, 0.0010, 1),
    "effort_invalid": Good("3fe8d340-4167-40a4-a82b-f6ff2b339d7c", 100, 20, 0.0006, 1),
    "effort_low": Good("20914c1d-9025-451c-86ce-eb5c783eab7a", 100, 20, 0.0010, 1),
    "effort_max_sonnet46": Good("73bbf96f-513c-4786-b8bd-28b72537be72", 100, 20, 0.0006, 1),
    "fallback_model": Good("c399f2e7-1c5d-46e7-8c80-64de38f0553a", 200, 40, 0.0004, 2),
    "hooks": Good("14be6998-6868-4e63-91f6-79e26bf1dc96", 300, 60, 0.0018, 3),
    "json_schema": Good("d19b89d9-4943-479c-9b9f-c05924d4ffe1", 100, 20, 0.0006, 2),
    "json_schema_text_only": Good("9856f5df-b659-405c-b44a-9d482864ce55", 200, 40, 0.0012, 3),
    "max_thinking_tokens": Good("52fccc87-8691-49a6-98c0-5765e3efdde2", 100, 20, 0.0006, 1),
    "mcp_config": Good("8c0582a0-81e9-4a84-b66b-24f6657a5bb4", 200, 40, 0.0012, 2),
    "mcp_config_failed": Good("9dd4d024-cc4e-41b7-b319-0852ff572dfe", 100, 20, 0.0006, 1),
    "model_alias": Good("c4f4efae-57ce-4068-a46b-2ccba5aab3f6", 100, 20, 0.0006, 1),
    "output_json": Good("0975f118-65b5-467a-9cdf-542229476a9b", 200, 40, 0.0012, 2),
    "overloaded_529_then_ok": Good("d4a58933-a7c2-4b01-86e2-ed0bc1fad873", 200, 40, 0.0012, 2),
    "partial_messages": Good("f4d6a1b8-0a71-4903-94eb-082bdbd2ad30", 200, 40, 0.0012, 2),
    "permission_accept_edits": Good("0da433b1-d2c7-488e-a4b8-4d62ef7931ac", 300, 60, 0.0018, 3),
    "permission_allowed_tools": Good("80d015a2-34f8-43b9-8204-970e02ffd0ad", 400, 80, 0.0024, 4),
    "permission_denied_default_mode": Good("659fab3b-5c2a-429c-80e1-99f9e5b3a912", 400, 80, 0.0024, 4),
    "plan_mode": Good("14f9ad8a-74b9-4f8a-9b75-0d1ab7c25ba4", 300, 60, 0.0018, 3),
    "rate_limit_429_then_ok": Good("1dcef940-e55e-4fa0-8f41-c7b28e1f0a88", 100, 20, 0.0006, 1),
    "resume_after_sigterm_second": Good("33333333-2222-4333-8444-555555555555", 100, 20, 0.0006, 1),
    "resume_from_worktree_of_same_repo": Good("22222222-2222-4333-8444-555555555555", 100, 20, 0.0006, 1),
    "session_continue": Good("45061e32-52f5-44f7-9c95-f95f8ae99cc1", 100, 20, 0.0006, 1),
    "session_first": Good("22222222-2222-4333-8444-555555555555", 200, 40, 0.0012, 2),
    "session_forked": Good("45061e32-52f5-44f7-9c95-f95f8ae99cc1", 100, 20, 0.0006, 1),
    "session_resumed": Good("22222222-2222-4333-8444-555555555555", 100, 20, 0.0006, 1),
    "stream_input_background_bash": Good("90ae3043-2dbf-4cba-b6d0-c1572b1a4a94", 300, 60, 0.0018, 3),
    "stream_input_can_use_tool": Good("8e2d8fcd-c0a9-4be7-8ebf-8b29c5c93409", 300, 60, 0.0018, 3),
    "stream_input_interrupt": Good("5526bb9b-ba07-4b66-9141-80d4dca46064", 200, 40, 0.0012, 4),
    "stream_input_message_mid_turn": Good("579e6778-d233-4e32-9211-c5bb34dedae8", 200, 40, 0.0012, 2),
    "stream_input_message_next_turn": Good("6f7ff3b9-94a0-4dab-a155-39eaf5120ce6", 200, 40, 0.0012, 2),
    "stream_input_two_turns": Good("94cccd5c-b41d-4675-ba64-391fe82040c7", 200, 40, 0.0012, 2),
    "subagent": Good("d4f60706-8a8e-4fd6-a9d9-70f5795d982f", 400, 80, 0.0024, 2),
    "todo_tasks": Good("f1ea567d-8b51-4569-ba29-298473b52dd5", 700, 140, 0.0042, 7),
    "todo_write": Good("d8ff44da-0301-455c-be66-c8ded969590a", 300, 60, 0.0018, 3),
    "tool_error": Good("7548dfaf-3621-47d0-abed-50ecc11014f7", 300, 60, 0.0018, 3),
    "usage_limit_warning_subscription": Good("39817d11-243c-4e2a-ac48-c8aeb5fb64c4", 100, 20, 0.0006, 1),
    "worktree_flag": Good("707c05fe-bbb3-4f3c-908e-71164bdf804e", 300, 60, 0.0018, 3),
}

NO_SESSION = "No conversation found with session ID: 99999999-2222-4333-8444-555555555555"
BAD = {
    "auth_failure_401": Bad(1, Reason.NOT_LOGGED_IN, "claude is not logged in: Invalid API key · Fix external API key"),
    "bad_flag": Bad(
        1,
        Reason.CRASHED,
        "claude ended with exit code 1, without a result: error: unknown option '--no-such-flag'",
        "error: unknown option '--no-such-flag'\n",
    ),
    "connection_refused": Bad(
        1,
        Reason.UNREACHABLE,
        "the model's service could not be reached: API Error: Unable to connect to API (ConnectionRefused)",
    ),
    "credit_balance_too_low": Bad(
        1, Reason.AGENT_ERROR, "the account that claude uses has no credit left: Credit balance is too low"
    ),
    "max_budget_usd": Bad(1, Reason.BUDGET, "claude reached its budget limit: Reached maximum budget ($0.1)"),
    "max_tokens": Bad(
        1,
        Reason.AGENT_ERROR,
        "claude ended with an error: API Error: Claude's response exceeded the 32000 output token maximum. To configu…",
    ),
    "max_turns": Bad(1, Reason.MAX_TURNS, "claude reached its turn limit: Reached maximum number of turns (2)"),
    "not_logged_in": Bad(1, Reason.NOT_LOGGED_IN, "claude is not logged in: Not logged in · Please run /login"),
    "overloaded_529_exhausted": Bad(
        1,
        Reason.OVERLOADED,
        "the model's service failed or is overloaded: API Error: 529 Overloaded. This is a server-side issue, usually "
        "temporary — try …",
    ),
    "prompt_too_long": Bad(
        1,
        Reason.CONTEXT_TOO_LONG,
        "the conversation is too long for the model: Prompt is too long · the request is ~208310 tokens (limit 200000) "
        "but this conve…",
    ),
    "refusal": Bad(
        1,
        Reason.REFUSED,
        "the model declined the request: API Error: Claude Code is unable to respond to this request, which appears to "
        "vi…",
    ),
    "resume_after_sigterm_first": Bad(143, Reason.CRASHED, "claude ended with exit code 143, without a result"),
    "resume_from_other_cwd": Bad(
        1,
        Reason.AGENT_ERROR,
        "claude ended with an error: No conversation found with session ID: 22222222-2222-4333-8444-555555555555",
    ),
    "resume_unknown_session": Bad(
        1, Reason.AGENT_ERROR, f"claude ended with an error: {NO_SESSION}", f"{NO_SESSION}\n"
    ),
    "root_without_is_sandbox": Bad(
        1,
        Reason.CRASHED,
        "claude ended with exit code 1, without a result: --dangerously-skip-permissions cannot be used with root/sudo "
        "privileges for secu…",
        "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n",
    ),
    "session_id_in_use": Bad(
        1,
        Reason.CRASHED,
        "claude ended with exit code 1, without a result: Error: Session ID 22222222-2222-4333-8444-555555555555 is "
        "already in use.",
        "Error: Session ID 22222222-2222-4333-8444-555555555555 is already in use.\n",
    ),
    "sigint_during_bash": Bad(1, Reason.AGENT_ERROR, "claude was interrupted before it finished"),
    "sigint_during_stream": Bad(0, Reason.AGENT_ERROR, "claude was interrupted before it finished"),
    "sigterm_during_bash": Bad(143, Reason.CRASHED, "claude ended with exit code 143, without a result"),
    "sigterm_during_stream": Bad(143, Reason.CRASHED, "claude ended with exit code 143, without a result"),
    "stream_json_without_verbose": Bad(
        1,
        Reason.CRASHED,
        "claude ended with exit code 1, without a result: Error: When using --print, --output-format=stream-json "
        "requires --verbose",
        "Error: When using --print, --output-format=stream-json requires --verbose\n",
    ),
    "unknown_model": Bad(
        1,
        Reason.UNKNOWN_MODEL,
        "claude does not know the model or may not use it: There's an issue with the selected model (no-such-model). "
        "It may not exist or yo…",
    ),
}
PARKED = {
    "rate_limit_429_exhausted": Bad(
        1,
        Reason.RATE_LIMITED,
        "the model's service limits the rate of requests: API Error: Request rejected (429) · This request would "
        "exceed your rate limit",
    ),
    "usage_limit_subscription": Bad(
        1,
        Reason.USAGE_LIMIT,
        "the subscription's usage limit is reached: You've hit your session limit · resets 8:49am (UTC)",
    ),
}


@pytest.fixture
def judged(new_turn: Callable[..., AgentTurn], captures: Path, now: datetime) -> Callable[..., Outcome]:
    def judge(name: str, exit_code: int = 0, stderr: str = "") -> Outcome:
        reading = ClaudeReading(new_turn())
        reading.feed(Stream.STDOUT, (captures / f"{name}.jsonl").read_bytes())
        reading.feed(Stream.STDERR, stderr.encode())
        assert reading.parse_errors == 0
        return reading.judge(Exit(code=exit_code, signal=None), Ending.EXITED, now)

    return judge


def test_every_capture_stands_in_one_table(captures: Path) -> None:
    assert {path.stem for path in captures.glob("*.jsonl")} == {*GOOD, *BAD, *PARKED}
    assert len(GOOD) + len(BAD) + len(PARKED) == len(list(captures.glob("*.jsonl")))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_is_completed_with_its_session_and_all_it_spent(name: str, judged: Callable[..., Outcome]) -> None:
    outcome = judged(name)

    expected = GOOD[name]
    assert (outcome.state, outcome.reason, outcome.exit_code) == (AttemptState.COMPLETED, Reason.DONE, 0)
    assert outcome.message.startswith("claude finished: ")
    assert outcome.session_id == expected.session
    assert outcome.usage == Usage(
        input_tokens=expected.input_tokens,
        output_tokens=expected.output_tokens,
        cost_usd=pytest.approx(expected.cost),  # type: ignore[arg-type]
        turns=expected.turns,
    )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_fails_with_its_reason_and_a_sentence(name: str, judged: Callable[..., Outcome]) -> None:
    expected = BAD[name]

    outcome = judged(name, expected.exit_code, expected.stderr)

    assert (outcome.state, outcome.reason) == (AttemptState.FAILED, expected.reason)
    assert (outcome.message, outcome.exit_code) == (expected.message, expected.exit_code)
    assert outcome.not_before is None


@pytest.mark.parametrize("name", PARKED)
def test_a_limit_parks_the_task(name: str, judged: Callable[..., Outcome]) -> None:
    expected = PARKED[name]

    outcome = judged(name, expected.exit_code)

    assert (outcome.state, outcome.reason) == (AttemptState.RELEASED, expected.reason)
    assert outcome.message == expected.message
    assert outcome.session_id is not None


def test_a_subscription_limit_parks_until_it_resets(judged: Callable[..., Outcome]) -> None:
    outcome = judged("usage_limit_subscription", 1)

    assert outcome.not_before == datetime(2026, 11, 15, 8, 49, 29, tzinfo=UTC)


def test_a_rate_limit_without_a_reset_time_parks_for_a_moment(judged: Callable[..., Outcome], now: datetime) -> None:
    outcome = judged("rate_limit_429_exhausted", 1)

    assert outcome.not_before == now + UNKNOWN_RESET
    assert timedelta(minutes=5) == UNKNOWN_RESET
