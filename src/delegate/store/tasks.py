"""Queries on tasks; the caller owns the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Row,
    ScalarSelect,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)

from delegate.model import (
    AttemptId,
    Blocker,
    Choice,
    Field,
    Issue,
    Limits,
    Mode,
    OnDependencyFailure,
    Priority,
    Question,
    Result,
    Source,
    Task,
    TaskId,
    Usage,
)
from delegate.states import Reason, TaskState
from delegate.store.tables import from_row, has_state, task

# Used by every submit, claim and report. With bound parameters, SQLAlchemy builds and hashes each statement only once.
INSERT = insert(task)
OF_TRIGGER = select(task).where(task.c.trigger_key == bindparam("key"))
OF_ID = select(task).where(task.c.id == bindparam("which"))
LOCKED = OF_ID.with_for_update()


def insert_task(connection: Connection, new: Task, *, trigger_key: str | None) -> None:
    row: dict[str, object] = {
        "id": new.id,
        "trigger_key": trigger_key,
        "state": new.state,
        "lane": new.lane,
        "priority": new.priority,
        "agent": new.agent,
        "model": new.model,
        "effort": new.effort,
        "permission_mode": new.permission_mode,
        "prompt": new.prompt,
        "working_directory": new.working_directory,
        "machine": new.machine,
        "timeout_ms": new.limits.timeout // timedelta(milliseconds=1),
        "max_output": new.limits.max_output,
        "max_budget_usd": new.limits.max_budget_usd,
        "max_turns": new.limits.max_turns,
        "rerun": new.rerun,
        "choices": [choice_data(choice) for choice in new.choices],
        "created_at": new.created_at,
    }
    optional = _optional_columns(new)
    if optional != OPTIONAL_DEFAULTS:
        row |= optional
    connection.execute(INSERT, row)


# Most tasks have these values: writing them always would make a submit a third slower.
OPTIONAL_DEFAULTS: dict[str, object] = {
    "mode": Mode.IN_PLACE,
    "repository": None,
    "base": None,
    "title": None,
    "issue": None,
    "context": None,
    "depends_on": [],
    "on_dependency_failure": OnDependencyFailure.CANCEL,
    "depth": 0,
    "continue_from": None,
    "schedule_id": None,
    "lineage": None,
    "retry_of": None,
    "parent_task_id": None,
    "retry_count": 0,
    "session_id": None,
    "submitted_by": None,
    "root_id": None,
    "generation": 0,
    "created_by": None,
    "is_from_linear": False,
    "runner": None,
    "tags": [],
    "prefers": None,
    "blockers": None,
}


def _optional_columns(new: Task) -> dict[str, object]:
    return {name: getattr(new, name) for name in OPTIONAL_DEFAULTS} | {
        "issue": None if new.issue is None else asdict(new.issue),
        "depends_on": list(new.depends_on),
        "lineage": None if new.lineage == new.id else new.lineage,
        "tags": list(new.tags),
        "blockers": blocker_data(new.blockers),
    }


def get_task(connection: Connection, task_id: TaskId) -> Task | None:
    row = connection.execute(OF_ID, {"which": task_id}).one_or_none()
    return None if row is None else to_task(row)


def lock_task(connection: Connection, task_id: TaskId) -> Task | None:
    """Lock the task until the transaction ends, so that a decision based on it stays valid."""
    row = connection.execute(LOCKED, {"which": task_id}).one_or_none()
    return None if row is None else to_task(row)


def task_of_trigger(connection: Connection, trigger_key: str) -> Task | None:
    row = connection.execute(OF_TRIGGER, {"key": trigger_key}).one_or_none()
    return None if row is None else to_task(row)


def chain_of(connection: Connection, lineage: TaskId) -> list[tuple[TaskId, TaskState]]:
    """Return the tasks of a lineage with their states, oldest first."""
    # Not an OR, for which a planner would scan all tasks.
    columns = select(task.c.seq, task.c.id, task.c.state)
    rows = connection.execute(union_all(columns.where(task.c.id == lineage), columns.where(task.c.lineage == lineage)))
    return [(TaskId(row.id), TaskState(row.state)) for row in sorted(rows, key=lambda row: row.seq)]


# Exactly the order of the index: otherwise a planner might scan all tasks by sequence number.
FREED_MAX = 100  # tasks in one transaction; the next round frees more
HEADS_MAX = 64  # lanes in one query; SQLite joins up to 500 queries
_ORDER = (task.c.priority, task.c.seq)


def _claimable(lane: str, priority: Any) -> tuple[Any, ...]:  # Any: what SQLAlchemy takes for a value
    """Return the conditions, with the parameters `now` and, under the given name, the lane."""
    now = bindparam("now", type_=task.c.not_before.type)
    return (
        has_state(task, TaskState.QUEUED),
        task.c.lane == bindparam(lane),
        task.c.priority >= priority,
        or_(task.c.not_before.is_(None), task.c.not_before <= now),
    )


def _claim_statement() -> Update:
    oldest = select(task.c.seq).where(*_claimable("in_lane", bindparam("least"))).order_by(*_ORDER).limit(1)
    return (
        update(task)
        .where(
            task.c.seq == oldest.with_for_update(skip_locked=True).scalar_subquery(),
            has_state(task, TaskState.QUEUED),
        )
        .values(
            state=TaskState.RUNNING,
            fence=task.c.fence + 1,
            attempts=task.c.attempts + 1,
            started_at=func.coalesce(task.c.started_at, bindparam("now", type_=task.c.started_at.type)),
            not_before=None,
            prefers=None,
        )
        .returning(task)
    )


CLAIM_NEXT = _claim_statement()


@cache
def _heads(lanes: int) -> CompoundSelect[Any]:
    """Build a query for this number of lanes: one index seek per priority, however long the queue is.

    If a priority has no task, its seek finds the head of the next one again.
    """
    since = func.coalesce(task.c.claimable_at, task.c.created_at).label("claimable_at")
    seen = (task.c.lane, task.c.priority, since, task.c.seq)
    seeks = [
        select(*seen).where(*_claimable(f"lane{number}", priority)).order_by(*_ORDER).limit(1)
        for number in range(lanes)
        for priority in Priority
    ]
    return union_all(*(select(seek.subquery()) for seek in seeks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The oldest task of one lane and one priority that could run now."""

    lane: str
    priority: Priority
    claimable_at: datetime
    seq: int


def queued_heads(connection: Connection, lanes: Sequence[str], now: datetime) -> list[Head]:
    """Return the oldest task of every lane and priority that could run now."""
    heads: set[Head] = set()
    for start in range(0, len(lanes), HEADS_MAX):
        some = lanes[start : start + HEADS_MAX]
        size = 1 << (len(some) - 1).bit_length()  # few sizes, so that statements are built and planned once
        names = {f"lane{number}": some[min(number, len(some) - 1)] for number in range(size)}
        rows = connection.execute(_heads(size), {**names, "now": now})
        heads |= {
            Head(lane=row.lane, priority=Priority(row.priority), claimable_at=row.claimable_at, seq=row.seq)
            for row in rows
        }
    return list(heads)


def _lane_range(number: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return task.c.lane >= bindparam(f"from{number}"), task.c.lane < bindparam(f"to{number}")


def _first_lane(*conditions: ColumnElement[bool]) -> ScalarSelect[str]:
    query = select(task.c.lane).where(has_state(task, TaskState.QUEUED), *conditions)
    return query.order_by(task.c.lane).limit(1).scalar_subquery()


@cache
def _queued_lanes(prefixes: int) -> Select[Any]:
    """Build a query for this number of prefixes: one index seek per prefix and per lane, however long the queue is."""
    seeds = [
        select(_first_lane(*_lane_range(number)).label("lane"), cast(bindparam(f"to{number}"), Text).label("upper_end"))
        for number in range(prefixes)
    ]
    start = union_all(*seeds).subquery()
    found = select(start.c.lane, start.c.upper_end).cte("found", recursive=True)
    following = _first_lane(task.c.lane > found.c.lane, task.c.lane < found.c.upper_end)
    found = found.union_all(select(following, found.c.upper_end).where(found.c.lane.is_not(None)))
    return select(found.c.lane).where(found.c.lane.is_not(None))


def queued_lanes(connection: Connection, prefixes: Sequence[str]) -> list[str]:
    """Return the lanes with one of these beginnings that have queued tasks."""
    if not prefixes:
        return []
    rows = connection.execute(_queued_lanes(len(prefixes)), prefix_ends(prefixes))
    return [row.lane for row in rows]


def prefix_ends(prefixes: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a query on lanes: where each beginning starts, and the first text after its lanes."""
    starts = {f"from{number}": prefix for number, prefix in enumerate(prefixes)}
    ends = {f"to{number}": prefix[:-1] + chr(ord(prefix[-1]) + 1) for number, prefix in enumerate(prefixes)}
    return starts | ends


def take_queued(connection: Connection, head: Head, now: datetime) -> Task | None:
    """Move the head, or the next task after it, to running under a new fence; skips rows locked by another relay."""
    row = connection.execute(CLAIM_NEXT, {"in_lane": head.lane, "least": head.priority, "now": now}).one_or_none()
    return None if row is None else to_task(row)


def _preferring(queued_before: datetime) -> Select[Any]:
    since = func.coalesce(task.c.claimable_at, task.c.created_at)
    limit = bindparam("queued_before", queued_before, type_=task.c.created_at.type)
    return select(task).where(has_state(task, TaskState.QUEUED), task.c.prefers.is_not(None), since <= limit)


def has_preferring_task(connection: Connection, queued_before: datetime) -> bool:
    return connection.execute(_preferring(queued_before).limit(1)).first() is not None


def free_preferring_tasks(connection: Connection, *, queued_before: datetime) -> list[Task]:
    """Let all runners take the tasks that became claimable before then and prefer one runner."""
    rows = connection.execute(_preferring(queued_before).limit(FREED_MAX).with_for_update(skip_locked=True)).all()
    freed = [replace(to_task(row), prefers=None) for row in rows]
    for one in freed:
        mine = (task.c.id == one.id, has_state(task, TaskState.QUEUED))
        connection.execute(update(task).where(*mine).values(prefers=None, lane=one.lane))
    return freed


def requeue_task(connection: Connection, held: Task, *, counted: bool, not_before: datetime | None = None) -> bool:
    """Return a running task to the queue; an attempt that is not counted is subtracted."""
    result = connection.execute(
        update(task)
        .where(task.c.id == held.id, has_state(task, TaskState.RUNNING), task.c.fence == held.fence)
        .values(
            state=TaskState.QUEUED,
            attempts=task.c.attempts if counted else task.c.attempts - 1,
            not_before=not_before,
            claimable_at=func.coalesce(
                bindparam("until", not_before, type_=task.c.not_before.type), task.c.claimable_at
            ),
            session_id=held.session_id,
            usage=asdict(held.usage),
            agent=held.agent,
            lane=held.lane,
            choices=[choice_data(choice) for choice in held.choices],
        )
    )
    return result.rowcount == 1


def end_task(connection: Connection, ended: Task, *, was: TaskState, finished_at: datetime) -> bool:
    """Write the end of a task that is still in state `was` under the fence it was read with."""
    result = connection.execute(
        update(task)
        .where(task.c.id == ended.id, has_state(task, was), task.c.fence == ended.fence)
        .values(
            state=ended.state,
            reason=ended.reason,
            message=ended.message,
            exit_code=ended.exit_code,
            session_id=ended.session_id,
            usage=asdict(ended.usage),
            result=None if ended.result is None else asdict(ended.result),
            finished_at=finished_at,
            not_before=None,
        )
    )
    return result.rowcount == 1


def keep_session(connection: Connection, held: Task) -> bool:
    result = connection.execute(
        update(task)
        .where(task.c.id == held.id, has_state(task, TaskState.RUNNING), task.c.fence == held.fence)
        .values(session_id=held.session_id)
    )
    return result.rowcount == 1


def request_cancel(connection: Connection, task_id: TaskId, reason: str, now: datetime) -> bool:
    result = connection.execute(
        update(task)
        .where(task.c.id == task_id, has_state(task, TaskState.RUNNING), task.c.cancel_requested_at.is_(None))
        .values(cancel_requested_at=now, cancel_reason=reason)
    )
    return result.rowcount == 1


def set_cancel_reason(connection: Connection, task_id: TaskId, reason: str) -> bool:
    result = connection.execute(
        update(task)
        .where(task.c.id == task_id, has_state(task, TaskState.RUNNING), task.c.cancel_requested_at.is_not(None))
        .values(cancel_reason=reason)
    )
    return result.rowcount == 1


def page_of_tasks(
    connection: Connection, *, states: Sequence[TaskState], before: int | None, limit: int
) -> list[tuple[int, Task]]:
    """Return the newest first, each with its sequence number, the cursor of the next page."""
    query = select(task).order_by(task.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(task.c.seq < before)
    # One query per state: for several states, a planner would sort all tasks.
    queries = [query.where(has_state(task, state)) for state in states] or [query]
    rows = [row for one in queries for row in connection.execute(one)]
    newest = sorted(rows, key=lambda row: -row.seq)[:limit]
    return [(row.seq, to_task(row)) for row in newest]


def count_by_state(connection: Connection) -> dict[TaskState, int]:
    rows = connection.execute(select(task.c.state, func.count()).group_by(task.c.state))
    return {TaskState(state): count for state, count in rows}


def to_task(row: Row[Any]) -> Task:
    return from_row(
        Task,
        row,
        state=TaskState(row.state),
        lineage=TaskId(row.lineage or row.id),
        limits=to_limits(row),
        priority=Priority(row.priority),
        mode=Mode(row.mode),
        issue=None if row.issue is None else Issue(**row.issue),
        choices=tuple(to_choice(choice) for choice in row.choices),
        depends_on=tuple(row.depends_on),
        on_dependency_failure=OnDependencyFailure(row.on_dependency_failure),
        questions=tuple(to_question(question) for question in row.questions),
        result=None if row.result is None else Result(**row.result),
        reason=None if row.reason is None else Reason(row.reason),
        tags=tuple(row.tags),
        blockers=tuple(Blocker(**one) for one in row.blockers or ()),
        usage=Usage(**row.usage),
    )


def to_limits(row: Row[Any]) -> Limits:
    return Limits(
        timeout=timedelta(milliseconds=row.timeout_ms),
        max_output=row.max_output,
        max_budget_usd=row.max_budget_usd,
        max_turns=row.max_turns,
    )


def to_question(data: dict[str, Any]) -> Question:  # Any: as it was written by question_data
    return Question(
        attempt_id=AttemptId(data["attempt_id"]),
        text=data["text"],
        asked_at=datetime.fromisoformat(data["asked_at"]),
        options=tuple(data["options"]),
        answer=data["answer"],
    )


def question_data(question: Question) -> dict[str, object]:
    return {**asdict(question), "asked_at": question.asked_at.isoformat(), "options": list(question.options)}


def blocker_data(blockers: Sequence[Blocker]) -> list[dict[str, str]] | None:
    return [asdict(one) for one in blockers] or None


def to_choice(data: dict[str, str]) -> Choice:
    return Choice(field=Field(data["field"]), value=data["value"], source=Source(data["source"]))


def choice_data(choice: Choice) -> dict[str, str]:
    return {"field": choice.field, "value": choice.value, "source": choice.source}
