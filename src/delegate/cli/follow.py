"""Shows what a task does while it runs."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from delegate.cli.context import CommandContext
from delegate.cli.render import terminal
from delegate.cli.render.screen import OutputSanitizer
from delegate.cli.render.status import open_questions, task_note
from delegate.cli.render.timeline import QUIET_KINDS, format_event
from delegate.client.client import Client, StreamItem

if TYPE_CHECKING:
    from delegate.client.responses import EventData, OutputData, TaskData

ASK_WHY_AFTER = 2.0  # seconds without an event after which a waiting task's reason is fetched
EXIT_TIMEOUT, EXIT_CANCELLED, EXIT_INTERRUPTED = 124, 130, 130
RESET = "\x1b[0m"
# A shell task's output is the command's own; beside it, only events that the command cannot know are shown.
NOTABLE = {
    "warning",
    "skipped",
    "released",
    "parked",
    "lost",
    "cancel_requested",
    "setup",
    "check",
    "push",
    "pull_request",
}
FAILABLE = {"check", "setup"}  # commands whose end is shown when they failed
WAITS_AGAIN = {"released", "parked", "lost"}


def follow(context: CommandContext, client: Client, task: TaskData) -> TaskData:
    """Show everything a task does until it ends, and return the ended task."""
    show = create_follower(context, task)
    shown_reason, is_waiting = "", True
    with show:
        for item in client.stream(task["taskId"], idle_after=ASK_WHY_AFTER):
            if item is None:
                shown_reason = _say_reason(context, client, task, shown_reason) if is_waiting else shown_reason
            elif item.kind == "end":
                ended: TaskData = item.data
                return ended
            else:
                is_waiting = waits_after(item, is_waiting)
                show.item(item)
                if item.kind == "event" and item.data["kind"] == "question":
                    # The event may be old: only the task shows whether it still waits.
                    say_question(context, client.task(task["taskId"])["task"])
    raise AssertionError("a stream ends with its task's end")


def waits_after(item: StreamItem, before: bool) -> bool:
    """Whether a task waits for a runner after this item of its stream; only then does it have a reason."""
    kind = item.data["kind"] if item.kind == "event" else ""
    return kind in WAITS_AGAIN or (before and kind != "claimed")


def show_events(context: CommandContext, events: Sequence[EventData], tail: int | None) -> None:
    """Show what an agent has done so far, from its events."""
    shown = [event for event in events if is_shown(event)]
    for event in shown[-tail:] if tail else shown:
        if context.as_json:
            context.print_json(event)
        else:
            show_event(context, event)


def show_lines(context: CommandContext, output: OutputData) -> None:
    """Show output that the relay has split into lines."""
    if context.as_json:
        context.print_json_lines(output["lines"])
        return
    with ByteWriter() as writer:
        for line in output["lines"]:
            writer.write(line["stream"], f"{line['text']}\n".encode("utf-8", "replace"))


def _say_reason(context: CommandContext, client: Client, task: TaskData, shown_reason: str) -> str:
    why = client.task(task["taskId"])["task"]["why"] or ""
    if why and why != shown_reason and not context.as_json:
        words = terminal.one_line(why)
        context.say(f"{task['taskId']} {words if words.startswith('waits ') else f'waits: {words}'}")
    return why


def say_question(context: CommandContext, task: TaskData) -> None:
    """Show how to answer, while a question is open."""
    if open_questions(task) and not context.as_json:
        context.say(f"{task['taskId']} waits for an answer", f"delegate answer {task['taskId']} TEXT")


def exit_code(task: TaskData) -> int:
    """The exit code of the command that followed the task."""
    code = task["exitCode"]
    if task["status"] == "completed":
        return code or 0
    if task["status"] == "cancelled":
        return EXIT_CANCELLED
    if task["reason"] == "timeout":
        return EXIT_TIMEOUT
    if code is None or code == 0:
        return 1
    return code if code > 0 else 128 - code  # a signal, as shells report it


def say_end(context: CommandContext, task: TaskData) -> None:
    """Report what a follower has not seen: a failure, or a success without changes."""
    result = task["result"]
    if task["status"] != "completed":
        context.say(f"{task['taskId']} {task['status']}: {task_note(task)}", task["advice"] or "")
    elif task["reason"] == "no_changes":
        is_kept = result is not None and result["isKept"]
        context.say(f"{task['taskId']} completed: {task['message'] if is_kept else 'nothing was changed'}")
    if result is not None and result["isKept"]:
        context.say(f"work that was not pushed is kept; `delegate workspaces restore {task['taskId']}` restores it")


class ByteWriter:
    """Writes the exact bytes to pipes and files; on terminals, removes control sequences."""

    def __init__(self) -> None:
        self._streams: dict[str, TextIO | None] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._sanitizers = {
            name: OutputSanitizer() for name, stream in self._streams.items() if terminal.is_terminal(stream)
        }

    def __enter__(self) -> ByteWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._sanitizers:
            self._write_text(name, self._sanitizers[name].feed(b"", final=True) + RESET)

    def write(self, name: str, data: bytes) -> None:
        stream = self._streams[name]
        if name in self._sanitizers:
            self._write_text(name, self._sanitizers[name].feed(data))
        elif stream is not None:
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()

    def _write_text(self, name: str, text: str) -> None:
        stream = self._streams[name]
        if stream is not None:
            stream.write(text)
            stream.flush()


class TaskFollower:
    """Shows one kind of task; as a context manager, leaves the terminal as it was."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._writer = ByteWriter()
        self._offsets: dict[str, int] = {}

    def __enter__(self) -> TaskFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.__exit__()

    def item(self, item: StreamItem) -> None:
        if item.kind == "output":
            self.output(item.data)
        elif item.kind == "event":
            self.event(item.data)

    def output(self, piece: dict[str, Any]) -> None:
        self._note_gap(piece)
        self._writer.write(piece["stream"], base64.b64decode(piece["output"]))

    def event(self, event: EventData) -> None:
        if event["kind"] in NOTABLE or is_retry(event):
            self._context.say(format_event(event))

    def _note_gap(self, piece: dict[str, Any]) -> None:
        """Report omitted output: the relay keeps only the beginning and the end."""
        data = len(piece["output"]) * 3 // 4 - piece["output"][-2:].count("=")
        missing = piece["offset"] - self._offsets.get(piece["attemptId"], 0)
        self._offsets[piece["attemptId"]] = piece["offset"] + data
        if missing > 0:
            self._context.say(f"{missing:,} bytes of output were left out here")


class AgentFollower(TaskFollower):
    """Shows an agent's events and standard error; its standard output is its protocol."""

    def output(self, piece: dict[str, Any]) -> None:
        if piece["stream"] == "stderr":
            self._writer.write("stderr", base64.b64decode(piece["output"]))

    def event(self, event: EventData) -> None:
        show_event(self._context, event)


class JsonFollower(TaskFollower):
    """Prints JSON; decodes characters that are split between two pieces of a stream."""

    def __init__(self, context: CommandContext) -> None:
        super().__init__(context)
        self._decoders: dict[tuple[str, str], codecs.IncrementalDecoder] = {}
        self._last: dict[tuple[str, str], str] = {}  # when the last piece came

    def __exit__(self, *_: object) -> None:
        for (attempt, stream), at in self._last.items():
            self._text(attempt, stream, at, b"", is_end=True)
        super().__exit__()

    def output(self, piece: dict[str, Any]) -> None:
        attempt, stream = piece["attemptId"], piece["stream"]
        self._last[attempt, stream] = piece["at"]
        self._text(attempt, stream, piece["at"], base64.b64decode(piece["output"]))

    def _text(self, attempt: str, stream: str, at: str, data: bytes, *, is_end: bool = False) -> None:
        new = codecs.getincrementaldecoder("utf-8")
        text = self._decoders.setdefault((attempt, stream), new("replace")).decode(data, is_end)
        if text:
            self._print({"kind": "output", "at": at, "stream": stream, "text": text})

    def event(self, event: EventData) -> None:
        self._print(event)

    def _print(self, value: object) -> None:
        self._context.print_json(value)
        if sys.stdout is not None:
            sys.stdout.flush()


def is_retry(event: EventData) -> bool:
    return event["kind"] == "claimed" and event["data"].get("attempt") != 1


def is_shown(event: EventData) -> bool:
    return bool(format_event(event)) and (event["kind"] not in QUIET_KINDS or is_retry(event))


def show_event(context: CommandContext, event: EventData) -> None:
    if not is_shown(event):
        return
    words = format_event(event)
    if event["kind"] == "message":
        words = message_text(str(event["data"].get("text", "")))
    failed = event["data"].get("output") if event["kind"] in FAILABLE else None
    lines = message_text(failed).splitlines() if isinstance(failed, str) else []
    context.print([words, *(f"    {line}".rstrip() for line in lines)])
    if sys.stdout is not None:
        sys.stdout.flush()


def message_text(text: str) -> str:
    """An agent's message with its line breaks, but without control characters."""
    return "\n".join(terminal.one_line(line) if line.strip() else "" for line in text.strip().splitlines())


def create_follower(context: CommandContext, task: TaskData) -> TaskFollower:
    kinds: dict[str, Callable[[CommandContext], TaskFollower]] = {"shell": TaskFollower}
    return JsonFollower(context) if context.as_json else kinds.get(task["agent"], AgentFollower)(context)
