"""Tracks the agent's to-do list through its tool calls."""

from __future__ import annotations

from delegate.runner.agents.lines import as_list, as_object, as_text, one_line

ITEMS_MAX = 200
TITLE_MAX = 200
ID_MAX = 200
STATES = frozenset({"pending", "in_progress", "completed"})


class TodoList:
    """Claude Code has two ways to keep it: `TodoWrite` sends the whole list; the `Task…` tools change one item, and
    only their results contain an item's id."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[str, str]] = {}  # title and state by id
        self._pending_calls: set[str] = set()

    def items(self) -> list[dict[str, str]]:
        return [{"title": title, "state": state} for title, state in self._items.values()]

    def apply_call(self, tool: str, call_id: str, given: dict[str, object]) -> bool:
        """Applies a tool call; True when it changed the list."""
        before = dict(self._items)
        match tool:
            case "TodoWrite":
                self._items.clear()
                for number, entry in enumerate(as_list(given.get("todos"))):
                    todo = as_object(entry)
                    self._put(str(number), todo.get("content"), todo.get("status"))
            case "TaskUpdate":
                self._update(as_text(given.get("taskId")), given)
            case "TaskCreate" | "TaskList" if len(self._pending_calls) < ITEMS_MAX:
                self._pending_calls.add(call_id)
        return self._items != before

    def apply_result(self, call_id: str, result: dict[str, object]) -> bool:
        """Applies the result of a tool call; True when it changed the list."""
        if call_id not in self._pending_calls:
            return False
        self._pending_calls.discard(call_id)
        before = dict(self._items)
        if "tasks" in result:
            self._items.clear()
        for entry in [result.get("task"), *as_list(result.get("tasks"))]:
            task = as_object(entry)
            self._put(as_text(task.get("id")), task.get("subject"), task.get("status"))
        return self._items != before

    def _update(self, number: str, given: dict[str, object]) -> None:
        if number not in self._items:
            return
        title, state = self._items[number]
        if given.get("status") == "deleted":
            del self._items[number]
        else:
            self._put(number, given.get("subject", title), given.get("status", state))

    def _put(self, number: str, title: object, state: object) -> None:
        text = one_line(as_text(title), TITLE_MAX)
        if 0 < len(number) <= ID_MAX and text and (number in self._items or len(self._items) < ITEMS_MAX):
            self._items[number] = (text, state if isinstance(state, str) and state in STATES else "pending")
