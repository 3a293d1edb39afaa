"""What earlier attempts and tasks of a chain have left for the one that continues it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from delegate.model import AgentName, Attempt, Checkpoint, Effect, Event, EventKind, Mode, OutputChunk, Task
from delegate.store.database import Connection
from delegate.store.effects import effects_of
from delegate.store.events import last_events_of_task, last_output_of_attempt
from delegate.store.results import last_checkpoint
from delegate.store.tasks import chain_of

LINES = 50
LINE_MAX = 500
CHUNKS = 4  # of output that are looked at for its last lines
EVENTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Heritage:
    checkpoint: Checkpoint | None = None
    effects: tuple[Effect, ...] = ()


NOTHING = Heritage()


def heritage_of(connection: Connection, task: Task) -> Heritage:
    """Nothing is looked up for the first attempt of a first task: nearly every claim is one."""
    if task.fence <= 1 and task.lineage == task.id:
        return NOTHING
    chain = [task_id for task_id, _ in chain_of(connection, task.lineage)]
    return Heritage(checkpoint=last_checkpoint(connection, chain), effects=tuple(effects_of(connection, chain)))


def leaves_checkpoint(task: Task) -> bool:
    """A command in a user's directory has nothing that another attempt could go on from."""
    return task.agent != AgentName.SHELL or task.mode is not Mode.IN_PLACE


def checkpoint_of_lost(connection: Connection, task: Task, attempt: Attempt, error: str) -> Checkpoint:
    """What the relay itself knows of an attempt that cannot tell any more."""
    before = heritage_of(connection, task).checkpoint
    if task.agent == AgentName.SHELL:
        tail = lines_of_output(last_output_of_attempt(connection, attempt.id, CHUNKS))
    else:
        events = last_events_of_task(connection, task.id, EVENTS)
        tail = lines_of_events(event for event in events if event.attempt_id == attempt.id)
    return after_loss(before, task, attempt, tail=tail, error=error)


def after_loss(
    before: Checkpoint | None, task: Task, attempt: Attempt, *, tail: tuple[str, ...], error: str
) -> Checkpoint:
    """Pure: branch and commits are as the last one knew them; the runner saves newer work on its own disk."""
    session_id = attempt.session_id or task.session_id
    known = before or Checkpoint()
    goes_on = session_id is not None and known.session_id == session_id
    return replace(
        known,
        session_id=session_id,
        output_tail=tail,
        error=error,
        summary="",
        is_work_done=False,
        usage=known.usage.plus(attempt.usage) if goes_on else attempt.usage,
    )


def lines_of_output(chunks: Sequence[OutputChunk]) -> tuple[str, ...]:
    text = b"".join(chunk.data for chunk in chunks).decode(errors="replace")
    return _last(text.splitlines())


def lines_of_events(events: Iterable[Event]) -> tuple[str, ...]:
    """An agent's output is JSON; what it said and did is in its events."""
    lines: list[str] = []
    for event in events:
        if event.kind is EventKind.MESSAGE:
            lines += str(event.data.get("text", "")).splitlines()
        elif event.kind is EventKind.TOOL:
            lines.append(f"[{event.data.get('name', '')}] {event.data.get('summary', '')}".rstrip())
    return _last(lines)


def _last(lines: Sequence[str]) -> tuple[str, ...]:
    plain = ("".join(c if c.isprintable() or c == "\t" else " " for c in line)[:LINE_MAX] for line in lines[-LINES:])
    return tuple(plain)
