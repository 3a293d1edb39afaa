"""Every captured run of the real program is judged as a person would judge it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.runner.agents.captures import Bad
from tests.runner.agents.codex_turns import codex_turn

from delegate.model import Outcome, Stream, Usage
from delegate.runner.agents import Ending
from delegate.runner.agents.claude_verdict import UNKNOWN_RESET
from delegate.runner.agents.codex_reading import CodexReading
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

CAPTURES = Path(__file__).parents[2] / "fixtures" / "codex"


@dataclass(frozen=True)
class Good:
    session: str
    tokens: tuple[int, int]
    text: str = "All done."


GOOD = {
    "cd_flag": Good("01a1ddfb-8d1a-7323-8f30-a1e5d44bdb2e", (200, 40)),
    "command_fails": Good("01a1ddfa-d773-7461-8465-a1e449108001", (300, 60)),
    "connection_dropped_mid_stream": Good("01a1ddfb-3a1a-70c1-8107-afa1050acdcb", (100, 20)),
    "connection_dropped_then_ok": Good("01a1ddfb-3578-7063-8efe-267cbacc3640", (100, 20)),
    "edit_and_shell": Good("01a1ddfa-cfeb-70c0-99a2-3f0dea204086", (300, 60)),
    "effort_high": Good("01a1ddfb-7218-7be2-b06b-2a3e4d881dc1", (100, 20), "Thought."),
    "effort_invalid": Good("01a1ddfb-75be-7302-afd3-44b3017bdecc", (100, 20)),
    "failed_rate_limit_then_ok": Good("01a1ddfb-2302-7ac1-b0a7-e66a19121cb0", (100, 20)),
    "mcp_tool_call": Good("01a1de09-0108-7262-b2f9-9a6a480fea88", (200, 40)),
    "output_schema": Good("01a1ddfb-797a-7e32-9849-5107f0a2a4b7", (100, 20), '{"verdict":"pass"}'),
    "overloaded_503_then_ok": Good("01a1ddfa-fa15-7372-8966-e332511156ee", (200, 40)),
    "prompt_on_stdin": Good("01a1ddfb-90ee-77f2-b369-49071d2523d5", (100, 20)),
    "rate_limit_429_then_ok": Good("01a1ddfb-053e-7732-8e69-769a1d3adba7", (100, 20)),
    "resume_after_sigterm_second": Good("01a1de09-12b9-7830-9223-c37b851fbae6", (100, 20), "Going on after the kill."),
    "resume_from_other_cwd": Good("01a1de09-0500-7542-8d98-040d611df614", (500, 100), "Resumed elsewhere."),
    "sandbox_read_only": Good("01a1ddfb-8292-7a63-9183-ebd34caa4f20", (300, 60)),
    "sandbox_workspace_write": Good("01a1ddfc-4d60-7ef2-8737-6a3660b3d545", (400, 80)),
    "sandbox_worktree_commit_add_dir": Good("01a1ddfc-5d2b-7e82-9c10-180e94486204", (300, 60)),
    "sandbox_worktree_commit_plain": Good("01a1ddfc-570f-72a3-848e-e9c83feb147c", (300, 60)),
    "sandbox_worktree_commit_writable_roots": Good("01a1de13-d8c2-7ee3-a949-27b090bb2dc1", (300, 60)),
    "session_first": Good("01a1de09-0500-7542-8d98-040d611df614", (200, 40)),
    "session_resume_last": Good("01a1de09-0f24-7ab2-b684-37836ae6d25e", (100, 20), "I remember."),
    "session_resumed": Good("01a1de09-0500-7542-8d98-040d611df614", (300, 60), "I remember."),
    "two_calls_in_one_answer": Good("01a1de08-fd1f-7952-83a6-20825f4ca123", (200, 40)),
    "unknown_model_metadata": Good("01a1ddfa-d3c7-7ad3-86fa-7172ece6be09", (200, 40)),
    "worktree_flag": Good("01a1de0c-3adc-75b1-ad2c-b898139f08db", (300, 60)),
}
BAD = {
    "at_capacity": Bad(
        1,
        Reason.OVERLOADED,
        "the model's service failed or is overloaded: Selected model is at capacity. Please try a different model.",
    ),
    "auth_failure_401": Bad(
        1,
        Reason.NOT_LOGGED_IN,
        "codex is not logged in: unexpected status 401 Unauthorized: Incorrect API key provided, url: "
        "http://127.0.0.1:42293/v1/responses, request id: req_standin_59a4834a8a9c",
    ),
    "context_length_400": Bad(
        1,
        Reason.CONTEXT_TOO_LONG,
        "the conversation is too long for the model: Your input exceeds the context window of this model.",
    ),
    "declined_content_filter": Bad(
        1,
        Reason.REFUSED,
        "the model declined the request: stream disconnected before completion: Incomplete response returned, reason: "
        "content_filter",
    ),
    "declined_prompt": Bad(
        1,
        Reason.REFUSED,
        "the model declined the request: Invalid prompt: we've limited access to this content for safety reasons.",
    ),
    "failed_context_length": Bad(
        1,
        Reason.CONTEXT_TOO_LONG,
        "the conversation is too long for the model: Codex ran out of room in the model's context window. Start a new "
        "thread or clear earlier history before retrying.",
    ),
    "forbidden_403": Bad(
        1,
        Reason.NOT_LOGGED_IN,
        "codex is not logged in: unexpected status 403 Forbidden: forbidden, url: "
        "http://127.0.0.1:43937/v1/responses, request id: req_standin_80bdd14f08434d3b817c",
    ),
    "full_auto_flag": Bad(
        2,
        Reason.CRASHED,
        "codex ended with exit code 2, without a result: error: unexpected argument '--full-auto' found",
        "error: unexpected argument '--full-auto' found\n\n  tip: to pass '--full-auto' as a value, use '-- "
        "--full-auto'\n\nFor more information, try '--help'.\n",
    ),
    "incomplete_max_output": Bad(
        1, Reason.AGENT_ERROR, "codex ended with an error: Incomplete response returned, reason: max_output_tokens"
    ),
    "insufficient_quota": Bad(
        1,
        Reason.AGENT_ERROR,
        "the account that codex uses has no credit left, or no plan for codex: Quota exceeded. Check your plan and "
        "billing details.",
    ),
    "missing_env_key": Bad(
        1, Reason.NOT_LOGGED_IN, "codex is not logged in: Missing environment variable: `STANDIN_API_KEY`."
    ),
    "model_not_in_plan": Bad(
        1,
        Reason.UNKNOWN_MODEL,
        "codex does not know the model or may not use it: The 'gpt-5.5' model is not supported when using Codex with "
        "a ChatGPT account.",
    ),
    "not_git_repo": Bad(
        1,
        Reason.CRASHED,
        "codex ended with exit code 1, without a result: Not inside a trusted directory and --skip-git-repo-check was "
        "not specified.",
        "Not inside a trusted directory and --skip-git-repo-check was not specified.\n",
    ),
    "overloaded_503_exhausted": Bad(
        1,
        Reason.OVERLOADED,
        "the model's service failed or is overloaded: unexpected status 503 Service Unavailable: Overloaded, url: "
        "http://127.0.0.1:36977/v1/responses, request id: req_standin_afba16aa2c67",
    ),
    "plan_without_codex": Bad(
        1,
        Reason.AGENT_ERROR,
        "the account that codex uses has no credit left, or no plan for codex: To use Codex with your ChatGPT plan, "
        "upgrade to Plus: https://chatgpt.com/explore/plus.",
    ),
    "resume_after_sigterm_first": Bad(128 + 15, Reason.CRASHED, "codex was killed by SIGTERM, without a result"),
    "resume_unknown_session": Bad(
        1,
        Reason.CRASHED,
        "codex ended with exit code 1, without a result: Error: thread/resume: thread/resume failed: no rollout found "
        "for thread id 99999…",
        "Error: thread/resume: thread/resume failed: no rollout found for thread id "
        "99999999-2222-4333-8444-555555555555 (code -32600)\n",
    ),
    "sigint_during_shell": Bad(
        1,
        Reason.CRASHED,
        "codex ended with exit code 1, without a result",
        "2026-11-15T06:54:17.137984Z ERROR codex_core::session: failed to record rollout items\n",
    ),
    "sigint_during_stream": Bad(1, Reason.CRASHED, "codex ended with exit code 1, without a result"),
    "sigterm_during_shell": Bad(128 + 15, Reason.CRASHED, "codex was killed by SIGTERM, without a result"),
    "sigterm_during_stream": Bad(128 + 15, Reason.CRASHED, "codex was killed by SIGTERM, without a result"),
    "unknown_model_404": Bad(
        1,
        Reason.UNKNOWN_MODEL,
        "codex does not know the model or may not use it: The model `no-such-model` does not exist or you do not have "
        "access to it.",
    ),
}
PARKED = {
    "rate_limit_429_exhausted": Bad(
        1,
        Reason.RATE_LIMITED,
        "the model's service limits the rate of requests: exceeded retry limit, last status: 429 Too Many Requests, "
        "request id: req_standin_bf175be12136",
    ),
    "usage_limit_no_reset": Bad(
        1,
        Reason.USAGE_LIMIT,
        "the subscription's usage limit is reached: You’ve hit your usage limit. Upgrade to Pro "
        "(https://chatgpt.com/explore/pro), visit https://chatgpt.com/settings/usage to purchase more credits or try "
        "again later.",
    ),
    "usage_limit_other_day": Bad(
        1,
        Reason.USAGE_LIMIT,
        "the subscription's usage limit is reached: You’ve hit your usage limit. "
        "Visit https://chatgpt.com/settings/usage to purchase more credits or try again at Nov 18th, 2026 6:43 AM.",
    ),
    "usage_limit_reached": Bad(
        1,
        Reason.USAGE_LIMIT,
        "the subscription's usage limit is reached: You’ve hit your usage limit. Upgrade to Pro "
        "(https://chatgpt.com/explore/pro), visit https://chatgpt.com/settings/usage to purchase more credits or try "
        "again at 8:53 AM.",
    ),
}


@pytest.fixture
def now() -> datetime:
    """Shortly before the limits in the captures reset."""
    return datetime(2026, 11, 15, 8, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Codex writes times of day as the machine's clock shows them; that of the captures showed UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def judged(now: datetime) -> Callable[..., Outcome]:
    def judge(name: str, exit_code: int = 0, stderr: str = "") -> Outcome:
        reading = CodexReading(codex_turn())
        reading.feed(Stream.STDOUT, (CAPTURES / f"{name}.jsonl").read_bytes())
        reading.feed(Stream.STDERR, stderr.encode())
        assert reading.parse_errors == 0
        ended = Exit(code=exit_code, signal=None) if exit_code < 128 else Exit(code=None, signal=exit_code - 128)
        return reading.judge(ended, Ending.EXITED, now)

    return judge


def test_every_capture_stands_in_one_table() -> None:
    assert {path.stem for path in CAPTURES.glob("*.jsonl")} == {*GOOD, *BAD, *PARKED}
    assert len(GOOD) + len(BAD) + len(PARKED) == len(list(CAPTURES.glob("*.jsonl")))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_is_completed_with_its_session_and_all_it_spent(name: str, judged: Callable[..., Outcome]) -> None:
    outcome = judged(name)

    expected = GOOD[name]
    read, written = expected.tokens
    assert (outcome.state, outcome.reason, outcome.exit_code) == (AttemptState.COMPLETED, Reason.DONE, 0)
    assert outcome.message == f"codex finished: {expected.text}"
    assert outcome.session_id == expected.session
    assert outcome.usage == Usage(input_tokens=read, output_tokens=written, turns=1)


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


@pytest.mark.parametrize(
    ("name", "reset"),
    [
        ("usage_limit_reached", datetime(2026, 11, 15, 8, 54, tzinfo=UTC)),
        ("usage_limit_other_day", datetime(2026, 11, 18, 6, 44, tzinfo=UTC)),
    ],
)
def test_a_usage_limit_parks_until_the_minute_after_its_reset(
    name: str, reset: datetime, judged: Callable[..., Outcome]
) -> None:
    assert judged(name, 1).not_before == reset


@pytest.mark.parametrize("name", ["usage_limit_no_reset", "rate_limit_429_exhausted"])
def test_a_limit_without_a_reset_time_parks_for_a_moment(
    name: str, judged: Callable[..., Outcome], now: datetime
) -> None:
    assert judged(name, 1).not_before == now + UNKNOWN_RESET
