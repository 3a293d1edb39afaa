"""Fires due schedules. Every due time is recorded once, with its outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import anyio

from delegate.config.settings import Settings
from delegate.errors import InvalidSchedule, Refused, ScheduleEnded, Unavailable
from delegate.intake.dependencies import resolve_dependencies
from delegate.intake.from_wire import request_of_template
from delegate.intake.schedule_decisions import (
    RunDecision,
    advance_schedule,
    decide,
    decide_invalid,
    decide_refused,
    end_by_clock,
    set_next_run,
)
from delegate.intake.submit import Request, build_task, insert_new_task, resolve_preferences
from delegate.model import ScheduleId, Task, TaskId
from delegate.queue.schedule_runs import FollowerSchedule, due_after, fail_followers, log_followers
from delegate.schedule.cron import times_after
from delegate.schedule.model import FINAL_SCHEDULE_STATES, RunOutcome, Schedule, ScheduleRun, ScheduleState
from delegate.states import FINAL_TASK_STATES
from delegate.store.database import Connection, Database
from delegate.store.people import get_person
from delegate.store.schedules import (
    add_to_overlapped_run,
    drop_misses_ahead,
    get_schedule,
    has_run,
    insert_run,
    lock_due,
    lock_expired,
    lock_reckoned_after,
    move_schedule,
    next_due,
    runs_ahead,
)
from delegate.store.tasks import get_task

log = logging.getLogger(__name__)
BATCH_SIZE = 100  # schedules that are due together are committed together, up to this many


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredRun:
    schedule: Schedule
    run: ScheduleRun
    task: Task | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTransition:
    """A schedule that changed, and the followers that changed because it ended."""

    schedule: Schedule
    followers: Sequence[FollowerSchedule] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringRound:
    fired: tuple[FiredRun, ...]
    skipped: frozenset[ScheduleId]  # due, but locked by another relay, or failed
    may_have_more: bool  # more schedules may be due
    next_at: datetime | None  # the first time that is not due yet, if known
    has_failed: bool  # some could not be written: the database is busy, or the disk is full


async def fire_due(
    database: Database, settings: Settings, now: datetime, skipped: frozenset[ScheduleId] = frozenset()
) -> FiringRound:
    """Fire the first due schedules, except those that earlier rounds skipped."""
    heads = await database.read(partial(next_due, limit=BATCH_SIZE + len(skipped)))
    line = [(schedule_id, time) for schedule_id, time in heads if schedule_id not in skipped][:BATCH_SIZE]
    due = [schedule_id for schedule_id, time in line if time <= now]
    fired: list[FiredRun] = []
    followers: list[FollowerSchedule] = []
    failed: list[ScheduleId] = []

    async def fire_one(schedule_id: ScheduleId) -> None:
        try:
            one, moved = await database.write(
                "fire", partial(fire, schedule_id=schedule_id, settings=settings, now=now)
            )
        except Unavailable as error:
            failed.append(schedule_id)
            log.warning("schedule not fired", extra={"schedule_id": schedule_id, "why": error.message})
        except Exception:  # a faulty schedule must not delay the others
            log.exception("schedule not fired", extra={"schedule_id": schedule_id})
        else:
            fired.extend([] if one is None else [one])
            followers.extend(moved)

    async with anyio.create_task_group() as group:
        for schedule_id in due:
            group.start_soon(fire_one, schedule_id)
    for one in fired:
        _log_run(one)
    log_followers(followers)
    return FiringRound(
        fired=tuple(fired),
        skipped=skipped | set(due) - {one.schedule.id for one in fired},
        may_have_more=len(due) == BATCH_SIZE,
        next_at=next((time for _, time in line if time > now), None),
        has_failed=bool(failed),
    )


def fire(
    connection: Connection, schedule_id: ScheduleId, settings: Settings, now: datetime
) -> tuple[FiredRun | None, list[FollowerSchedule]]:
    """Fire one schedule; return its run, or None if another relay has fired it, and the followers that changed."""
    schedule = lock_due(connection, schedule_id, now)
    if schedule is None or schedule.next_run_at is None:
        return None, []  # another relay has fired it
    if has_run(connection, schedule.id, schedule.next_run_at):
        return None, settle(connection, _skip_due_time(schedule, now), was=schedule.state, now=now)
    try:
        decision = decide(schedule, is_run_open=is_open(connection, schedule.last_task_id), now=now)
    except InvalidSchedule as error:
        decision = decide_invalid(schedule, error, now)
    task = None
    if decision.outcome is RunOutcome.STARTED:
        try:
            task = create_run_task(connection, schedule, settings, now)
        except Refused as error:
            decision = decide_refused(schedule, decision, error, now)
    return _record_run(connection, schedule, decision, task, now)


def _skip_due_time(schedule: Schedule, now: datetime) -> Schedule:
    """Advance a schedule whose due time already has a run."""
    try:
        return advance_schedule(schedule, since=now, now=now)
    except InvalidSchedule as error:
        return decide_invalid(schedule, error, now).after


def _record_run(
    connection: Connection, schedule: Schedule, decision: RunDecision, task: Task | None, now: datetime
) -> tuple[FiredRun, list[FollowerSchedule]]:
    assert schedule.next_run_at is not None
    run = ScheduleRun(
        schedule_id=schedule.id,
        occurrence=schedule.next_run_at,
        at=now,
        outcome=decision.outcome,
        missed=decision.missed,
        task_id=None if task is None else task.id,
        message=decision.message,
        finished_at=now if task is None else None,
    )
    task_id = schedule.last_task_id if task is None else task.id
    after = replace(decision.after, last_task_id=task_id, last_outcome=decision.outcome)
    if run.outcome is not RunOutcome.OVERLAPPED or not add_to_overlapped_run(connection, run):
        insert_run(connection, run)
    followers = settle(connection, after, was=schedule.state, now=now)
    return FiredRun(schedule=after, run=run, task=task), followers


def settle_missed(connection: Connection, schedule: Schedule, now: datetime) -> ScheduleTransition | None:
    """Record a missed run at once, so that the response shows it; None if the schedule waits or will start."""
    if schedule.state is not ScheduleState.ACTIVE or schedule.next_run_at is None or schedule.next_run_at > now:
        return None
    decision = decide(schedule, is_run_open=is_open(connection, schedule.last_task_id), now=now)
    if decision.outcome is not RunOutcome.MISSED:
        return None
    fired, followers = _record_run(connection, schedule, decision, None, now)
    return ScheduleTransition(schedule=fired.schedule, followers=followers)


def settle(connection: Connection, schedule: Schedule, *, was: ScheduleState, now: datetime) -> list[FollowerSchedule]:
    """Write the schedule. If it has ended and none of its tasks runs, fail the schedules that wait for it and return
    them."""
    if not move_schedule(connection, schedule, was=was):
        raise ScheduleEnded(schedule_id=schedule.id, state=f"no longer {was}", verb=f"set to {schedule.state}")
    if schedule.state in FINAL_SCHEDULE_STATES and not is_open(connection, schedule.last_task_id):
        why = f"that schedule is {schedule.state}"
        return fail_followers(connection, schedule.id, why, now, by_clock=schedule.reopens_as is not None)
    return []


def is_open(connection: Connection, task_id: TaskId | None) -> bool:
    task = None if task_id is None else get_task(connection, task_id)
    return task is not None and task.state not in FINAL_TASK_STATES


def create_run_task(connection: Connection, schedule: Schedule, settings: Settings, now: datetime) -> Task:
    """Create the task of a run, checked like a new submit."""
    creator = None if schedule.created_by is None else get_person(connection, schedule.created_by)
    if creator is not None and creator.refusal is not None:
        raise Refused(why=f"{creator.refusal}, and the schedule runs for that person")
    request = link_to_previous_run(connection, schedule, request_of_template(schedule.request))
    preferences = resolve_preferences(request, settings)
    built = build_task(request, preferences, settings, now)
    task = replace(built, schedule_id=schedule.id, created_by=schedule.created_by)
    return insert_new_task(
        connection, resolve_dependencies(connection, task), by=None, trigger_key=None, notes=preferences.notes
    ).task


def link_to_previous_run(connection: Connection, schedule: Schedule, request: Request) -> Request:
    """Add the previous schedule's task: a pipeline step continues it, other runs depend on it."""
    before = None if schedule.timing.after is None else get_schedule(connection, schedule.timing.after)
    if before is None or before.last_task_id is None:
        return request
    if schedule.pipeline is not None:
        return replace(request, continue_from=before.last_task_id)
    if waits_for_runs(schedule) and get_task(connection, before.last_task_id) is not None:
        return replace(request, depends_on=(*request.depends_on, before.last_task_id))
    return request


def waits_for_runs(schedule: Schedule) -> bool:
    """Whether its tasks depend on those of the previous schedule."""
    timing = schedule.timing
    return timing.after is not None and (schedule.pipeline is not None or timing.cron is not None)


async def expire(database: Database, now: datetime) -> None:
    """End schedules that expired without a due time: they waited for another schedule, or were paused."""

    def write(connection: Connection) -> list[ScheduleTransition]:
        lapsed = lock_expired(connection, now, limit=BATCH_SIZE)
        return _settle_each(connection, lapsed, lambda one: end_by_clock(one, ScheduleState.EXPIRED, None, now), now)

    while over := await database.write("schedule.expire", write):
        for one in over:
            log_transition(one)


async def recompute_next_runs(database: Database, now: datetime) -> None:
    """Recompute the times of schedules after the clock was set back."""

    def write(connection: Connection) -> list[ScheduleTransition]:
        ahead = lock_reckoned_after(connection, now, limit=BATCH_SIZE)
        return _settle_each(connection, ahead, lambda one: _recompute_next_run(connection, one, now), now)

    while transitions := await database.write("schedule.reckon", write):
        log.warning("clock set back, next runs recomputed", extra={"count": len(transitions)})
        for one in transitions:
            log_followers(one.followers)


def _settle_each(
    connection: Connection,
    locked: Sequence[Schedule],
    become: Callable[[Schedule], Schedule],
    now: datetime,
) -> list[ScheduleTransition]:
    transitions: list[ScheduleTransition] = []
    for one in locked:
        schedule = get_schedule(connection, one.id)  # read again: it may follow one of these and have ended with it
        if schedule is None or schedule.state in FINAL_SCHEDULE_STATES:
            continue
        after = become(schedule)
        followers = settle(connection, after, was=schedule.state, now=now)
        transitions.append(ScheduleTransition(schedule=after, followers=followers))
    return transitions


def _recompute_next_run(connection: Connection, schedule: Schedule, now: datetime) -> Schedule:
    if schedule.next_run_at is None or schedule.next_run_at <= now:
        return replace(schedule, reckoned_at=now)
    if schedule.timing.cron is not None:
        drop_misses_ahead(connection, schedule.id, now)
        try:
            return set_next_run(schedule, next_free_time(connection, schedule, now), now)
        except InvalidSchedule as error:
            return decide_invalid(schedule, error, now).after
    if schedule.timing.after is not None:  # its time was computed from an end that is now in the future
        due = due_after(schedule.timing.at, schedule.timing.delay, ended_at=now)
        return replace(schedule, next_run_at=min(schedule.next_run_at, due), reckoned_at=now)
    return replace(schedule, reckoned_at=now)


def next_free_time(connection: Connection, schedule: Schedule, now: datetime) -> datetime | None:
    """Return the next time of a cron schedule that has no run yet."""
    assert schedule.timing.cron is not None
    taken = runs_ahead(connection, schedule.id, now)
    times = times_after(schedule.timing.cron, schedule.timing.timezone, now)
    return next((time for time in times if time not in taken), None)


def log_transition(transition: ScheduleTransition) -> None:
    schedule = transition.schedule
    log.info("schedule moved", extra={"schedule_id": schedule.id, "state": schedule.state})
    log_followers(transition.followers)


def _log_run(fired: FiredRun) -> None:
    run = fired.run
    log.info(
        "schedule fired",
        extra={
            "schedule_id": run.schedule_id,
            "occurrence": run.occurrence.isoformat(),
            "outcome": run.outcome,
            "task_id": run.task_id,
            "state": fired.schedule.state,
        },
    )
