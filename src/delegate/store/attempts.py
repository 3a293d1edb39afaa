"""Queries on attempts and their leases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    and_,
    bindparam,
    false,
    func,
    insert,
    or_,
    select,
    true,
    type_coerce,
    update,
)

from delegate.model import AgentName, Attempt, AttemptId, Outcome, RunnerId, RunnerSlot, SlotId, TaskId, Usage
from delegate.states import AttemptState, Reason
from delegate.store.tables import MICROSECOND, attempt, from_row, has_state, runner, runner_slot, task

# Used by every claim and report. With bound parameters, SQLAlchemy builds and hashes each statement only once.
INSERT = insert(attempt)
OF_ID = select(attempt).where(attempt.c.id == bindparam("which"))
LOCKED = OF_ID.with_for_update()
HELD = update(attempt).where(
    attempt.c.id == bindparam("which"),
    has_state(attempt, AttemptState.RUNNING),
    attempt.c.fence == bindparam("held_fence"),
)
OF_CLAIM = select(attempt).where(attempt.c.claim_id == bindparam("claim"))
RUNNING = select(attempt).where(has_state(attempt, AttemptState.RUNNING)).order_by(attempt.c.started_at)
# Not a join: with old statistics, a planner would start from all tasks at every claim.
LANE = select(task.c.lane).where(task.c.id == attempt.c.task_id).scalar_subquery()
EXPIRED = (
    select(attempt, LANE.label("lane"))
    .where(
        has_state(attempt, AttemptState.RUNNING),
        attempt.c.renewed_at <= bindparam("silent_since", type_=attempt.c.renewed_at.type),
    )
    .order_by(attempt.c.renewed_at)
)
EXPIRED_LOCKED = EXPIRED.with_for_update(skip_locked=True, of=attempt)
HELD_WORK = select(
    attempt.c.runner_id,
    attempt.c.slot_id,
    attempt.c.renewed_at,
    attempt.c.session_id,
    attempt.c.output_bytes,
    attempt.c.next_seq,
    select(task.c.agent).where(task.c.id == attempt.c.task_id).scalar_subquery().label("agent"),
).where(has_state(attempt, AttemptState.RUNNING))
BUDGET_LOCK = 814251  # any number that no other advisory lock uses


def insert_attempt(connection: Connection, new: Attempt, *, ask_hash: str | None = None) -> None:
    row = {
        "id": new.id,
        "task_id": new.task_id,
        "slot_id": new.slot_id,
        "runner_id": new.runner_id,
        "claim_id": new.claim_id,
        "fence": new.fence,
        "number": new.number,
        "state": new.state,
        "started_at": new.started_at,
        "renewed_at": new.renewed_at,
        "messages_seen": new.messages_seen,
        "budget_usd": new.budget_usd,
        "ask_hash": ask_hash,
    }
    connection.execute(INSERT, row)


def get_attempt(connection: Connection, attempt_id: AttemptId) -> Attempt | None:
    row = connection.execute(OF_ID, {"which": attempt_id}).one_or_none()
    return None if row is None else to_attempt(row)


def lock_attempt(connection: Connection, attempt_id: AttemptId) -> Attempt | None:
    row = connection.execute(LOCKED, {"which": attempt_id}).one_or_none()
    return None if row is None else to_attempt(row)


def attempt_of_claim(connection: Connection, claim_id: str) -> Attempt | None:
    row = connection.execute(OF_CLAIM, {"claim": claim_id}).one_or_none()
    return None if row is None else to_attempt(row)


def attempts_of_task(connection: Connection, task_id: TaskId) -> list[Attempt]:
    rows = connection.execute(select(attempt).where(attempt.c.task_id == task_id).order_by(attempt.c.fence))
    return [to_attempt(row) for row in rows]


def has_attempt_of(connection: Connection, task_id: TaskId, one: RunnerSlot) -> bool:
    """Whether this slot, or a runner of its machine, had an attempt of the task."""
    neighbours = select(runner.c.id).where(runner.c.machine == one.runner.machine)
    by = or_(attempt.c.slot_id == one.id, attempt.c.runner_id.in_(neighbours))
    query = select(attempt.c.id).where(attempt.c.task_id == task_id, by)
    return connection.execute(query.limit(1)).first() is not None


def last_attempt_of(connection: Connection, runner_id: RunnerId) -> Attempt | None:
    """Return the attempt of this runner that ended last."""
    ended = (attempt.c.runner_id == runner_id, attempt.c.finished_at.is_not(None))
    query = select(attempt).where(*ended).order_by(attempt.c.finished_at.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else to_attempt(row)


def attempts_held_by(connection: Connection, runner_id: RunnerId, *, for_update: bool = False) -> list[Attempt]:
    """Return what the slots of a runner hold."""
    slots = select(runner_slot.c.id).where(runner_slot.c.runner_id == runner_id)
    query = RUNNING.where(attempt.c.slot_id.in_(slots))
    rows = connection.execute(query.with_for_update(of=attempt) if for_update else query)
    return [to_attempt(row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWork:
    """A running attempt, as far as the state of its runner depends on it."""

    runner_id: RunnerId
    renewed_at: datetime
    has_begun: bool  # its agent has a session or has written something; a command has been started


def held_work(connection: Connection) -> list[HeldWork]:
    return [
        HeldWork(
            runner_id=RunnerId(row.runner_id or row.slot_id),
            renewed_at=row.renewed_at,
            has_begun=row.session_id is not None
            or row.output_bytes > 0
            or (row.next_seq > 0 and row.agent == AgentName.SHELL),
        )
        for row in connection.execute(HELD_WORK)
    ]


def running_attempts(connection: Connection, slot_id: SlotId | None = None) -> list[Attempt]:
    query = RUNNING if slot_id is None else RUNNING.where(attempt.c.slot_id == slot_id)
    return [to_attempt(row) for row in connection.execute(query)]


def expired_attempts(connection: Connection, silent_since: datetime, covers: Callable[[str], bool]) -> list[Attempt]:
    """Lock and return attempts not renewed since then, of tasks in lanes that `covers` accepts; skips rows that another
    relay has locked. They are few: one per process that went silent within a day."""
    rows = connection.execute(EXPIRED_LOCKED, {"silent_since": silent_since})
    return [to_attempt(row) for row in rows if covers(row.lane)]


def has_expired_attempt(connection: Connection, silent_since: datetime, covers: Callable[[str], bool]) -> bool:
    """Whether there are such attempts; locks nothing."""
    return any(covers(row.lane) for row in connection.execute(EXPIRED, {"silent_since": silent_since}))


def abandoned_attempts(connection: Connection, *, silent_since: datetime, given_up_since: datetime) -> list[Attempt]:
    """Lock and return attempts not renewed since `given_up_since`, or since `silent_since` if the slot is not
    registered or the task is to be cancelled; and all attempts of revoked runners."""
    is_silent = attempt.c.renewed_at <= silent_since
    is_unknown = ~select(runner_slot.c.id).where(runner_slot.c.id == attempt.c.slot_id).exists()
    is_revoked = (
        select(runner.c.id).where(runner.c.id == attempt.c.runner_id, runner.c.revoked_at.is_not(None)).exists()
    )
    unwanted = (task.c.id == attempt.c.task_id, task.c.cancel_requested_at.is_not(None))
    is_unwanted = select(task.c.id).where(*unwanted).exists()
    query = (
        select(attempt)
        .where(
            has_state(attempt, AttemptState.RUNNING),
            or_(attempt.c.renewed_at <= given_up_since, is_revoked, and_(is_silent, or_(is_unknown, is_unwanted))),
        )
        .with_for_update(skip_locked=True, of=attempt)
    )
    return [to_attempt(row) for row in connection.execute(query)]


def renew_attempt(connection: Connection, held: Attempt, *, messages_seen: int, now: datetime) -> bool:
    seen = max(held.messages_seen, messages_seen)
    return _update_held(connection, held, renewed_at=now, is_extended=False, messages_seen=seen)


def renew_all(connection: Connection, *, good_at: datetime, now: datetime, excused: timedelta) -> int:
    """Renew every lease that its runner last renewed at or after `good_at`: at most once until the runner renews it.
    Later, only the `excused` time does not count."""
    is_running = has_state(attempt, AttemptState.RUNNING)
    good = (is_running, attempt.c.renewed_at >= good_at, attempt.c.is_extended.is_(false()))
    if excused > timedelta():
        later = type_coerce(attempt.c.renewed_at, BigInteger) + excused // MICROSECOND
        again = (is_running, attempt.c.is_extended.is_(true()))
        connection.execute(update(attempt).where(*again).values(renewed_at=later))
    return connection.execute(update(attempt).where(*good).values(renewed_at=now, is_extended=True)).rowcount


def pull_back_leases(connection: Connection, now: datetime) -> None:
    ahead = (has_state(attempt, AttemptState.RUNNING), attempt.c.renewed_at > now)
    connection.execute(update(attempt).where(*ahead).values(renewed_at=now))


def advance_attempt(
    connection: Connection, held: Attempt, *, next_seq: int, output_bytes: int, truncated_bytes: int, now: datetime
) -> bool:
    return _update_held(
        connection,
        held,
        next_seq=next_seq,
        output_bytes=output_bytes,
        truncated_bytes=truncated_bytes,
        renewed_at=now,
        is_extended=False,
    )


def last_message_seen(connection: Connection, task_id: TaskId) -> int:
    """Return the last message that any attempt of the task received: a resumed session contains it."""
    seen = select(func.coalesce(func.max(attempt.c.messages_seen), 0)).where(attempt.c.task_id == task_id)
    return int(connection.execute(seen).scalar_one())


def keep_usage(connection: Connection, held: Attempt, usage: Usage) -> None:
    """Store the usage so far, which counts even if the attempt is lost."""
    _update_held(connection, held, usage=asdict(usage), cost_usd=usage.cost_usd)


def keep_session(connection: Connection, held: Attempt, session_id: str) -> None:
    _update_held(connection, held, session_id=session_id)


def end_attempt_if_held(connection: Connection, held: Attempt, outcome: Outcome, now: datetime) -> bool:
    return _update_held(
        connection,
        held,
        state=outcome.state,
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
        session_id=outcome.session_id or held.session_id,
        messages_seen=held.messages_seen,
        usage=asdict(outcome.usage),
        cost_usd=outcome.usage.cost_usd,
        finished_at=now,
    )


def _update_held(connection: Connection, held: Attempt, **values: object) -> bool:
    """False: the attempt is not running, or not with this fence."""
    return connection.execute(HELD, {"which": held.id, "held_fence": held.fence, **values}).rowcount == 1


def spent_since(connection: Connection, since: datetime) -> float:
    ended = select(func.coalesce(func.sum(attempt.c.cost_usd), 0.0)).where(attempt.c.finished_at >= since)
    return float(connection.execute(ended).scalar_one())


def lock_budget(connection: Connection) -> None:
    """Let one claim at a time read and reserve the budget. SQLite has only one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(BUDGET_LOCK)))


def reserved_budget(connection: Connection) -> float:
    query = select(func.coalesce(func.sum(attempt.c.budget_usd), 0.0)).where(has_state(attempt, AttemptState.RUNNING))
    return float(connection.execute(query).scalar_one())


def to_attempt(row: Row[Any]) -> Attempt:
    return from_row(
        Attempt,
        row,
        runner_id=RunnerId(row.runner_id or row.slot_id),
        state=AttemptState(row.state),
        reason=None if row.reason is None else Reason(row.reason),
        usage=Usage(**row.usage),
    )
