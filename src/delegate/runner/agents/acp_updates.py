"""Turns `session/update` notifications into facts for the timeline."""

from __future__ import annotations

from delegate.model import EventKind
from delegate.runner.agents.base import Fact
from delegate.runner.agents.claude_reading import SUMMARY_FIELDS, file_access
from delegate.runner.agents.lines import as_amount, as_list, as_object, as_text, make_storable, one_line
from delegate.runner.agents.timeline_facts import ID_MAX, TEXT_MAX, FileAccess, count_changes, summarize_input, tool
from delegate.runner.agents.todo import ITEMS_MAX, STATES, TITLE_MAX

CALLS_MAX = 1_000  # unreported tool calls; beyond it, calls are reported as they come
ACP_SUMMARY_FIELDS = ("filePath", *SUMMARY_FIELDS)  # the most informative fields of a call's input, best first
ENDED = frozenset({"completed", "failed"})


class Updates:
    def __init__(self) -> None:
        self.last_message = ""
        self.cost = 0.0  # of the session, in dollars
        self._pieces: list[str] = []  # of the current message
        self._held = 0
        self._message_id: object = None
        self._calls: dict[str, dict[str, object]] = {}  # announced tool calls that are not reported yet

    def apply_update(self, update: dict[str, object]) -> list[Fact]:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return self._append_chunk(update)
            case "agent_thought_chunk" | "user_message_chunk":
                return self.flush_message()
            case "tool_call" | "tool_call_update":
                return self.flush_message() + self._update_call(update)
            case "plan":
                return [*self.flush_message(), _todo(as_list(update.get("entries")))]
            case "usage_update":
                self._count(as_object(update.get("cost")))
        return []

    def flush_message(self) -> list[Fact]:
        """Reports the message that has ended, if there is one."""
        text = "".join(self._pieces).strip()
        self._pieces.clear()
        self._held = 0
        if not text:
            return []
        self.last_message = make_storable(text, TEXT_MAX)
        return [Fact(kind=EventKind.MESSAGE, data={"text": self.last_message})]

    def drop_if_repeated(self, message: str) -> None:
        """Some agents send an error as a message before they respond with it; the outcome reports it."""
        if "".join(self._pieces).strip() in message:
            self._pieces.clear()

    def finish_turn(self) -> list[Fact]:
        """Reports unfinished calls and messages at the end of a turn."""
        facts = self.flush_message() + [_tool(call_id, call) for call_id, call in self._calls.items()]
        self._calls.clear()
        return facts

    def _append_chunk(self, update: dict[str, object]) -> list[Fact]:
        facts = self.flush_message() if update.get("messageId") != self._message_id else []
        self._message_id = update.get("messageId")
        piece = as_text(as_object(update.get("content")).get("text"))
        if self._held <= TEXT_MAX:
            self._pieces.append(piece)
            self._held += len(piece)
        return facts

    def _update_call(self, update: dict[str, object]) -> list[Fact]:
        """Reports a call once, when its input is known: agents announce a call before its input is complete."""
        call_id = as_text(update.get("toolCallId"))[:ID_MAX]
        is_new = update.get("sessionUpdate") == "tool_call"
        if not is_new and call_id not in self._calls:
            return []
        call = self._calls.pop(call_id, {})
        call.setdefault("name", _name(update))
        call.update({key: update[key] for key in ("title", "rawInput", "content", "locations") if update.get(key)})
        is_ready = bool(_call_summary(call)) or as_text(update.get("status")) in ENDED or len(self._calls) >= CALLS_MAX
        if is_ready:
            return [_tool(call_id, call)]
        self._calls[call_id] = call
        return []

    def _count(self, cost: dict[str, object]) -> None:
        if cost.get("currency") == "USD":
            self.cost = as_amount(cost.get("amount"))


def _name(update: dict[str, object]) -> str:
    """The title when it is only the tool's name, else the kind of tool."""
    title = as_text(update.get("title"))
    return title if title.isidentifier() else as_text(update.get("kind")) or "tool"


def _call_summary(call: dict[str, object]) -> str:
    return summarize_input(as_object(call.get("rawInput")), ACP_SUMMARY_FIELDS)


def _tool(call_id: str, call: dict[str, object]) -> Fact:
    name, title = as_text(call.get("name")), as_text(call.get("title"))
    summary = _call_summary(call) or (title if title != name else "")
    return tool(name, summary, call_id, _diff(call) or file_access(as_object(call.get("rawInput"))) or _location(call))


def _diff(call: dict[str, object]) -> FileAccess | None:
    """The change of one file that the agent shows."""
    diffs = [as_object(part) for part in as_list(call.get("content")) if as_object(part).get("type") == "diff"]
    if not diffs:
        return None
    path = as_text(diffs[0].get("path"))
    counts = [
        count_changes(as_text(diff.get("oldText")), as_text(diff.get("newText")))
        for diff in diffs
        if diff.get("path") == path
    ]
    return FileAccess(
        path=path, additions=sum(added for added, _ in counts), deletions=sum(removed for _, removed in counts)
    )


def _location(call: dict[str, object]) -> FileAccess | None:
    places = [as_text(as_object(place).get("path")) for place in as_list(call.get("locations"))]
    return FileAccess(path=places[0]) if places else None


def _todo(entries: list[object]) -> Fact:
    items = []
    for entry in entries[:ITEMS_MAX]:
        plan = as_object(entry)
        title, state = one_line(as_text(plan.get("content")), TITLE_MAX), as_text(plan.get("status"))
        if title:
            items.append({"title": title, "state": state if state in STATES else "pending"})
    return Fact(kind=EventKind.TODO, data={"items": items})
