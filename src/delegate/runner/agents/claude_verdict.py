"""Judges how a run of Claude Code ended, from its last result event and its exit: success needs both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delegate.runner.agents.base import (
    AFTER_RESULT,
    Ending,
    RunVerdict,
    describe_exit,
    exit_code,
    failure_verdict,
    no_result_verdict,
    verdict_if_stopped,
    with_detail,
)
from delegate.runner.agents.lines import last_line
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

# The service does not report when a rate limit ends. Claude Code has already retried for minutes, and such limits count
# requests per minute.
UNKNOWN_RESET = timedelta(minutes=5)
RESET_MAX = timedelta(days=35)  # the longest limit is a month; a later time is not a reset time

BY_SUBTYPE = {"error_max_turns": Reason.MAX_TURNS, "error_max_budget_usd": Reason.BUDGET}
BY_ERROR = {
    "authentication_failed": Reason.NOT_LOGGED_IN,
    "model_not_found": Reason.UNKNOWN_MODEL,
    "rate_limit": Reason.RATE_LIMITED,
    "server_error": Reason.OVERLOADED,
}
NO_CONNECTION = re.compile(r"unable to connect|\bE[A-Z]*CONN[A-Z]+|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|EPIPE", re.IGNORECASE)
BY_STATUS = {
    401: Reason.NOT_LOGGED_IN,
    403: Reason.NOT_LOGGED_IN,
    404: Reason.UNKNOWN_MODEL,
    413: Reason.CONTEXT_TOO_LONG,
    429: Reason.RATE_LIMITED,
    500: Reason.OVERLOADED,
    502: Reason.OVERLOADED,
    503: Reason.OVERLOADED,
    504: Reason.OVERLOADED,
    529: Reason.OVERLOADED,
}
SENTENCES = {
    Reason.NOT_LOGGED_IN: "claude is not logged in",
    Reason.UNKNOWN_MODEL: "claude does not know the model or may not use it",
    Reason.OVERLOADED: "the model's service failed or is overloaded",
    Reason.UNREACHABLE: "the model's service could not be reached",
    Reason.CONTEXT_TOO_LONG: "the conversation is too long for the model",
    Reason.MAX_TURNS: "claude reached its turn limit",
    Reason.BUDGET: "claude reached its budget limit",
    Reason.REFUSED: "the model declined the request",
    Reason.AGENT_ERROR: "claude ended with an error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeResult:
    """A result event, with the error details that preceded it."""

    subtype: str
    is_error: bool
    text: str
    error: str
    status: object
    stop_reason: str
    terminal_reason: str

    @property
    def is_good(self) -> bool:
        return self.subtype == "success" and not self.is_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A subscription's limit that has been reached."""

    resets_at: float  # seconds since 1970; 0 when the service does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRun:
    """The facts about a finished run."""

    result: ClaudeResult | None
    is_idle: bool  # no message followed that result
    left_running: str  # commands in the background
    limit: Limit | None
    stderr: str
    timeout: timedelta

    @property
    def is_finished(self) -> bool:
        return self.is_idle and self.result is not None and self.result.is_good


def verdict(run: ClaudeRun, exit: Exit, ending: Ending, now: datetime) -> RunVerdict:
    stopped = verdict_if_stopped(ending, run.timeout, has_good_result=run.is_finished)
    if stopped is not None:
        return stopped
    if run.result is None:
        return no_result_verdict("claude", exit, last_line(run.stderr))
    if not run.result.is_good:
        return _failure(run.result, run.limit, now)
    if ending not in AFTER_RESULT and exit_code(exit) != 0:
        return failure_verdict(Reason.CRASHED, f"claude reported success but then {describe_exit(exit)}")
    message = with_detail(_success_sentence(run, ending), run.result.text)
    return RunVerdict(state=AttemptState.COMPLETED, reason=Reason.DONE, message=message)


def _success_sentence(run: ClaudeRun, ending: Ending) -> str:
    if ending not in AFTER_RESULT:
        return "claude finished"
    waits_for = "a background command did not end" if run.left_running else "it did not exit"
    return f"claude finished, and was stopped because {waits_for}"


def _failure(result: ClaudeResult, limit: Limit | None, now: datetime) -> RunVerdict:
    reason = _reason(result)
    if reason is Reason.RATE_LIMITED:
        return _rate_limit_verdict(result, limit, now)
    sentence = SENTENCES[reason]
    if result.error == "billing_error":
        # Not a limit that resets, so the task must not wait; and not the task's own budget.
        sentence = "the account that claude uses has no credit left"
    elif result.terminal_reason.startswith("aborted"):
        return failure_verdict(reason, "claude was interrupted before it finished")
    return failure_verdict(reason, with_detail(sentence, result.text))


def _reason(result: ClaudeResult) -> Reason:
    if result.subtype in BY_SUBTYPE:
        return BY_SUBTYPE[result.subtype]
    if result.stop_reason == "refusal":
        return Reason.REFUSED
    if result.terminal_reason == "prompt_too_long":
        return Reason.CONTEXT_TOO_LONG
    if not isinstance(result.status, int) and NO_CONNECTION.search(result.text):
        return Reason.UNREACHABLE
    if result.error in BY_ERROR:
        return BY_ERROR[result.error]
    status = result.status
    return BY_STATUS.get(status, Reason.AGENT_ERROR) if isinstance(status, int) else Reason.AGENT_ERROR


def _rate_limit_verdict(result: ClaudeResult, limit: Limit | None, now: datetime) -> RunVerdict:
    reason, sentence = Reason.RATE_LIMITED, "the model's service limits the rate of requests"
    not_before = now + UNKNOWN_RESET
    if limit is not None:
        reason, sentence = Reason.USAGE_LIMIT, "the subscription's usage limit is reached"
        # Compared as numbers first: an invalid time may not be a date.
        if now.timestamp() < limit.resets_at <= (now + RESET_MAX).timestamp():
            not_before = datetime.fromtimestamp(limit.resets_at, UTC)
    return RunVerdict(
        state=AttemptState.RELEASED, reason=reason, message=with_detail(sentence, result.text), not_before=not_before
    )
