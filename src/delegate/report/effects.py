"""Records effects outside Delegate, such as a push: announced first, then reported as done or abandoned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from delegate.errors import Forbidden, IllegalMove, NoSuchTask
from delegate.model import Effect, EffectKind, EffectState, Mode, RunnerSlot, Task, TaskId
from delegate.queue.lease_guard import LeaseRef
from delegate.report.record import AttemptSignals, renew_lease
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.attempts import has_attempt_of
from delegate.store.database import Connection, Database
from delegate.store.effects import effects_of, put_effect
from delegate.store.tasks import chain_of, get_task


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectReport:
    """A runner's report of an effect of the attempt it holds."""

    kind: EffectKind
    state: EffectState
    target: str
    expected: str | None
    external_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEffects:
    """The state and the effects of a lineage."""

    state: TaskState
    effects: list[Effect]


async def record_effect(
    database: Database, lease: LeaseRef, report: EffectReport, now: datetime
) -> tuple[Task, AttemptSignals]:
    """Record the effect if the runner still holds the attempt, and renew its lease."""
    return await database.write("effect", lambda connection: _record_effect(connection, lease, report, now))


async def read_chain_effects(database: Database, task_id: TaskId, slot: RunnerSlot) -> ChainEffects:
    """Read the effects for a runner whose machine ever held an attempt of the task."""
    return await database.read(lambda connection: _read_chain_effects(connection, task_id, slot))


def _record_effect(
    connection: Connection, lease: LeaseRef, report: EffectReport, now: datetime
) -> tuple[Task, AttemptSignals]:
    task, signals = renew_lease(connection, lease, 0, now)
    if task.mode is Mode.IN_PLACE:
        raise IllegalMove(
            task_id=task.id,
            state=task.state,
            verb="published",
            advice="it runs in the user's directory; only tasks with --worktree or --pr are published",
        )
    put_effect(
        connection,
        Effect(
            task_id=task.id,
            kind=report.kind,
            fence=lease.fence,
            state=report.state,
            target=report.target,
            expected=report.expected,
            external_id=report.external_id,
        ),
    )
    return task, signals


def _read_chain_effects(connection: Connection, task_id: TaskId, slot: RunnerSlot) -> ChainEffects:
    task = get_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    # The runners of one machine share a home, and clean up after runners that do not come back.
    if task.machine != slot.runner.machine and not has_attempt_of(connection, task_id, slot):
        raise Forbidden(what="a task of another machine")
    chain = chain_of(connection, task.lineage)
    # An open retry may still take over the effects of this task.
    live = [state for _, state in chain if state not in FINAL_TASK_STATES]
    effects = effects_of(connection, [member for member, _ in chain])
    return ChainEffects(state=live[-1] if live else task.state, effects=effects)
