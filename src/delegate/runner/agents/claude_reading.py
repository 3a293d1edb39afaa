"""Reads the output of Claude Code with `--output-format stream-json`."""

from __future__ import annotations

import json
import re
from datetime import datetime

from delegate.errors import excerpt
from delegate.model import EventKind, Outcome, Stream, Usage
from delegate.runner.agents.base import AgentTurn, Ending, Fact, outcome_of, session_of
from delegate.runner.agents.claude_verdict import ClaudeResult, ClaudeRun, Limit, verdict
from delegate.runner.agents.lines import (
    Streams,
    as_amount,
    as_count,
    as_list,
    as_object,
    as_text,
    make_storable,
    one_line,
)
from delegate.runner.agents.timeline_facts import (
    ID_MAX,
    SUMMARY_MAX,
    TEXT_MAX,
    FileAccess,
    count_changes,
    count_lines,
    summarize_input,
    tool,
    usage_fact,
    warning,
)
from delegate.runner.agents.todo import TodoList
from delegate.runner.process.agent_process import Exit
from delegate.wire.basics import SEQ_MAX

COST_MAX = 1e6
BACKGROUND_MAX = 1_000
COMMANDS_MAX = 100  # of the last ones, to name those that continue in the background
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")  # it becomes an argument of the next run
NO_SUCH_SESSION = ("No conversation found with session ID", "--resume requires a valid session ID")
# The most informative fields of a tool's input, best first.
SUMMARY_FIELDS = (
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "url",
    "query",
    "subject",
    "description",
    "prompt",
    "skill",
)
EDIT_FIELDS = (("old_string", "new_string"), ("oldString", "newString"))
TASK_REPORTED = frozenset({"completed", "failed"})  # the agent is notified, and starts a turn
TASK_OVER = TASK_REPORTED | {"killed", "stopped"}


def user_message(text: str) -> bytes:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    event = {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""}
    return json.dumps(event).encode() + b"\n"


class ClaudeReading:
    def __init__(self, turn: AgentTurn) -> None:
        self._streams = Streams()
        self._timeout = turn.assignment.timeout
        self._resumed = turn.session
        self._session: str | None = None
        self._todo = TodoList()
        self._error = ""  # the kind of error in this turn
        self._result: ClaudeResult | None = None
        self._turn_open = True
        # Commands and agents in the background: when one ends, a new turn starts, even after a result. With its
        # input closed, Claude Code would wait 5 seconds for them, kill them, and report success.
        self._background: dict[str, str | None] = {}  # by id: the command, or None for an agent
        self._commands: dict[str, str] = {}  # by the id of the tool call
        self._turn_due = False
        self._limit: Limit | None = None
        self._last_message = ""
        self._result_usage = Usage()  # sum of the results of this process
        self.usage = Usage()

    @property
    def parse_errors(self) -> int:
        return self._streams.parse_errors

    @property
    def session_id(self) -> str | None:
        return session_of(self._session, self._resumed, is_missing=self.session_missing)

    @property
    def session_missing(self) -> bool:
        result = self._result
        if self._resumed is None or self._session is not None or result is None:
            return False
        return any(words in result.text for words in NO_SUCH_SESSION)

    @property
    def result_seen(self) -> bool:
        if self._result is None or self._turn_open:
            return False
        return not self._result.is_good or not (self._background or self._turn_due)

    @property
    def left_running(self) -> str:
        """Empty while an agent works in the background: its output shows that it is alive, and it ends by itself."""
        commands = [command for command in self._background.values() if command is not None]
        is_waiting = self._result is not None and self._result.is_good and not (self._turn_open or self._turn_due)
        if not is_waiting or not commands or len(commands) < len(self._background):
            return ""
        return commands[0] + (f" and {len(commands) - 1} more" if len(commands) > 1 else "")

    @property
    def summary(self) -> str:
        return self._last_message

    @property
    def takes_more_turns(self) -> bool:
        return self.session_id is not None

    def message(self, text: str) -> bytes | None:
        if self._result is not None and not self._result.is_good and not self._turn_open:
            return None  # it would fail again; the next attempt gets the message
        self._turn_open = True
        return user_message(text)

    def replies(self) -> bytes:
        return b""

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        return [fact for event in self._streams.feed(stream, data) for fact in self._read_own(event)]

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        for event in self._streams.finish():
            self._read_own(event)
        run = ClaudeRun(
            result=self._result,
            is_idle=not self._turn_open,
            left_running=self.left_running,
            limit=self._limit,
            stderr=self._streams.stderr,
            timeout=self._timeout,
        )
        return outcome_of(self, verdict(run, exit, ending, now), exit)

    def _read_own(self, event: dict[str, object]) -> list[Fact]:
        """Skips events of another session, printed by a run that the agent started."""
        is_own = self._session is None or as_text(event.get("session_id")) in ("", self._session)
        return self._read(event) if is_own else []

    def _read(self, event: dict[str, object]) -> list[Fact]:
        match event.get("type"):
            case "system":
                return self._handle_system_event(event)
            case "rate_limit_event":
                return self._handle_rate_limit(as_object(event.get("rate_limit_info")))
            case "assistant":
                return self._handle_assistant_message(event)
            case "user":
                return self._handle_tool_result(event)
            case "result":
                return self._handle_result(event)
        return []

    def _handle_system_event(self, event: dict[str, object]) -> list[Fact]:
        match event.get("subtype"):
            case "init":
                return self._start_turn(event)
            case "api_retry":
                return [warning(_retry_message(event))]
            case "model_fallback":
                old, new, why = (_printable(event.get(key)) for key in ("original_model", "fallback_model", "trigger"))
                return [warning(f"the model {old} was replaced by {new}: {why}")]
            case "task_started" | "task_updated" | "task_notification":
                self._follow_background(event)
        return []

    def _start_turn(self, event: dict[str, object]) -> list[Fact]:
        """Starts a turn; messages and background commands add turns to a run."""
        self._turn_open = True
        self._error = ""
        if not self._set_session(event):
            return []
        model = one_line(as_text(event.get("model")), SUMMARY_MAX)
        return [Fact(kind=EventKind.SESSION, data={"sessionId": self._session, "model": model})]

    def _set_session(self, event: dict[str, object]) -> bool:
        session = as_text(event.get("session_id"))
        if session == self._session or not SESSION_ID.fullmatch(session):
            return False
        self._session = session
        return True

    def _follow_background(self, event: dict[str, object]) -> None:
        task = as_text(event.get("task_id"))[:ID_MAX]
        status = event.get("status") or as_object(event.get("patch")).get("status")
        if event.get("subtype") == "task_started" and len(self._background) < BACKGROUND_MAX:
            self._background[task] = self._command_of(event)
        elif isinstance(status, str) and status in TASK_OVER:
            self._background.pop(task, None)
            self._turn_due = self._turn_due or status in TASK_REPORTED

    def _command_of(self, event: dict[str, object]) -> str | None:
        if event.get("task_type") == "local_agent":
            return None
        known = self._commands.get(as_text(event.get("tool_use_id"))[:ID_MAX])
        return known or one_line(as_text(event.get("description")), SUMMARY_MAX) or "a command without a name"

    def _handle_rate_limit(self, info: dict[str, object]) -> list[Fact]:
        name = _printable(info.get("rateLimitType"))
        match info.get("status"):
            case "rejected":
                self._limit = Limit(resets_at=as_amount(info.get("resetsAt")))
                return [warning(f"the subscription's {name} limit is reached")]
            case "allowed_warning":
                used = as_amount(info.get("utilization"))
                return [warning(f"the subscription's {name} limit is nearly reached ({used:.0%})")]
        return []

    def _handle_assistant_message(self, event: dict[str, object]) -> list[Fact]:
        # A sub-agent talks to the agent, not to the user; its to-do list, errors and turns do not count.
        is_main = event.get("parent_tool_use_id") is None
        if is_main:
            self._turn_open = True
            self._error = as_text(event.get("error"))
        if event.get("error") is not None:
            return []  # the result repeats the text of an error
        blocks = as_list(as_object(event.get("message")).get("content"))
        return [fact for block in blocks for fact in self._handle_block(as_object(block), is_main=is_main)]

    def _handle_block(self, block: dict[str, object], *, is_main: bool) -> list[Fact]:
        match block.get("type"):
            case "text" if is_main and (text := as_text(block.get("text")).strip()):
                self._last_message = make_storable(text, TEXT_MAX)
                return [Fact(kind=EventKind.MESSAGE, data={"text": self._last_message})]
            case "tool_use":
                name, call_id = as_text(block.get("name")), as_text(block.get("id"))[:ID_MAX]
                given = as_object(block.get("input"))
                self._note_command(call_id, as_text(given.get("command")))
                facts = [tool(name, summarize_input(given, SUMMARY_FIELDS), call_id, file_access(given))]
                if is_main and self._todo.apply_call(name, call_id, given):
                    facts.append(self._todo_fact())
                return facts
        return []

    def _note_command(self, call_id: str, command: str) -> None:
        if command:
            self._commands[call_id] = one_line(command, SUMMARY_MAX)
        if len(self._commands) > COMMANDS_MAX:
            del self._commands[next(iter(self._commands))]

    def _handle_tool_result(self, event: dict[str, object]) -> list[Fact]:
        answer = as_object(event.get("tool_use_result"))
        blocks = as_list(as_object(event.get("message")).get("content"))
        if answer and any(self._todo.apply_result(as_text(as_object(b).get("tool_use_id")), answer) for b in blocks):
            return [self._todo_fact()]
        return []

    def _todo_fact(self) -> Fact:
        return Fact(kind=EventKind.TODO, data={"items": self._todo.items()})

    def _handle_result(self, event: dict[str, object]) -> list[Fact]:
        errors = " ".join(as_text(error) for error in as_list(event.get("errors")))
        self._result = ClaudeResult(
            subtype=as_text(event.get("subtype")),
            is_error=event.get("is_error") is not False,
            text=as_text(event.get("result")) or errors,
            error=self._error,
            status=event.get("api_error_status"),
            stop_reason=as_text(event.get("stop_reason")),
            terminal_reason=as_text(event.get("terminal_reason")),
        )
        if self._result.is_good and self._session is None:
            self._set_session(event)
        self._turn_open = self._turn_due = False
        self._error = ""
        self._count(event)
        facts = [usage_fact(self.usage)]
        denials = [as_text(as_object(denial).get("tool_name")) for denial in as_list(event.get("permission_denials"))]
        if denials:
            tools = one_line(", ".join(sorted(set(denials))), SUMMARY_MAX)
            facts.append(warning(f"tool calls denied: {len(denials)} ({tools})"))
        return facts

    def _count(self, event: dict[str, object]) -> None:
        """Cost and `modelUsage` accumulate within a process; `usage` and turns belong to one result. `modelUsage` is
        what was billed: it includes sub-agents and truncated responses."""
        self._result_usage = self._result_usage.plus(
            _usage(as_object(event.get("usage")), as_count(event.get("num_turns")))
        )
        paid = Usage()
        for model in as_object(event.get("modelUsage")).values():
            paid = paid.plus(_model_usage(as_object(model)))
        tokens = paid if paid != Usage() else self._result_usage
        self.usage = Usage(
            input_tokens=min(tokens.input_tokens, SEQ_MAX),
            output_tokens=min(tokens.output_tokens, SEQ_MAX),
            cache_read_tokens=min(tokens.cache_read_tokens, SEQ_MAX),
            cache_write_tokens=min(tokens.cache_write_tokens, SEQ_MAX),
            cost_usd=min(max(self.usage.cost_usd, as_amount(event.get("total_cost_usd"))), COST_MAX),
            turns=min(self._result_usage.turns, SEQ_MAX),
        )


def file_access(given: dict[str, object]) -> FileAccess | None:
    """The file in a tool's input, and what an edit or a new file says of its lines."""
    path = summarize_input(given, ("file_path", "notebook_path", "filePath", "path"))
    if not path:
        return None
    if isinstance(content := given.get("content"), str):
        return FileAccess(path=path, additions=count_lines(content))
    edits = [as_object(edit) for edit in as_list(given.get("edits"))] or [given]
    texts = [(edit.get(old), edit.get(new)) for edit in edits for old, new in EDIT_FIELDS if new in edit]
    counts = [count_changes(as_text(old), as_text(new)) for old, new in texts]
    if not counts:
        return FileAccess(path=path)
    return FileAccess(
        path=path, additions=sum(added for added, _ in counts), deletions=sum(removed for _, removed in counts)
    )


def _usage(usage: dict[str, object], turns: int) -> Usage:
    return Usage(
        input_tokens=as_count(usage.get("input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
        cache_read_tokens=as_count(usage.get("cache_read_input_tokens")),
        cache_write_tokens=as_count(usage.get("cache_creation_input_tokens")),
        turns=turns,
    )


def _model_usage(usage: dict[str, object]) -> Usage:
    return Usage(
        input_tokens=as_count(usage.get("inputTokens")),
        output_tokens=as_count(usage.get("outputTokens")),
        cache_read_tokens=as_count(usage.get("cacheReadInputTokens")),
        cache_write_tokens=as_count(usage.get("cacheCreationInputTokens")),
    )


def _printable(value: object) -> str:
    return excerpt(as_text(value))


def _retry_message(event: dict[str, object]) -> str:
    status = as_count(event.get("error_status"))
    trouble = f"answered {status} ({_printable(event.get('error'))})" if status else "could not be reached"
    delay = as_amount(event.get("retry_delay_ms")) / 1000
    tries = f"{as_count(event.get('attempt'))} of {as_count(event.get('max_retries'))}"
    return f"the model's service {trouble}; retry {tries} in {delay:.1f} s"
