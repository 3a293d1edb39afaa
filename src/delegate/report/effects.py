"""What happens outside: announced before it is done, told when it is, looked up by whoever must know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from delegate.errors import Forbidden, IllegalMove, NoSuchTask
from delegate.model import Effect, EffectKind, EffectState, Mode, Runner, Task, TaskId
from delegate.queue.lease_guard import Holder
from delegate.report.record import Standing, renewed
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.attempts import has_attempt_of
from delegate.store.database import Connection, Database
from delegate.store.effects import effects_of, put_effect
from delegate.store.tasks import chain_of, get_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a runner says of an effect of the attempt it holds."""

    kind: EffectKind
    state: EffectState
    target: str
    expected: str | None
    external_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """How a chain of tasks stands outside."""

    state: TaskState
    effects: list[Effect]


async def announce(database: Database, holder: Holder, told: Told, now: datetime) -> tuple[Task, Standing]:
    """Write it down, if the runner still holds the attempt; its lease is renewed with it."""
    return await database.write("effect", lambda connection: _announce(connection, holder, told, now))


async def outside(database: Database, task_id: TaskId, runner: Runner) -> Outside:
    """For a runner of a machine that had an attempt of the task, however long ago."""
    return await database.read(lambda connection: _outside(connection, task_id, runner))


def _announce(connection: Connection, holder: Holder, told: Told, now: datetime) -> tuple[Task, Standing]:
    task, standing = renewed(connection, holder, 0, now)
    if task.mode is Mode.IN_PLACE:
        raise IllegalMove(
            task_id=task.id,
            state=task.state,
            verb="published",
            advice="it works in its user's directory and stays there",
        )
    put_effect(
        connection,
        Effect(
            task_id=task.id,
            kind=told.kind,
            fence=holder.fence,
            state=told.state,
            target=told.target,
            expected=told.expected,
            external_id=told.external_id,
        ),
    )
    return task, standing


def _outside(connection: Connection, task_id: TaskId, runner: Runner) -> Outside:
    task = get_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    # The runners of one machine share a home, and tidy up after one that does not come back.
    if task.machine != runner.machine and not has_attempt_of(connection, task_id, runner):
        raise Forbidden(what="a task of another machine")
    chain = chain_of(connection, task.lineage)
    # A retry that is under way may still adopt what this task has left outside.
    live = [state for _, state in chain if state not in FINAL_TASK_STATES]
    effects = effects_of(connection, [member for member, _ in chain])
    return Outside(state=live[-1] if live else task.state, effects=effects)
