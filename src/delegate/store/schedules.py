"""Queries on schedules and their runs; the caller owns the transaction."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Row, and_, delete, func, insert, select, update

from delegate.model import ScheduleId, Task, TaskId
from delegate.schedule.model import MissedRunPolicy, RunOutcome, Schedule, ScheduleRun, ScheduleState, Timing
from delegate.store.tables import from_row, has_state, schedule, schedule_run

OPEN_SCHEDULE_STATES = (ScheduleState.ACTIVE, ScheduleState.PAUSED)
LAST_OUTCOME = (
    select(schedule_run.c.outcome)
    .where(schedule_run.c.schedule_id == schedule.c.id)
    .order_by(schedule_run.c.occurrence.desc())
    .limit(1)
    .scalar_subquery()
)
# A subquery, not a column: otherwise the end of a task would have to lock the schedule, too.
SCHEDULES = select(schedule, LAST_OUTCOME.label("last_outcome"))


def insert_schedule(connection: Connection, new: Schedule, *, trigger_key: str | None) -> None:
    timing = new.timing
    connection.execute(
        insert(schedule).values(
            id=new.id,
            trigger_key=trigger_key,
            state=new.state,
            cron=timing.cron,
            at=timing.at,
            timezone=timing.timezone,
            missed_run_policy=timing.missed_run_policy,
            max_runs=timing.max_runs,
            expires_at=timing.expires_at,
            after_id=timing.after,
            delay_ms=timing.delay // timedelta(milliseconds=1),
            pipeline=new.pipeline,
            request=new.request,
            next_run_at=new.next_run_at,
            reckoned_at=new.reckoned_at,
            created_at=new.created_at,
            created_by=new.created_by,
        )
    )


def get_schedule(connection: Connection, schedule_id: ScheduleId) -> Schedule | None:
    row = connection.execute(SCHEDULES.where(schedule.c.id == schedule_id)).one_or_none()
    return None if row is None else to_schedule(row)


def lock_schedule(connection: Connection, schedule_id: ScheduleId) -> Schedule | None:
    """Lock the schedule until the transaction ends, so that a decision based on it stays valid."""
    row = connection.execute(SCHEDULES.where(schedule.c.id == schedule_id).with_for_update()).one_or_none()
    return None if row is None else to_schedule(row)


def lock_due(connection: Connection, schedule_id: ScheduleId, now: datetime) -> Schedule | None:
    """Lock and return the schedule if it is still due and no other relay has locked it."""
    is_due = (has_state(schedule, ScheduleState.ACTIVE), schedule.c.next_run_at <= now)
    query = SCHEDULES.where(schedule.c.id == schedule_id, *is_due)
    row = connection.execute(query.with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else to_schedule(row)


def schedule_of_trigger(connection: Connection, trigger_key: str) -> Schedule | None:
    row = connection.execute(SCHEDULES.where(schedule.c.trigger_key == trigger_key)).one_or_none()
    return None if row is None else to_schedule(row)


def next_due(connection: Connection, *, limit: int) -> list[tuple[ScheduleId, datetime]]:
    """Return the schedules that are due first, now or later, with their times."""
    query = select(schedule.c.id, schedule.c.next_run_at).where(
        has_state(schedule, ScheduleState.ACTIVE), schedule.c.next_run_at.isnot(None)
    )
    rows = connection.execute(query.order_by(schedule.c.next_run_at).limit(limit))
    return [(ScheduleId(row.id), row.next_run_at) for row in rows]


def lock_reckoned_after(connection: Connection, now: datetime, *, limit: int) -> list[Schedule]:
    """Lock and return active schedules whose next run was computed before the clock was set back."""
    query = SCHEDULES.where(has_state(schedule, ScheduleState.ACTIVE), schedule.c.reckoned_at > now)
    rows = connection.execute(query.order_by(schedule.c.seq).limit(limit).with_for_update())
    return [to_schedule(row) for row in rows]


def lock_ended_after(connection: Connection, now: datetime, *, limit: int) -> list[Schedule]:
    """Lock and return schedules that the clock ended at a time that is still to come, the followed before others."""
    query = SCHEDULES.where(schedule.c.reopens_as.isnot(None), schedule.c.ended_at > now)
    rows = connection.execute(query.order_by(schedule.c.seq).limit(limit).with_for_update())
    return [to_schedule(row) for row in rows]


def move_schedule(connection: Connection, moved: Schedule, *, was: ScheduleState) -> bool:
    """Write a changed schedule if it is still in state `was`."""
    result = connection.execute(
        update(schedule)
        .where(schedule.c.id == moved.id, has_state(schedule, was))
        .values(
            state=moved.state,
            runs=moved.runs,
            next_run_at=moved.next_run_at,
            reckoned_at=moved.reckoned_at,
            last_run_at=moved.last_run_at,
            last_task_id=moved.last_task_id,
            ended_at=moved.ended_at,
            message=moved.message,
            reopens_as=moved.reopens_as,
        )
    )
    return result.rowcount == 1


def page_of_schedules(
    connection: Connection, *, state: ScheduleState | None, before: int | None, limit: int
) -> list[tuple[int, Schedule]]:
    """Return the newest first, each with its sequence number, the cursor of the next page."""
    query = SCHEDULES.order_by(schedule.c.seq.desc()).limit(limit)
    if state is not None:
        query = query.where(has_state(schedule, state))
    if before is not None:
        query = query.where(schedule.c.seq < before)
    return [(row.seq, to_schedule(row)) for row in connection.execute(query)]


def steps_of_pipeline(connection: Connection, pipeline: ScheduleId) -> list[Schedule]:
    """Return the steps in order. Each is found from the previous one: there is no index on the pipeline."""
    first = get_schedule(connection, pipeline)
    steps = [] if first is None else [first]
    while steps:
        query = SCHEDULES.where(schedule.c.after_id == steps[-1].id, schedule.c.pipeline == pipeline)
        following = connection.execute(query).one_or_none()
        if following is None:
            break
        steps.append(to_schedule(following))
    return steps


def insert_run(connection: Connection, run: ScheduleRun) -> None:
    connection.execute(insert(schedule_run).values(**asdict(run)))


def add_to_overlapped_run(connection: Connection, run: ScheduleRun) -> bool:
    """Count a run that overlaps the same task as an earlier one in that one's row; False if it is the first."""
    changed = connection.execute(
        update(schedule_run)
        .where(
            schedule_run.c.schedule_id == run.schedule_id,
            schedule_run.c.outcome == RunOutcome.OVERLAPPED,
            schedule_run.c.message == run.message,  # names the task
        )
        .values(missed=schedule_run.c.missed + run.missed + 1, finished_at=run.finished_at)
    )
    return changed.rowcount > 0


def has_run(connection: Connection, schedule_id: ScheduleId, occurrence: datetime) -> bool:
    query = select(schedule_run.c.id).where(
        schedule_run.c.schedule_id == schedule_id, schedule_run.c.occurrence == occurrence
    )
    return connection.scalar(query) is not None


def runs_ahead(connection: Connection, schedule_id: ScheduleId, now: datetime) -> set[datetime]:
    """Return future times that already have a run, from before the clock was set back."""
    query = select(schedule_run.c.occurrence).where(
        schedule_run.c.schedule_id == schedule_id, schedule_run.c.occurrence > now
    )
    return set(connection.scalars(query))


def drop_misses_ahead(connection: Connection, schedule_id: ScheduleId, now: datetime) -> None:
    """Delete missed runs in the future, recorded before the clock was set back."""
    connection.execute(
        delete(schedule_run).where(
            schedule_run.c.schedule_id == schedule_id,
            schedule_run.c.occurrence > now,
            schedule_run.c.outcome == RunOutcome.MISSED,
        )
    )


def drop_misses_recorded_after(connection: Connection, schedule_id: ScheduleId, now: datetime) -> datetime | None:
    """Delete missed runs that were recorded at a time that is still to come; return the first of their due times."""
    dropped = connection.scalars(
        delete(schedule_run)
        .where(
            schedule_run.c.schedule_id == schedule_id,
            schedule_run.c.at > now,
            schedule_run.c.outcome == RunOutcome.MISSED,
        )
        .returning(schedule_run.c.occurrence)
    )
    return min(dropped, default=None)


def runs_of_schedule(connection: Connection, schedule_id: ScheduleId, *, limit: int) -> list[ScheduleRun]:
    """Return the latest runs first."""
    query = select(schedule_run).where(schedule_run.c.schedule_id == schedule_id)
    rows = connection.execute(query.order_by(schedule_run.c.occurrence.desc()).limit(limit))
    return [to_run(row) for row in rows]


def lock_run_of_task(connection: Connection, task_id: TaskId) -> ScheduleRun | None:
    """Lock and return the run that created a task, so that no other transaction ends it."""
    row = connection.execute(
        select(schedule_run).where(schedule_run.c.task_id == task_id).with_for_update()
    ).one_or_none()
    return None if row is None else to_run(row)


def end_run(connection: Connection, task: Task, outcome: RunOutcome, now: datetime) -> ScheduleId | None:
    """Write the outcome of the run that created a task; returns its schedule, or None if no open run created it."""
    found: str | None = connection.scalar(
        update(schedule_run)
        .where(schedule_run.c.task_id == task.id, schedule_run.c.outcome == RunOutcome.STARTED)
        .values(outcome=outcome, reason=task.reason, message=task.message, finished_at=now)
        .returning(schedule_run.c.schedule_id)
    )
    return None if found is None else ScheduleId(found)


def lock_waiting_for(connection: Connection, schedule_id: ScheduleId) -> list[Schedule]:
    """Lock and return one-time schedules, active or paused, that wait for a run of this one."""
    query = SCHEDULES.where(schedule.c.after_id == schedule_id, _waits(schedule))
    return [to_schedule(row) for row in connection.execute(query.with_for_update())]


def _waits(table: FromClause) -> ColumnElement[bool]:
    """Whether it waits for the run of another schedule and has no time yet."""
    follows = and_(table.c.after_id.isnot(None), table.c.cron.is_(None))
    return and_(follows, table.c.state.in_(OPEN_SCHEDULE_STATES), table.c.next_run_at.is_(None))


def count_waiting_with(connection: Connection, schedule_id: ScheduleId) -> int:
    """Count the schedules that wait, directly or not, for the same run as a new follower of this one would."""
    one = select(schedule.c.id, schedule.c.after_id, _waits(schedule).label("waits"))
    line = one.where(schedule.c.id == schedule_id).cte("line", recursive=True)
    line = line.union_all(one.join(line, schedule.c.id == line.c.after_id).where(line.c.waits))
    crowd = select(line.c.id, line.c.waits).cte("crowd", recursive=True)
    waiting = select(schedule.c.id, _waits(schedule)).where(_waits(schedule))
    crowd = crowd.union(waiting.join(crowd, schedule.c.after_id == crowd.c.id))
    return connection.execute(select(func.count()).select_from(crowd).where(crowd.c.waits)).scalar_one()


def lock_expired(connection: Connection, now: datetime, *, limit: int) -> list[Schedule]:
    """Lock and return schedules that expired without a due time: they waited for another, or were paused."""
    waits = (has_state(schedule, ScheduleState.ACTIVE), schedule.c.next_run_at.is_(None))
    waiting = SCHEDULES.where(*waits, schedule.c.expires_at <= now)
    paused = SCHEDULES.where(has_state(schedule, ScheduleState.PAUSED), schedule.c.expires_at <= now)
    found = (connection.execute(one.limit(limit).with_for_update(skip_locked=True)) for one in (waiting, paused))
    return [to_schedule(row) for rows in found for row in rows]


def to_schedule(row: Row[Any]) -> Schedule:
    timing = from_row(
        Timing,
        row,
        missed_run_policy=MissedRunPolicy(row.missed_run_policy),
        after=row.after_id,
        delay=timedelta(milliseconds=row.delay_ms),
    )
    return from_row(
        Schedule,
        row,
        state=ScheduleState(row.state),
        timing=timing,
        last_outcome=None if row.last_outcome is None else RunOutcome(row.last_outcome),
        reopens_as=None if row.reopens_as is None else ScheduleState(row.reopens_as),
    )


def to_run(row: Row[Any]) -> ScheduleRun:
    return from_row(ScheduleRun, row, outcome=RunOutcome(row.outcome))
