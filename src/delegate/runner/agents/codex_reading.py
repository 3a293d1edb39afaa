"""Reads the output of `codex exec --json`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import datetime

from delegate.errors import excerpt
from delegate.model import EventKind, Outcome, Stream, Usage
from delegate.runner.agents.base import AgentTurn, Ending, Fact, outcome_of, session_of
from delegate.runner.agents.codex_verdict import CodexResult, CodexRun, verdict
from delegate.runner.agents.lines import Streams, as_count, as_list, as_object, as_text, make_storable, one_line
from delegate.runner.agents.timeline_facts import ID_MAX, SUMMARY_MAX, TEXT_MAX, FileAccess, tool, usage_fact, warning
from delegate.runner.agents.todo import ITEMS_MAX, TITLE_MAX
from delegate.runner.process.agent_process import Exit

THREAD_ID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")  # it becomes an argument of the next run
NO_SUCH_SESSION = "thread/resume failed"
RETRY = re.compile(r"Reconnecting\.\.\. (\d{1,3})/(\d{1,3})(?: \((.*)\))?", re.DOTALL)
SHELL = re.compile(r"\S*sh -l?c (.*)", re.DOTALL)
QUOTED_MAX = 2_000  # characters of a command to unquote
OPEN_MAX = 1_000


class CodexReading:
    left_running = ""  # its commands end with it

    def __init__(self, turn: AgentTurn) -> None:
        self._streams = Streams()
        self._assignment = turn.assignment
        self._resumed = turn.session if turn.session and THREAD_ID.fullmatch(turn.session) else None
        self._spent = turn.spent
        self._session: str | None = None
        self._result: CodexResult | None = None
        self._error = ""  # the last error, until a later event shows that the turn continues
        self._open_calls: set[str] = set()  # calls that are reported and not ended
        self._todo: list[dict[str, str]] = []
        self.summary = ""
        self.usage = Usage()

    @property
    def parse_errors(self) -> int:
        return self._streams.parse_errors

    @property
    def session_id(self) -> str | None:
        return session_of(self._session, self._resumed, is_missing=self.session_missing)

    @property
    def session_missing(self) -> bool:
        if self._resumed is None or self._session is not None:
            return False
        return NO_SUCH_SESSION in self._streams.stderr

    @property
    def takes_more_turns(self) -> bool:
        return self.session_id is not None

    @property
    def result_seen(self) -> bool:
        return self._result is not None

    def message(self, text: str) -> None:
        """Takes no messages: a turn has one request."""

    def replies(self) -> bytes:
        return b""

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        return [fact for event in self._streams.feed(stream, data) for fact in self._read(event)]

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        for event in self._streams.finish():
            self._read(event)
        if self._result is None and self._error:
            self._result = CodexResult(is_good=False, text=self._error)
        run = CodexRun(
            result=self._result,
            stderr=self._streams.stderr,
            timeout=self._assignment.timeout,
        )
        return outcome_of(self, verdict(run, exit, ending, now), exit)

    def _read(self, event: dict[str, object]) -> list[Fact]:
        kind = event.get("type")
        if kind == "turn.failed":
            text = as_text(as_object(event.get("error")).get("message")) or self._error
            self._result, self._error = CodexResult(is_good=False, text=text), ""
            return []
        facts = self._report_survived_error()
        match kind:
            case "thread.started":
                facts += self._handle_thread_started(as_text(event.get("thread_id")))
            case "turn.started":
                self._result = None
            case "turn.completed":
                facts += self._handle_turn_completed(as_object(event.get("usage")))
            case "error":
                facts += self._handle_error(as_text(event.get("message")))
            case "item.started" | "item.updated" | "item.completed":
                facts += self._handle_item(as_object(event.get("item")), is_over=kind == "item.completed")
        return facts

    def _report_survived_error(self) -> list[Fact]:
        """Reports an error after which the turn continued; the outcome reports a final one."""
        text, self._error = self._error, ""
        return [warning(f"codex reported an error: {excerpt(text)}")] if text else []

    def _handle_thread_started(self, thread: str) -> list[Fact]:
        if thread == self._session or not THREAD_ID.fullmatch(thread):
            return []
        self._session = thread
        model = self._assignment.model or ""
        facts = [Fact(kind=EventKind.SESSION, data={"sessionId": thread, "model": model})]
        if self._assignment.max_turns is not None:
            facts.append(warning("codex does not support turn limits; the task's limit is not enforced"))
        if self._assignment.budget_usd is not None:
            facts.append(warning("codex does not report costs; the task's budget is not enforced"))
        return facts

    def _handle_error(self, text: str) -> list[Fact]:
        retry = RETRY.fullmatch(text)
        if retry is None:
            self._error = text
            return []
        return [warning(f"the model's service failed ({excerpt(retry[3] or '')}); retry {retry[1]} of {retry[2]}")]

    def _handle_turn_completed(self, usage: dict[str, object]) -> list[Fact]:
        self._result = CodexResult(is_good=True, text=self.summary)
        # Codex counts over the whole thread; earlier usage has been reported already.
        is_same = self._resumed is not None and self._session == self._resumed
        before = self._spent if is_same else Usage()
        whole = _usage(usage)
        self.usage = Usage(
            input_tokens=max(whole.input_tokens - before.input_tokens, 0),
            output_tokens=max(whole.output_tokens - before.output_tokens, 0),
            cache_read_tokens=max(whole.cache_read_tokens - before.cache_read_tokens, 0),
            cache_write_tokens=max(whole.cache_write_tokens - before.cache_write_tokens, 0),
            turns=1,
        )
        return [usage_fact(self.usage)]

    def _handle_item(self, item: dict[str, object], *, is_over: bool) -> list[Fact]:
        match item.get("type"):
            case "agent_message" if is_over and (text := as_text(item.get("text")).strip()):
                self.summary = make_storable(text, TEXT_MAX)
                return [Fact(kind=EventKind.MESSAGE, data={"text": self.summary})]
            case "error" if is_over:
                return [warning(one_line(as_text(item.get("message")), SUMMARY_MAX))]
            case "todo_list":
                return self._handle_todo_list(as_list(item.get("items")))
        call_id = as_text(item.get("id"))[:ID_MAX]
        calls = list(_calls(item, call_id))
        return self._handle_calls(call_id, calls, is_over=is_over) if calls else []

    def _handle_calls(self, call: str, facts: list[Fact], *, is_over: bool) -> list[Fact]:
        """Reports a call once: when it starts, or when it ends if the start was not reported."""
        is_known = call in self._open_calls
        if is_over:
            self._open_calls.discard(call)
        elif len(self._open_calls) < OPEN_MAX:
            self._open_calls.add(call)
        return [] if is_known else facts

    def _handle_todo_list(self, entries: list[object]) -> list[Fact]:
        items = []
        for entry in entries[:ITEMS_MAX]:
            todo = as_object(entry)
            title = one_line(as_text(todo.get("text")), TITLE_MAX)
            if title:
                items.append({"title": title, "state": "completed" if todo.get("completed") is True else "pending"})
        if items == self._todo:
            return []
        self._todo = items
        return [Fact(kind=EventKind.TODO, data={"items": items})]


def _usage(usage: dict[str, object]) -> Usage:
    """Codex includes cache reads and writes in the input tokens; here they are separate."""
    cached, written = as_count(usage.get("cached_input_tokens")), as_count(usage.get("cache_write_input_tokens"))
    return Usage(
        input_tokens=max(as_count(usage.get("input_tokens")) - cached - written, 0),
        output_tokens=as_count(usage.get("output_tokens")),
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )


def _calls(item: dict[str, object], call_id: str) -> Iterator[Fact]:
    """A tool call; one that changes several files counts as several."""
    match item.get("type"):
        case "command_execution":
            yield tool("shell", _script(as_text(item.get("command"))), call_id)
        case "file_change":
            for change in as_list(item.get("changes"))[:ITEMS_MAX]:
                path = as_text(as_object(change).get("path"))
                yield tool("edit", path, call_id, FileAccess(path=path))
        case "mcp_tool_call":
            yield tool(f"{as_text(item.get('server'))}.{as_text(item.get('tool'))}", "", call_id)
        case "web_search":
            yield tool("web_search", as_text(item.get("query")), call_id)


def _script(command: str) -> str:
    """The command as the model wrote it, without the shell around it."""
    shell = SHELL.match(command)
    if shell is None:
        return command
    try:
        words = shlex.split(shell[1][:QUOTED_MAX])
    except ValueError:
        return shell[1]
    return words[0] if len(words) == 1 else shell[1]
