"""Reads the output of an agent that speaks the Agent Client Protocol, and sends the next requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime
from enum import Enum, auto

from acp.meta import PROTOCOL_VERSION

import delegate.runner.agents.acp_messages as words
from delegate.model import EventKind, Outcome, Stream, Usage
from delegate.runner.agents.acp_options import (
    EFFORT,
    MODEL,
    QUESTION_KINDS,
    Option,
    allowed_kinds,
    choose_permission_option,
    offers_mode,
    option_for,
    options_of,
)
from delegate.runner.agents.acp_updates import Updates
from delegate.runner.agents.acp_verdict import AUTH_REQUIRED, GOOD_STOP, AcpRun, Failure, verdict
from delegate.runner.agents.ask_tool import TOOL_NAMES as ASKING_NAMES
from delegate.runner.agents.base import AgentTurn, Ending, Fact, outcome_of, prompt_text, session_of
from delegate.runner.agents.claude_reading import COST_MAX, SESSION_ID
from delegate.runner.agents.lines import Streams, as_count, as_object, as_text, one_line
from delegate.runner.agents.timeline_facts import SUMMARY_MAX, usage_fact, warning
from delegate.runner.process.agent_process import Exit
from delegate.states import Reason

FIRST_REQUEST_ID = 1  # of the `initialize` request
METHOD_MAX = 100
ID_MAX = 200
MESSAGE_MAX = 10_000


class AcpStep(Enum):
    """The last request; there is one at a time."""

    INITIALIZE = auto()
    OPEN = auto()
    CONFIGURE = auto()
    PROMPT = auto()
    FINISHED = auto()


class AcpReading:
    left_running = ""  # the protocol does not report it

    def __init__(self, turn: AgentTurn, agent: str, cwd: str) -> None:
        assignment = turn.assignment
        self._turn = turn
        self._ask_endpoint = turn.ask_endpoint
        self._agent = agent
        self._cwd = cwd
        self._streams = Streams()
        self._replies = bytearray()
        self._step = AcpStep.INITIALIZE
        self._request_id = FIRST_REQUEST_ID
        resumed = turn.session
        self._resumed = resumed if resumed is not None and SESSION_ID.fullmatch(resumed) else None
        self._session: str | None = None
        self._can_continue = False
        self._options: list[Option] = []
        requested = {MODEL: assignment.model, EFFORT: assignment.effort}
        self._pending_options = [(category, value) for category, value in requested.items() if value is not None]
        self._last_option = ""  # the category of the option that was sent last
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
        return self._step is AcpStep.FINISHED

    @property
    def session_id(self) -> str | None:
        return session_of(self._session, self._resumed, is_missing=self.session_missing)

    @property
    def summary(self) -> str:
        return self._updates.last_message

    @property
    def takes_more_turns(self) -> bool:
        return self._session is not None and self._can_continue

    def replies(self) -> bytes:
        replies = bytes(self._replies)
        self._replies.clear()
        return replies

    def message(self, text: str) -> bytes | None:
        """The protocol takes no messages during a turn; after a good turn the message is the next prompt."""
        if self._session is None or self._step is not AcpStep.FINISHED or self._stop != GOOD_STOP:
            return None
        self._stop = None
        self._request_id += 1
        self._step = AcpStep.PROMPT
        return words.prompt(self._request_id, self._session, text)

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        return [fact for event in self._streams.feed(stream, data) for fact in self._read(event)]

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        for event in self._streams.finish():
            self._read(event)
        run = AcpRun(
            agent=self._agent,
            stop=self._stop,
            failure=self._failure,
            last_message=self.summary,
            stderr=self._streams.stderr,
            timeout=self._turn.assignment.timeout,
        )
        return outcome_of(self, verdict(run, exit, ending, now), exit)

    def _read(self, event: dict[str, object]) -> list[Fact]:
        method, params = event.get("method"), as_object(event.get("params"))
        if isinstance(method, str):
            if "id" in event:
                self._reply(event["id"], method, params)
            elif method == "session/update" and self._step in {AcpStep.CONFIGURE, AcpStep.PROMPT}:
                # Before that, an agent replays the session.
                return self._updates.apply_update(as_object(params.get("update")))
            return []
        if self._step is AcpStep.FINISHED or event.get("id") != self._request_id:
            return []
        return self._handle_error(as_object(event["error"])) if "error" in event else self._handle_response(event)

    def _handle_response(self, event: dict[str, object]) -> list[Fact]:
        answer = as_object(event.get("result"))
        match self._step:
            case AcpStep.INITIALIZE:
                self._open_session(answer)
            case AcpStep.OPEN:
                return self._handle_session_opened(answer)
            case AcpStep.CONFIGURE:
                self._options = options_of(answer) or self._options
                return self._send_next_option_or_prompt()
            case AcpStep.PROMPT:
                return self._handle_turn_end(answer)
            case AcpStep.FINISHED:
                pass
        return []

    def _reply(self, request_id: object, method: str, params: dict[str, object]) -> None:
        if not isinstance(request_id, int | str) or len(str(request_id)[: ID_MAX + 1]) > ID_MAX:
            return
        if method != "session/request_permission":
            self._replies += words.method_not_found_error(request_id, one_line(method, METHOD_MAX))
            return
        call = as_object(params.get("toolCall"))
        # The agent chooses the title, so it may name the tool while the call does something else.
        is_named = as_text(call.get("title")) in ASKING_NAMES and as_text(call.get("kind")) in QUESTION_KINDS
        is_asking = self._ask_endpoint is not None and is_named
        option, is_allowed = choose_permission_option(params, None if is_asking else self._allowed)
        if not is_allowed:
            self._denied[one_line(as_text(call.get("kind")) or "other", METHOD_MAX)] += 1
        self._replies += words.permission(request_id, option)

    def _send_request(self, step: AcpStep, data: bytes) -> None:
        self._step = step
        self._replies += data

    def _next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def _open_session(self, answer: dict[str, object]) -> None:
        version = answer.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            self._fail(Failure(message=f"it uses version {version!r} of the protocol", reason=Reason.AGENT_ERROR))
            return
        offered = as_object(answer.get("agentCapabilities"))
        can_resume = as_object(offered.get("sessionCapabilities")).get("resume") is not None
        self._can_continue = can_resume or offered.get("loadSession") is True
        if as_object(offered.get("mcpCapabilities")).get("http") is not True:
            self._ask_endpoint = None
        if self._resumed is None:
            self._send_request(AcpStep.OPEN, words.new_session(self._next_request_id(), self._cwd, self._ask_endpoint))
        elif can_resume:
            self._send_request(
                AcpStep.OPEN,
                words.resume_session(self._next_request_id(), self._resumed, self._cwd, self._ask_endpoint),
            )
        elif self._can_continue:
            self._send_request(
                AcpStep.OPEN, words.load_session(self._next_request_id(), self._resumed, self._cwd, self._ask_endpoint)
            )
        else:
            self._lose_session()

    def _handle_session_opened(self, answer: dict[str, object]) -> list[Fact]:
        session = self._resumed or as_text(answer.get("sessionId"))
        if not SESSION_ID.fullmatch(session):
            return self._fail(Failure(message="it opened no session", reason=Reason.AGENT_ERROR))
        self._session = session
        self._options = options_of(answer)
        mode = self._turn.assignment.permission_mode
        if mode is not None and offers_mode(answer, mode):
            self._last_option = "mode"
            self._send_request(AcpStep.CONFIGURE, words.set_mode(self._next_request_id(), session, mode))
            return []
        return self._send_next_option_or_prompt()

    def _send_next_option_or_prompt(self) -> list[Fact]:
        """Sends the next option, or the prompt when there are no more."""
        assert self._session is not None
        warnings: list[Fact] = []
        while self._pending_options:
            category, wanted = self._pending_options.pop(0)
            option = option_for(self._options, category)
            value = option.value_for(wanted) if option is not None else None
            if option is None and category == MODEL:
                failure = Failure(message="it does not offer a choice of models", reason=Reason.UNKNOWN_MODEL)
                return warnings + self._fail(failure)
            if option is None or (value is None and category == EFFORT):
                warnings.append(warning(f"{self._agent} does not support effort {wanted}; it uses its own default"))
            elif option.current != value:
                # A model that is not listed may still exist: some agents accept any name.
                self._last_option = category
                self._send_request(
                    AcpStep.CONFIGURE,
                    words.set_option(self._next_request_id(), self._session, option.id, value or wanted),
                )
                return warnings
        self._send_request(AcpStep.PROMPT, words.prompt(self._next_request_id(), self._session, self._prompt_text()))
        if self._turn.assignment.max_turns is not None or self._turn.assignment.budget_usd is not None:
            message = f"{self._agent} does not support turn or budget limits; the task's limit is not enforced"
            warnings.append(warning(message))
        model = option_for(self._options, MODEL)
        name = one_line(model.current if model else "", SUMMARY_MAX)
        return [*warnings, Fact(kind=EventKind.SESSION, data={"sessionId": self._session, "model": name})]

    def _prompt_text(self) -> str:
        """Without the instructions for the ask tool if the agent cannot use it."""
        return prompt_text(replace(self._turn, ask_endpoint=self._ask_endpoint))

    def _handle_turn_end(self, answer: dict[str, object]) -> list[Fact]:
        self._stop = one_line(as_text(answer.get("stopReason")), METHOD_MAX) or "nothing"
        self._step = AcpStep.FINISHED
        self._count(as_object(answer.get("usage")))
        facts = self._updates.finish_turn()
        facts.append(usage_fact(self.usage))
        if self._denied:
            kinds = one_line(", ".join(sorted(self._denied)), SUMMARY_MAX)
            facts.append(warning(f"tool calls denied: {self._denied.total()} ({kinds})"))
            self._denied.clear()
        return facts

    def _count(self, usage: dict[str, object]) -> None:
        """Agents report tokens per prompt. The cost should cover the session, but some agents restart it in each
        process: a sum smaller than the earlier cost is this run's own."""
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

    def _handle_error(self, error: dict[str, object]) -> list[Fact]:
        failure = _failure(error)
        match self._step:
            case AcpStep.OPEN if self._resumed is not None and failure.code != AUTH_REQUIRED:
                self._lose_session()
                return []
            case AcpStep.CONFIGURE if self._last_option == MODEL:
                return self._fail(Failure(message=failure.message, reason=Reason.UNKNOWN_MODEL))
            case AcpStep.CONFIGURE:
                return [
                    warning(f"{self._agent} rejected an option: {one_line(failure.message, SUMMARY_MAX)}"),
                    *self._send_next_option_or_prompt(),
                ]
            case _:
                self._updates.drop_if_repeated(failure.message)
                return self._fail(failure)

    def _fail(self, failure: Failure) -> list[Fact]:
        self._failure = failure
        self._step = AcpStep.FINISHED
        return self._updates.finish_turn()

    def _lose_session(self) -> None:
        self.session_missing = True
        self._step = AcpStep.FINISHED


def _failure(error: dict[str, object]) -> Failure:
    data, message, code = as_object(error.get("data")), as_text(error.get("message")), error.get("code")
    details = as_text(data.get("details")) or as_text(data.get("message"))
    text = message.removeprefix("Internal error").removeprefix(": ") or details or message
    return Failure(
        message=text[:MESSAGE_MAX],
        code=code if isinstance(code, int) else 0,
        kind=as_text(data.get("errorKind")),
    )
