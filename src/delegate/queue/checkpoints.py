"""Reads and builds checkpoints: what an attempt leaves for the one that continues it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from delegate.model import AgentName, Attempt, Checkpoint, Effect, Event, Outcome, OutputChunk, Task, TaskId, Usage
from delegate.output_tail import event_lines, last_lines
from delegate.states import AttemptState, Reason
from delegate.store.database import Connection
from delegate.store.effects import effects_of
from delegate.store.events import last_events_of_task, last_output_of_attempt
from delegate.store.results import last_checkpoint
from delegate.store.tasks import chain_of, get_task

TAIL_CHUNKS = 4  # of output that are searched for its last lines
TAIL_EVENTS = 200
# The reasons of tasks whose agent finished its work, whatever happened to it then.
WORK_DONE = {Reason.DONE, Reason.CHECKS_FAILED, Reason.POLICY_DENIED, Reason.PUSH_REJECTED, Reason.PR_REJECTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedTask:
    """The task that another one continues, and its checkpoint."""

    task: Task
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    checkpoint: Checkpoint | None = None
    effects: tuple[Effect, ...] = ()
    continued_task: ContinuedTask | None = None
    summaries: tuple[str, ...] = ()  # of the work of earlier tasks of the lineage, oldest first
    usage: Usage = Usage()  # of all earlier attempts of the lineage


NO_CONTINUATION = Continuation()


def read_continuation(connection: Connection, task: Task) -> Continuation:
    """Read what the next attempt continues; no query for the first attempt of a new lineage, the usual claim."""
    continued_task = None if task.continue_from is None else _read_continued_task(connection, task.continue_from)
    if task.fence <= 1 and task.lineage == task.id:
        return NO_CONTINUATION if continued_task is None else Continuation(continued_task=continued_task)
    chain = [task_id for task_id, _ in chain_of(connection, task.lineage)]
    tasks = [one for one in (get_task(connection, task_id) for task_id in chain) if one is not None]
    return Continuation(
        checkpoint=last_checkpoint(connection, chain),
        effects=tuple(effects_of(connection, chain)),
        continued_task=continued_task,
        summaries=tuple(one.result.summary for one in tasks if one.reason in WORK_DONE and one.result is not None),
        usage=reduce(Usage.plus, (one.usage for one in tasks), Usage()),
    )


def _read_continued_task(connection: Connection, task_id: TaskId) -> ContinuedTask | None:
    task = get_task(connection, task_id)
    return None if task is None else ContinuedTask(task=task, checkpoint=last_checkpoint(connection, [task_id]))


def with_checkpoint(connection: Connection, task: Task, attempt: Attempt, outcome: Outcome) -> Outcome:
    """Every finished attempt gets a checkpoint; a parked attempt keeps the previous one."""
    if outcome.checkpoint is not None or outcome.state is AttemptState.RELEASED:
        return outcome
    error = None if outcome.state is AttemptState.COMPLETED else outcome.message
    ended = replace(attempt, usage=outcome.usage, session_id=outcome.session_id or attempt.session_id)
    return replace(outcome, checkpoint=build_relay_checkpoint(connection, task, ended, error))


def build_relay_checkpoint(connection: Connection, task: Task, attempt: Attempt, error: str | None) -> Checkpoint:
    """Build a checkpoint from the relay's own data, for an attempt whose runner sent none."""
    before = read_continuation(connection, task).checkpoint
    if task.agent == AgentName.SHELL:
        tail = lines_of_output(last_output_of_attempt(connection, attempt.id, TAIL_CHUNKS))
    else:
        events = last_events_of_task(connection, task.id, TAIL_EVENTS)
        tail = lines_of_events(event for event in events if event.attempt_id == attempt.id)
    return carry_over_checkpoint(before, task, attempt, tail=tail, error=error)


def carry_over_checkpoint(
    before: Checkpoint | None, task: Task, attempt: Attempt, *, tail: tuple[str, ...], error: str | None
) -> Checkpoint:
    """Pure: keep branch and commits of the previous checkpoint; newer work is saved on the runner's disk."""
    session_id = attempt.session_id or task.session_id
    known = before or Checkpoint()
    is_same_session = session_id is not None and known.session_id == session_id
    return replace(
        known,
        session_id=session_id,
        dirty_files=None,
        output_tail=tail,
        error=error,
        summary="",
        is_work_done=False,
        usage=known.usage.plus(attempt.usage) if is_same_session else attempt.usage,
    )


def lines_of_output(chunks: Sequence[OutputChunk]) -> tuple[str, ...]:
    text = b"".join(chunk.data for chunk in chunks).decode(errors="replace")
    return last_lines(text.splitlines())


def lines_of_events(events: Iterable[Event]) -> tuple[str, ...]:
    return last_lines([line for event in events for line in event_lines(event.kind, event.data)])
