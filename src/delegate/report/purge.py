"""Removes what has leaked into the relay with a task, and says what is beyond its reach."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from delegate.errors import IllegalMove, NoSuchTask
from delegate.model import Actor, EffectKind, EffectState, EventKind, ScheduleId, Task, TaskId
from delegate.states import FINAL_TASK_STATES
from delegate.store.attempts import attempts_of_task
from delegate.store.database import Connection, Database
from delegate.store.effects import effects_of
from delegate.store.events import NewEvent, append_events
from delegate.store.people import record_audit
from delegate.store.purge import purge_linear, purge_texts
from delegate.store.runners import get_runner
from delegate.store.tasks import chain_of, get_task, lock_task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """A purged task, and where its texts may still be."""

    task: Task
    others: tuple[TaskId, ...]  # of its lineage, with the same prompt, that are not purged
    schedule: ScheduleId | None
    branches: tuple[str, ...]
    pull_requests: tuple[str, ...]
    runners: tuple[str, ...]  # their names
    issues: tuple[str, ...] = ()  # in Linear


async def purge(database: Database, task_id: TaskId, by: Actor, now: datetime) -> Purge:
    """Remove the texts of an ended task for good. A repeated call changes nothing."""
    purged = await database.write("purge", lambda connection: _purge(connection, task_id, by, now))
    log.info("task purged", extra={"task_id": task_id})
    return purged


def _purge(connection: Connection, task_id: TaskId, by: Actor, now: datetime) -> Purge:
    task = lock_task(connection, task_id)
    if task is None:
        raise NoSuchTask(task_id=task_id)
    if task.state not in FINAL_TASK_STATES:
        advice = "cancel it with `delegate cancel`, and purge it when it has ended"
        raise IllegalMove(task_id=task_id, state=task.state, verb="purged", advice=advice)
    if purge_texts(connection, task_id, now):
        data: dict[str, object] = {"text": "its texts were purged", **by.event_data}
        append_events(connection, [NewEvent(task_id=task_id, kind=EventKind.WARNING, at=now, data=data)])
        record_audit(connection, by, "purge", task_id, now=now)
    issues = purge_linear(connection, task_id, [member for member, _ in chain_of(connection, task.lineage)])
    return replace(_describe(connection, get_task(connection, task_id) or task), issues=tuple(issues))


def _describe(connection: Connection, task: Task) -> Purge:
    lineage = [get_task(connection, member) for member, _ in chain_of(connection, task.lineage)]
    done = [effect for effect in effects_of(connection, [task.id]) if effect.state is not EffectState.ABANDONED]
    requests = [effect.external_id for effect in done if effect.kind is EffectKind.PULL_REQUEST]
    ran = {attempt.runner_id for attempt in attempts_of_task(connection, task.id) if attempt.runner_id is not None}
    runners = [get_runner(connection, runner_id) for runner_id in sorted(ran)]
    return Purge(
        task=task,
        others=tuple(other.id for other in lineage if other is not None and other.purged_at is None),
        schedule=task.schedule_id,
        branches=tuple(sorted({effect.target for effect in done if effect.kind is EffectKind.PUSH})),
        pull_requests=tuple(sorted({url for url in requests if url is not None})),
        runners=tuple(runner.name for runner in runners if runner is not None),
    )
