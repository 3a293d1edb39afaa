"""Judges how a run of an ACP agent ended, from its last response and its exit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.runner.agents.base import (
    AFTER_RESULT,
    Ending,
    RunVerdict,
    failure_verdict,
    no_result_verdict,
    verdict_if_stopped,
    with_detail,
)
from delegate.runner.agents.claude_verdict import BY_ERROR, UNKNOWN_RESET
from delegate.runner.agents.lines import last_line
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

AUTH_REQUIRED = -32000
GOOD_STOP = "end_turn"
BY_STOP = {"max_turn_requests": Reason.MAX_TURNS, "refusal": Reason.REFUSED}
# The protocol has one code for all model errors; the message decides, the most specific pattern first.
REASON_PATTERNS = (
    (Reason.USAGE_LIMIT, r"usage limit|session limit|weekly limit|quota|out of credits?"),
    (Reason.RATE_LIMITED, r"rate.?limit|too many requests|\b429\b"),
    (Reason.CONTEXT_TOO_LONG, r"too long|context (length|window)|maximum context"),
    (Reason.NOT_LOGGED_IN, r"authenticat|not logged in|log ?in\b|api.?key|unauthori[sz]ed|\b401\b"),
    (Reason.UNKNOWN_MODEL, r"^model:|model.*(not (found|exist|supported|available)|no access)|unknown model"),
    (Reason.UNREACHABLE, r"unable to connect|connection (error|refused|reset)|\bECONN[A-Z]+"),
    (Reason.OVERLOADED, r"overloaded|\b(500|502|503|504|529)\b"),
)
SENTENCES = {
    Reason.NOT_LOGGED_IN: "{agent} is not logged in",
    Reason.UNKNOWN_MODEL: "{agent} does not know the model or may not use it",
    Reason.OVERLOADED: "the model's service failed or is overloaded",
    Reason.UNREACHABLE: "the model's service could not be reached",
    Reason.CONTEXT_TOO_LONG: "the conversation is too long for the model",
    Reason.MAX_TURNS: "{agent} reached its turn limit",
    Reason.REFUSED: "the model declined the request",
    Reason.RATE_LIMITED: "the model's service limits the rate of requests",
    Reason.USAGE_LIMIT: "the account's usage limit is reached",
    Reason.AGENT_ERROR: "{agent} ended with an error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error in the agent's response, or one that we found in its responses."""

    message: str
    code: int = 0
    kind: str = ""  # an error name that some agents send
    reason: Reason | None = None  # set when we found the error


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpRun:
    """The facts about a finished run."""

    agent: str
    stop: str | None  # why the last turn ended; None when it did not
    failure: Failure | None
    last_message: str
    stderr: str
    timeout: timedelta


def verdict(run: AcpRun, exit: Exit, ending: Ending, now: datetime) -> RunVerdict:
    is_good = run.failure is None and run.stop == GOOD_STOP
    stopped = verdict_if_stopped(ending, run.timeout, has_good_result=is_good)
    if stopped is not None:
        return stopped
    if run.failure is not None:
        return _failure(run, run.failure, now)
    if run.stop is None:
        return no_result_verdict(run.agent, exit, last_line(run.stderr))
    if run.stop != GOOD_STOP:
        reason = BY_STOP.get(run.stop, Reason.AGENT_ERROR)
        detail = run.last_message if reason is Reason.REFUSED else f"it stopped with {run.stop}"
        return failure_verdict(reason, with_detail(SENTENCES[reason].format(agent=run.agent), detail))
    # The exit adds nothing: the agent exits because its input is closed.
    sentence = f"{run.agent} finished"
    if ending in AFTER_RESULT:
        sentence += ", and was stopped because it did not exit"
    return RunVerdict(state=AttemptState.COMPLETED, reason=Reason.DONE, message=with_detail(sentence, run.last_message))


def reason_of(failure: Failure) -> Reason:
    if failure.reason is not None:
        return failure.reason
    if failure.code == AUTH_REQUIRED:
        return Reason.NOT_LOGGED_IN
    if failure.kind in BY_ERROR:
        return BY_ERROR[failure.kind]
    found = (reason for reason, pattern in REASON_PATTERNS if re.search(pattern, failure.message, re.IGNORECASE))
    return next(found, Reason.AGENT_ERROR)


def _failure(run: AcpRun, failure: Failure, now: datetime) -> RunVerdict:
    reason = reason_of(failure)
    message = with_detail(SENTENCES[reason].format(agent=run.agent), failure.message)
    if reason in {Reason.RATE_LIMITED, Reason.USAGE_LIMIT}:
        # The reset time is unknown; a try before it costs nothing.
        return RunVerdict(state=AttemptState.RELEASED, reason=reason, message=message, not_before=now + UNKNOWN_RESET)
    return failure_verdict(reason, message)
