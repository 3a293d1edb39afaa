"""Deletes old tasks and schedules, and output above a limit."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Text, cast, delete, func, or_, select

from delegate.schedule.model import FINAL_SCHEDULE_STATES
from delegate.states import FINAL_TASK_STATES
from delegate.store.tables import dependency, output, schedule, schedule_run, task


def drop_ended_before(connection: Connection, cutoff: datetime, limit: int) -> int:
    """Delete ended tasks with everything that belongs to them, except those that an open task depends on or that an
    open schedule names for its next tasks."""
    ended = (task.c.state.in_(FINAL_TASK_STATES), task.c.finished_at < cutoff)
    named = _named_by_schedules(connection)
    # Read enough extra rows to filter in Python: the names could be too many for a query condition.
    query = select(task.c.id).where(*ended, ~_is_needed(), ~_is_awaited()).limit(limit + len(named))
    old = [task_id for task_id in connection.scalars(query) if task_id not in named][:limit]
    return connection.execute(delete(task).where(task.c.id.in_(old))).rowcount if old else 0


def _named_by_schedules(connection: Connection) -> set[str]:
    text = cast(schedule.c.request, Text)
    names_some = or_(text.contains('"dependsOn"'), text.contains('"continueFrom"'))  # most name none
    query = select(schedule.c.request).where(schedule.c.state.not_in(FINAL_SCHEDULE_STATES), names_some)
    named: set[str] = set()
    for request in connection.scalars(query):
        named.update([*request.get("dependsOn", []), request.get("continueFrom") or ""])
    return named


def _is_needed() -> ColumnElement[bool]:
    dependent = task.alias()
    living = (dependent.c.id == dependency.c.task_id, dependent.c.state.not_in(FINAL_TASK_STATES))
    return select(dependency.c.task_id).where(dependency.c.depends_on == task.c.id).where(*living).exists()


def _is_awaited() -> ColumnElement[bool]:
    """Whether it is the last task of a schedule that another one follows."""
    last = (schedule.c.id == task.c.schedule_id, schedule.c.last_task_id == task.c.id)
    return select(schedule.c.id).where(*last, _has_follower()).exists()


def _has_follower() -> ColumnElement[bool]:
    follower = schedule.alias()
    living = (follower.c.after_id == schedule.c.id, follower.c.state.not_in(FINAL_SCHEDULE_STATES))
    return select(follower.c.id).where(*living).exists()


def drop_schedules_ended_before(connection: Connection, cutoff: datetime, limit: int) -> int:
    """Delete ended schedules with their runs, except those that an open schedule follows."""
    ended = (schedule.c.state.in_(FINAL_SCHEDULE_STATES), schedule.c.ended_at < cutoff)
    old = select(schedule.c.id).where(*ended, ~_has_follower()).limit(limit)
    return connection.execute(delete(schedule).where(schedule.c.id.in_(old))).rowcount


def drop_runs_before(connection: Connection, cutoff: datetime, limit: int) -> int:
    """Delete old runs of open schedules whose tasks are deleted. Checks only the `limit` oldest: ids follow age."""
    oldest = select(schedule_run).order_by(schedule_run.c.id).limit(limit).subquery()
    is_kept = select(task.c.id).where(task.c.id == oldest.c.task_id).exists()
    old = select(oldest.c.id).where(oldest.c.at < cutoff, ~is_kept)
    return connection.execute(delete(schedule_run).where(schedule_run.c.id.in_(old))).rowcount


def drop_oldest_output(connection: Connection, excess: int, limit: int) -> int:
    """Delete the output of the tasks that ended first, until `excess` bytes are freed; keep their events."""
    oldest = (
        select(task.c.id, func.sum(output.c.size).label("size"))
        .join(output, output.c.task_id == task.c.id)
        .where(task.c.state.in_(FINAL_TASK_STATES))
        .group_by(task.c.id, task.c.finished_at)
        .order_by(task.c.finished_at)
        .limit(limit)
    )
    ids = []
    for row in connection.execute(oldest):
        if excess <= 0:
            break
        ids.append(row.id)
        excess -= int(row.size)
    connection.execute(delete(output).where(output.c.task_id.in_(ids)))
    return len(ids)


def output_total(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.sum(output.c.size), 0))).scalar_one())
