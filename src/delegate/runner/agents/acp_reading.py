"""One run of an agent that speaks the Agent Client Protocol: what it answers, asks and tells, read as it comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from acp.meta import PROTOCOL_VERSION

import delegate.runner.agents.acp_words as words
from delegate.model import EventKind, Outcome, Stream, Usage
from delegate.runner.agents.acp_options import (
    EFFORT,
    HARMLESS,
    MODEL,
    Option,
    allowed_kinds,
    chosen,
    offers_mode,
    option_for,
    options_of,
)
from delegate.runner.agents.acp_updates import Updates
from delegate.runner.agents.acp_verdict import AUTH_REQUIRED, GOOD_STOP, Failure, Run, verdict
from delegate.runner.agents.asking import NAMES as ASKING_NAMES
from delegate.runner.agents.base import Ending, Fact, Turn, outcome_of, request, session_of
from delegate.runner.agents.claude_reading import COST_MAX, SESSION_ID
from delegate.runner.agents.facts import SUMMARY_MAX, spent, warning
from delegate.runner.agents.lines import Streams, as_count, as_object, as_text, one_line
from delegate.runner.process.agent_process import Exit
from delegate.states import Reason

FIRST = 1  # the number of the first request, which opens the run
METHOD_MAX = 100
ID_MAX = 200
WORDS_MAX = 10_000


class Step(Enum):
    """What the agent was asked last; there is one question at a time."""

    INITIALIZE = auto()
    OPEN = auto()
    SETTLE = auto()
    PROMPT = auto()
    OVER = auto()


class AcpReading:
    def __init__(self, turn: Turn, agent: str, cwd: str) -> None:
        assignment = turn.assignment
        self._turn = turn
        self._asking = turn.asking
        self._agent = agent
        self._cwd = cwd
        self._streams = Streams()
        self._replies = bytearray()
        self._step = Step.INITIALIZE
        self._number = FIRST
        resumed = turn.session
        self._resumed = resumed if resumed is not None and SESSION_ID.fullmatch(resumed) else None
        self._session: str | None = None
        self._can_continue = False
        self._options: list[Option] = []
        wishes = {MODEL: assignment.model, EFFORT: assignment.effort}
        self._wishes = [(category, value) for category, value in wishes.items() if value is not None]
        self._wish = ""  # the category of the one that was sent last
        self._allowed = allowed_kinds(assignment.permission_mode)
        self._denied: Counter[str] = Counter()
        self._updates = Updates()
        self._stop: str | None = None
        self._failure: Failure | None = None
        self.session_missing = False
        self.usage = Usage()

    @property
    def parse_errors(self) -> int:
        return self._streams.parse_errors

    @property
    def result_seen(self) -> bool:
        return self._step is Step.OVER

    @property
    def session_id(self) -> str | None:
        return session_of(self._session, self._resumed, is_missing=self.session_missing)

    @property
    def summary(self) -> str:
        return self._updates.said_last

    @property
    def takes_more_turns(self) -> bool:
        return self._session is not None and self._can_continue

    def replies(self) -> bytes:
        replies = bytes(self._replies)
        self._replies.clear()
        return replies

    def message(self, text: str) -> bytes | None:
        """The protocol has no words for it in mid-turn; after a good turn it is the next prompt."""
        if self._session is None or self._step is not Step.OVER or self._stop != GOOD_STOP:
            return None
        self._stop = None
        self._number += 1
        self._step = Step.PROMPT
        return words.prompt(self._number, self._session, text)

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        return [fact for event in self._streams.feed(stream, data) for fact in self._read(event)]

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        for event in self._streams.finish():
            self._read(event)
        run = Run(
            agent=self._agent,
            stop=self._stop,
            failure=self._failure,
            said_last=self.summary,
            stderr=self._streams.stderr,
            timeout=timedelta(milliseconds=self._turn.assignment.timeout_ms),
        )
        return outcome_of(self, verdict(run, exit, ending, now), exit)

    def _read(self, event: dict[str, object]) -> list[Fact]:
        method, params = event.get("method"), as_object(event.get("params"))
        if isinstance(method, str):
            if "id" in event:
                self._reply(event["id"], method, params)
            elif method == "session/update" and self._step in {Step.SETTLE, Step.PROMPT}:
                # Before that an agent tells the session's past again.
                return self._updates.take(as_object(params.get("update")))
            return []
        if self._step is Step.OVER or event.get("id") != self._number:
            return []
        return self._failed(as_object(event["error"])) if "error" in event else self._answered(event)

    def _answered(self, event: dict[str, object]) -> list[Fact]:
        answer = as_object(event.get("result"))
        match self._step:
            case Step.INITIALIZE:
                self._open(answer)
            case Step.OPEN:
                return self._opened(answer)
            case Step.SETTLE:
                self._options = options_of(answer) or self._options
                return self._settle()
            case Step.PROMPT:
                return self._ended(answer)
            case Step.OVER:
                pass
        return []

    def _reply(self, request_id: object, method: str, params: dict[str, object]) -> None:
        if not isinstance(request_id, int | str) or len(str(request_id)[: ID_MAX + 1]) > ID_MAX:
            return
        if method != "session/request_permission":
            self._replies += words.not_offered(request_id, one_line(method, METHOD_MAX))
            return
        call = as_object(params.get("toolCall"))
        # The title is the agent's own choice, and so may name the tool while the call does something else.
        is_named = as_text(call.get("title")) in ASKING_NAMES and as_text(call.get("kind")) in HARMLESS
        is_asking = self._asking is not None and is_named
        option, is_allowed = chosen(params, None if is_asking else self._allowed)
        if not is_allowed:
            self._denied[one_line(as_text(call.get("kind")) or "other", METHOD_MAX)] += 1
        self._replies += words.permission(request_id, option)

    def _ask(self, step: Step, data: bytes) -> None:
        self._step = step
        self._replies += data

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _open(self, answer: dict[str, object]) -> None:
        version = answer.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            self._fail(Failure(words=f"it speaks version {version!r} of the protocol", reason=Reason.AGENT_ERROR))
            return
        offered = as_object(answer.get("agentCapabilities"))
        can_resume = as_object(offered.get("sessionCapabilities")).get("resume") is not None
        self._can_continue = can_resume or offered.get("loadSession") is True
        if as_object(offered.get("mcpCapabilities")).get("http") is not True:
            self._asking = None
        if self._resumed is None:
            self._ask(Step.OPEN, words.new_session(self._next(), self._cwd, self._asking))
        elif can_resume:
            self._ask(Step.OPEN, words.resume_session(self._next(), self._resumed, self._cwd, self._asking))
        elif self._can_continue:
            self._ask(Step.OPEN, words.load_session(self._next(), self._resumed, self._cwd, self._asking))
        else:
            self._lose_session()

    def _opened(self, answer: dict[str, object]) -> list[Fact]:
        session = self._resumed or as_text(answer.get("sessionId"))
        if not SESSION_ID.fullmatch(session):
            return self._fail(Failure(words="it opened no session", reason=Reason.AGENT_ERROR))
        self._session = session
        self._options = options_of(answer)
        mode = self._turn.assignment.permission_mode
        if mode is not None and offers_mode(answer, mode):
            self._wish = "mode"
            self._ask(Step.SETTLE, words.set_mode(self._next(), session, mode))
            return []
        return self._settle()

    def _settle(self) -> list[Fact]:
        """Send the next wish, or the prompt when there are no more."""
        assert self._session is not None
        warnings: list[Fact] = []
        while self._wishes:
            category, wanted = self._wishes.pop(0)
            option = option_for(self._options, category)
            value = option.value_for(wanted) if option is not None else None
            if option is None and category == MODEL:
                return warnings + self._fail(Failure(words="it lets nobody choose one", reason=Reason.UNKNOWN_MODEL))
            if option is None or (value is None and category == EFFORT):
                warnings.append(warning(f"{self._agent} knows no effort {wanted} here; it works with its own"))
            elif option.current != value:
                # A model that is not on the list may be known all the same: some agents take every name.
                self._wish = category
                self._ask(Step.SETTLE, words.set_option(self._next(), self._session, option.id, value or wanted))
                return warnings
        self._ask(Step.PROMPT, words.prompt(self._next(), self._session, self._request()))
        if self._turn.assignment.max_turns is not None or self._turn.assignment.budget_usd is not None:
            told = f"{self._agent} has no limit of turns or money; the task's limit is not in force"
            warnings.append(warning(told))
        model = option_for(self._options, MODEL)
        name = one_line(model.current if model else "", SUMMARY_MAX)
        return [*warnings, Fact(kind=EventKind.SESSION, data={"sessionId": self._session, "model": name})]

    def _request(self) -> str:
        """An agent is not told of a tool that it could not be given."""
        return request(replace(self._turn, asking=self._asking))

    def _ended(self, answer: dict[str, object]) -> list[Fact]:
        self._stop = one_line(as_text(answer.get("stopReason")), METHOD_MAX) or "nothing"
        self._step = Step.OVER
        self._count(as_object(answer.get("usage")))
        facts = self._updates.finished()
        facts.append(spent(self.usage))
        if self._denied:
            kinds = one_line(", ".join(sorted(self._denied)), SUMMARY_MAX)
            facts.append(warning(f"tool calls that were not permitted: {self._denied.total()} ({kinds})"))
            self._denied.clear()
        return facts

    def _count(self, usage: dict[str, object]) -> None:
        """Tokens are told for a prompt. The cost is meant to be the session's, but some agents begin anew in each
        process: a sum smaller than what was spent before is this run's own."""
        before, cost = self._turn.spent.cost_usd, self._updates.cost
        here = Usage(
            input_tokens=as_count(usage.get("inputTokens")),
            output_tokens=as_count(usage.get("outputTokens")),
            cache_read_tokens=as_count(usage.get("cachedReadTokens")),
            cache_write_tokens=as_count(usage.get("cachedWriteTokens")),
            turns=1,
        )
        total = self.usage.plus(here)
        self.usage = Usage(**{**asdict(total), "cost_usd": min(cost - before if cost >= before else cost, COST_MAX)})

    def _failed(self, error: dict[str, object]) -> list[Fact]:
        failure = _failure(error)
        match self._step:
            case Step.OPEN if self._resumed is not None and failure.code != AUTH_REQUIRED:
                self._lose_session()
                return []
            case Step.SETTLE if self._wish == MODEL:
                return self._fail(Failure(words=failure.words, reason=Reason.UNKNOWN_MODEL))
            case Step.SETTLE:
                return [
                    warning(f"{self._agent} did not take a wish: {one_line(failure.words, SUMMARY_MAX)}"),
                    *self._settle(),
                ]
            case _:
                self._updates.drop_if_repeated(failure.words)
                return self._fail(failure)

    def _fail(self, failure: Failure) -> list[Fact]:
        self._failure = failure
        self._step = Step.OVER
        return self._updates.finished()

    def _lose_session(self) -> None:
        self.session_missing = True
        self._step = Step.OVER


def _failure(error: dict[str, object]) -> Failure:
    data, message, code = as_object(error.get("data")), as_text(error.get("message")), error.get("code")
    details = as_text(data.get("details")) or as_text(data.get("message"))
    told = message.removeprefix("Internal error").removeprefix(": ") or details or message
    return Failure(
        words=told[:WORDS_MAX],
        code=code if isinstance(code, int) else 0,
        kind=as_text(data.get("errorKind")),
    )
