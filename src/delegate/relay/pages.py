"""Tasks as both doors show them: a page of them, or one in full; and the cursors of pages of anything."""

from __future__ import annotations

from collections.abc import Sequence

from delegate.model import TaskId
from delegate.relay.state import Relay
from delegate.relay.views import attempt_view, checkpoint_view, event_view, task_view
from delegate.report import follow
from delegate.states import TaskState
from delegate.wire.basics import TaskStatus
from delegate.wire.tasks import TaskDetail, TaskPage


async def task_page(relay: Relay, status: TaskStatus | None, limit: int, cursor: str | None) -> TaskPage:
    """The newest first; `cursor` is `next` of the page before."""
    rows = await follow.page(relay.database, states=_states(status), before=place_of(cursor), limit=limit)
    shown = [task for _, task in rows]
    around = await follow.surroundings(relay.database, relay.rules, relay.now(), shown)
    return TaskPage(tasks=[task_view(task, around) for task in shown], next=cursor_after("t", rows, limit))


def place_of(cursor: str | None) -> int | None:
    """Where the page before has ended, in the order of what is listed."""
    return None if cursor is None else int(cursor[1:])


def cursor_after(kind: str, rows: Sequence[tuple[int, object]], limit: int) -> str | None:
    """For the page after these rows, each with its place; a letter keeps the cursors of two lists apart."""
    return f"{kind}{rows[-1][0]}" if len(rows) == limit else None


async def task_detail(relay: Relay, task_id: TaskId) -> TaskDetail:
    full = await follow.task_in_full(relay.database, task_id, relay.rules, relay.now())
    return TaskDetail(
        task=task_view(full.task, full.around),
        checkpoint=checkpoint_view(full.checkpoint),
        attempts=[attempt_view(attempt) for attempt in full.attempts],
        events=[event_view(event) for event in full.events],
    )


def _states(status: TaskStatus | None) -> list[TaskState]:
    if status is None:
        return []
    return [TaskState.QUEUED, TaskState.BLOCKED] if status == "queued" else [TaskState(status)]
