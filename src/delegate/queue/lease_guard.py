"""Rejects a runner's request unless it still holds the attempt's lease."""

from __future__ import annotations

from dataclasses import dataclass

from delegate.errors import Forbidden, NoSuchAttempt, StaleFence
from delegate.model import Attempt, AttemptId, SlotId, Task
from delegate.states import AttemptState
from delegate.store.attempts import get_attempt, lock_attempt
from delegate.store.database import Connection
from delegate.store.tasks import get_task, lock_task


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRef:
    """A runner's reference to an attempt, with the fence of its claim."""

    slot_id: SlotId
    attempt_id: AttemptId
    fence: int


def lock_owned_attempt(connection: Connection, lease: LeaseRef) -> Attempt:
    return _check_owner(lock_attempt(connection, lease.attempt_id), lease)


def lock_running_attempt(connection: Connection, lease: LeaseRef) -> Attempt:
    return _check_running(lock_owned_attempt(connection, lease))


def lock_task_of_attempt(connection: Connection, attempt: Attempt) -> Task:
    return _check_fence(lock_task(connection, attempt.task_id), attempt)


def read_held_attempt(connection: Connection, lease: LeaseRef) -> tuple[Task, Attempt]:
    """Read without locks; the caller must not write based on the result."""
    attempt = _check_running(_check_owner(get_attempt(connection, lease.attempt_id), lease))
    return _check_fence(get_task(connection, attempt.task_id), attempt), attempt


def require_written(written: bool, attempt: Attempt) -> None:  # noqa: FBT001  # the result of a guarded write
    if not written:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)


def _check_owner(attempt: Attempt | None, lease: LeaseRef) -> Attempt:
    if attempt is None:
        raise NoSuchAttempt(attempt_id=lease.attempt_id)
    if attempt.slot_id != lease.slot_id:
        raise Forbidden(what="an attempt of another runner")
    if attempt.fence != lease.fence:
        raise StaleFence(attempt_id=attempt.id, fence=lease.fence)
    return attempt


def _check_running(attempt: Attempt) -> Attempt:
    if attempt.state is not AttemptState.RUNNING:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    return attempt


def _check_fence(task: Task | None, attempt: Attempt) -> Task:
    if task is None or task.fence != attempt.fence:
        raise StaleFence(attempt_id=attempt.id, fence=attempt.fence)
    return task
