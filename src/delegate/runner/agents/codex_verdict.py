"""Judges how a run of Codex ended. Its errors have no codes, so patterns in the text decide."""

from __future__ import annotations

import json
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
from delegate.runner.agents.claude_verdict import RESET_MAX, UNKNOWN_RESET
from delegate.runner.agents.lines import as_object, as_text
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

READ_MAX = 4_000  # characters of an error that are examined and shown
NO_CREDIT = "the account that codex uses has no credit left, or no plan for codex"
# The first match decides: a text about a refusal may also mention a broken stream.
REASON_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), reason, sentence)
    for pattern, reason, sentence in (
        (r"usage limit", Reason.USAGE_LIMIT, "the subscription's usage limit is reached"),
        (
            r"quota exceeded|insufficient_quota|out of credits|spend cap|to use codex with your",
            Reason.AGENT_ERROR,
            NO_CREDIT,
        ),
        (r"rate limit|status:? 429\b", Reason.RATE_LIMITED, "the model's service limits the rate of requests"),
        (
            r"status:? 40[13]\b|missing environment variable|token could not be refreshed|sign in again|not logged in",
            Reason.NOT_LOGGED_IN,
            "codex is not logged in",
        ),
        (
            r"model\b.{0,200}(does not exist|is not supported|not found)",
            Reason.UNKNOWN_MODEL,
            "codex does not know the model or may not use it",
        ),
        (
            r"context window|context_length_exceeded|status:? 413\b",
            Reason.CONTEXT_TOO_LONG,
            "the conversation is too long for the model",
        ),
        (
            r"content_filter|safety reasons|invalid prompt|flagged|policy violation|cyber_policy",
            Reason.REFUSED,
            "the model declined the request",
        ),
        (
            r"error sending request|network error|connection (reset|refused)|\bECONN[A-Z]+",
            Reason.UNREACHABLE,
            "the model's service could not be reached",
        ),
        (
            r"status:? 5\d\d\b|at capacity|capacity (is )?unavailable|overloaded|high demand|stream disconnected"
            r"|timed? ?out",
            Reason.OVERLOADED,
            "the model's service failed or is overloaded",
        ),
    )
)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
TRY_AGAIN = re.compile(
    r"try again at (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})[a-z]{2}, (?P<year>\d{4}) )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d) (?P<half>[AP])M",
    re.IGNORECASE,
)
MINUTE = timedelta(minutes=1)
# Lines on stderr that are not errors, or that follow the actual error.
NOISE = re.compile(r"\d{4}-\d\d-\d\dT\S+\s|WARNING|Reading (prompt|additional input)|Stack backtrace|\d+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodexResult:
    """The end of a turn as codex reported it."""

    is_good: bool
    text: str  # the agent's last message, or the error


@dataclass(frozen=True, slots=True, kw_only=True)
class CodexRun:
    """The facts about a finished run."""

    result: CodexResult | None
    stderr: str
    timeout: timedelta


def verdict(run: CodexRun, exit: Exit, ending: Ending, now: datetime) -> RunVerdict:
    result = run.result
    stopped = verdict_if_stopped(ending, run.timeout, has_good_result=result is not None and result.is_good)
    if stopped is not None:
        return stopped
    if result is None:
        return no_result_verdict("codex", exit, last_error_line(run.stderr))
    if not result.is_good:
        return _failure(result.text, now)
    return _success(result.text, exit, ending)


def _success(text: str, exit: Exit, ending: Ending) -> RunVerdict:
    sentence = "codex finished"
    if ending in AFTER_RESULT:
        sentence = "codex finished, and was stopped because it did not exit"
    elif exit_code(exit) != 0:
        return failure_verdict(Reason.CRASHED, f"codex reported success but then {describe_exit(exit)}")
    return RunVerdict(state=AttemptState.COMPLETED, reason=Reason.DONE, message=with_detail(sentence, text))


def _failure(text: str, now: datetime) -> RunVerdict:
    reason, sentence = _classify_error(text[:READ_MAX])
    message = with_detail(sentence, _error_message(text), READ_MAX)
    if reason not in (Reason.USAGE_LIMIT, Reason.RATE_LIMITED):
        return failure_verdict(reason, message)
    not_before = reset_time(text[:READ_MAX], now) or now + UNKNOWN_RESET
    return RunVerdict(state=AttemptState.RELEASED, reason=reason, message=message, not_before=not_before)


def _classify_error(text: str) -> tuple[Reason, str]:
    for pattern, reason, sentence in REASON_PATTERNS:
        if pattern.search(text):
            return reason, sentence
    return Reason.AGENT_ERROR, "codex ended with an error"


def _error_message(text: str) -> str:
    """The readable part of an error: some contain the service's whole response as JSON."""
    if not text.startswith("{"):
        return text
    try:
        answer: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return as_text(as_object(as_object(answer).get("error")).get("message")) or text


def reset_time(text: str, now: datetime) -> datetime | None:
    """When the limit resets. Codex writes it to the minute in the machine's time zone, with the date unless it is
    today's."""
    found = TRY_AGAIN.search(text)
    if found is None:
        return None
    today = now.astimezone().replace(tzinfo=None, second=0, microsecond=0)
    hour = int(found["hour"]) % 12 + (12 if found["half"] in "Pp" else 0)
    try:
        if found["month"]:
            month = MONTHS.index(found["month"].lower()) + 1
            today = today.replace(year=int(found["year"]), month=month, day=int(found["day"]))
        at = today.replace(hour=hour, minute=int(found["minute"])).astimezone(UTC) + MINUTE  # the seconds are cut off
    except (ValueError, OverflowError):
        return None
    return at if now < at <= now + RESET_MAX else None


def last_error_line(stderr: str) -> str:
    """The error on stderr, without the advice and the backtrace after it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not NOISE.match(line.strip())]
    for number, line in enumerate(lines):
        if line.lower().startswith("error"):
            return " ".join(lines[number : number + 2]) if line.endswith(":") else line
    return lines[-1] if lines else ""
