"""Runner and relay both write checkpoints: what an agent said and did must read the same from either."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from delegate.model import Event, EventKind, TaskId
from delegate.output_tail import CheckpointTail, event_lines, last_lines
from delegate.queue.checkpoints import lines_of_events

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS: list[tuple[EventKind, dict[str, object]]] = [
    (EventKind.SESSION, {"sessionId": "s-1", "model": "opus"}),
    (EventKind.MESSAGE, {"text": "\n".join(f"line {number}" for number in range(60))}),
    (EventKind.MESSAGE, {"text": "red \x1b[31mwords\tand " + "x" * 600}),
    (EventKind.TOOL, {"name": "Edit", "summary": "a.py", "id": "1"}),
    (EventKind.TOOL, {"name": "TodoWrite", "summary": "", "id": "2"}),
    (EventKind.WARNING, {"text": "nobody said that"}),
]


def test_a_checkpoint_tells_the_same_whoever_writes_it() -> None:
    tail = CheckpointTail(is_plain_text=False)
    for kind, data in EVENTS:
        tail.fact(kind, data)
    events = [
        Event(id=number, task_id=TaskId("task-1"), attempt_id=None, kind=kind, at=AT, data=data)
        for number, (kind, data) in enumerate(EVENTS)
    ]

    lines = tail.lines()

    assert lines == lines_of_events(events)
    assert (len(lines), lines[0]) == (50, "line 13")
    assert lines[-2:] == ("[Edit] a.py", "[TodoWrite]")


@pytest.mark.parametrize("kind", sorted(set(EventKind) - {EventKind.MESSAGE, EventKind.TOOL}))
def test_only_what_an_agent_says_and_does_is_retold(kind: EventKind) -> None:
    assert event_lines(kind, {"text": "words", "name": "Edit", "summary": "a.py"}) == []


def test_a_line_is_cut_and_cannot_steer_a_terminal() -> None:
    assert last_lines(["a\x1b[2J\tb\x00\x85", "y" * 501]) == ("a [2J\tb  ", "y" * 500)
