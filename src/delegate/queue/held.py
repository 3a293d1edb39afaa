"""The guard before every write of a runner: does it still hold the attempt it speaks of?"""

from __future__ import annotations

from dataclasses import dataclass

from delegate.errors import Forbidden, NoSuchAttempt, StaleFence
from delegate.model import Attempt, AttemptId, RunnerId, Task
from delegate.states import AttemptState
from delegate.store.attempts import lock_attempt
from delegate.store.database import Connection
from delegate.store.tasks import lock_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who says so: a runner, the attempt it means, and the fence it got with it."""

    runner_id: RunnerId
    attempt_id: AttemptId
    fence: int


def known_attempt(connection: Connection, holder: Holder) -> Attempt:
    attempt = lock_attempt(connection, holder.attempt_id)
    if attempt is None:
        raise NoSuchAttempt(attempt_id=holder.attempt_id)
    if attempt.runner_id != holder.runner_id:
        raise Forbidden(what="an attempt of another runner")
    if attempt.fence != holder.fence:
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    return attempt


def held_attempt(connection: Connection, holder: Holder) -> Attempt:
    attempt = known_attempt(connection, holder)
    if attempt.state is not AttemptState.RUNNING:
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    return attempt


def task_held_by(connection: Connection, attempt: Attempt) -> Task:
    task = lock_task(connection, attempt.task_id)
    if task is None or task.fence != attempt.fence:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    return task
