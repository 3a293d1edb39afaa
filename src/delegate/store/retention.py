"""Deletes old tasks and schedules, and output above a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate

from sqlalchemy import ColumnElement, Connection, FromClause, Text, cast, delete, func, or_, select

from delegate.model import TaskId
from delegate.schedule.model import FINAL_SCHEDULE_STATES
from delegate.states import FINAL_TASK_STATES
from delegate.store.graph import in_batches
from delegate.store.tables import dependency, output, schedule, schedule_run, task

LINEAGE = func.coalesce(task.c.lineage, task.c.id)


def drop_ended_before(connection: Connection, cutoff: datetime, limit: int) -> int:
    """Delete ended lineages with everything that belongs to their tasks, except those with a task that an open task
    depends on or that an open schedule names for its next tasks. Returns the number of tasks."""
    ended = (task.c.state.in_(FINAL_TASK_STATES), task.c.finished_at < cutoff)
    named = _with_lineages(connection, _named_by_schedules(connection))
    # Read enough extra rows to filter in Python: the names could be too many for a query condition.
    query = select(task.c.id, LINEAGE.label("lineage")).where(*ended, ~_has_kept_member(cutoff))
    rows = connection.execute(query.limit(limit + len(named)))
    old = list(dict.fromkeys(row.lineage for row in rows if row.id not in named))[:limit]
    old = _first_of(connection, old, limit)
    return sum(connection.execute(delete(task).where(one)).rowcount for one in _members_of(old))


def _first_of(connection: Connection, lineages: Sequence[str], limit: int) -> list[str]:
    """Return the first of these lineages: as many as have `limit` tasks together, but at least one."""
    sizes = Counter(name for one in _members_of(lineages) for name in connection.scalars(select(LINEAGE).where(one)))
    totals = accumulate(sizes[name] for name in lineages)
    return [name for at, (name, total) in enumerate(zip(lineages, totals, strict=True)) if at == 0 or total <= limit]


def _members_of(lineages: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    """Return two conditions, not an OR, for which a planner would scan all tasks."""
    return task.c.lineage.in_(lineages), task.c.id.in_(lineages)


def _with_lineages(connection: Connection, ids: set[TaskId]) -> set[TaskId]:
    """Return these tasks and all others of their lineages."""
    found: set[TaskId] = set()
    for some in in_batches(sorted(ids)):
        lineages = connection.scalars(select(LINEAGE).where(task.c.id.in_(some))).all()
        for members in _members_of(lineages):
            found.update(connection.scalars(select(task.c.id).where(members)))
    return found


def _has_kept_member(cutoff: datetime) -> ColumnElement[bool]:
    """Whether the lineage of a task must stay: a retry needs the checkpoints and the effects of those before it."""
    first, later = task.alias(), task.alias()
    kept = [(first, first.c.id == LINEAGE), (later, later.c.lineage == LINEAGE)]
    return or_(*(select(one.c.id).where(is_member, _is_kept(one, cutoff)).exists() for one, is_member in kept))


def _is_kept(one: FromClause, cutoff: datetime) -> ColumnElement[bool]:
    is_young = or_(one.c.state.not_in(FINAL_TASK_STATES), one.c.finished_at >= cutoff)
    return or_(is_young, _is_needed(one), _is_awaited(one))


def _named_by_schedules(connection: Connection) -> set[TaskId]:
    text = cast(schedule.c.request, Text)
    names_some = or_(text.contains('"dependsOn"'), text.contains('"continueFrom"'))  # most name none
    query = select(schedule.c.request).where(schedule.c.state.not_in(FINAL_SCHEDULE_STATES), names_some)
    named: set[TaskId] = set()
    for request in connection.scalars(query):
        named.update(map(TaskId, [*request.get("dependsOn", []), request.get("continueFrom") or ""]))
    return named


def _is_needed(one: FromClause) -> ColumnElement[bool]:
    dependent = task.alias()
    living = (dependent.c.id == dependency.c.task_id, dependent.c.state.not_in(FINAL_TASK_STATES))
    return select(dependency.c.task_id).where(dependency.c.depends_on == one.c.id).where(*living).exists()


def _is_awaited(one: FromClause) -> ColumnElement[bool]:
    """Whether it is the last task of a schedule that another one follows."""
    last = (schedule.c.id == one.c.schedule_id, schedule.c.last_task_id == one.c.id)
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
    """Delete old runs of open schedules whose tasks are deleted."""
    is_kept = select(task.c.id).where(task.c.id == schedule_run.c.task_id).exists()
    old = select(schedule_run.c.id).where(schedule_run.c.at < cutoff, ~is_kept).limit(limit)
    return connection.execute(delete(schedule_run).where(schedule_run.c.id.in_(old))).rowcount


def drop_runs_above(connection: Connection, count: int, limit: int) -> int:
    """Delete old ended runs of schedules that have more than `count`."""
    many = select(schedule_run.c.schedule_id).group_by(schedule_run.c.schedule_id).having(func.count() > count)
    dropped = 0
    for schedule_id in connection.scalars(many).all():
        mine = schedule_run.c.schedule_id == schedule_id
        newest = select(schedule_run.c.id).where(mine).order_by(schedule_run.c.occurrence.desc()).limit(count)
        old = (mine, schedule_run.c.id.not_in(newest), schedule_run.c.finished_at.isnot(None))
        some = select(schedule_run.c.id).where(*old).limit(limit - dropped)
        dropped += connection.execute(delete(schedule_run).where(schedule_run.c.id.in_(some))).rowcount
    return dropped


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
