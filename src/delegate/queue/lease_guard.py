"""The guard before every word with a runner: does it still hold the attempt it speaks of?"""

from __future__ import annotations

from dataclasses import dataclass

from delegate.errors import Forbidden, NoSuchAttempt, StaleFence
from delegate.model import Attempt, AttemptId, RunnerId, Task
from delegate.states import AttemptState
from delegate.store.attempts import get_attempt, lock_attempt
from delegate.store.database import Connection
from delegate.store.tasks import get_task, lock_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who says so: a runner, the attempt it means, and the fence it got with it."""

    runner_id: RunnerId
    attempt_id: AttemptId
    fence: int


def known_attempt(connection: Connection, holder: Holder) -> Attempt:
    return _known(lock_attempt(connection, holder.attempt_id), holder)


def held_attempt(connection: Connection, holder: Holder) -> Attempt:
    return _running(known_attempt(connection, holder))


def task_held_by(connection: Connection, attempt: Attempt) -> Task:
    return _same_fence(lock_task(connection, attempt.task_id), attempt)


def look_at_held(connection: Connection, holder: Holder) -> tuple[Task, Attempt]:
    """For who only reads: nothing is locked, and nothing may be written because of it."""
    attempt = _running(_known(get_attempt(connection, holder.attempt_id), holder))
    return _same_fence(get_task(connection, attempt.task_id), attempt), attempt


def must(written: bool, attempt: Attempt) -> None:  # noqa: FBT001  # what a guarded write says of itself
    if not written:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)


def _known(attempt: Attempt | None, holder: Holder) -> Attempt:
    if attempt is None:
        raise NoSuchAttempt(attempt_id=holder.attempt_id)
    if attempt.runner_id != holder.runner_id:
        raise Forbidden(what="an attempt of another runner")
    if attempt.fence != holder.fence:
        raise StaleFence(attempt_id=attempt.id, fence=holder.fence)
    return attempt


def _running(attempt: Attempt) -> Attempt:
    if attempt.state is not AttemptState.RUNNING:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    return attempt


def _same_fence(task: Task | None, attempt: Attempt) -> Task:
    if task is None or task.fence != attempt.fence:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    return task
