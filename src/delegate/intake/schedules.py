"""Creates, reads, pauses, resumes and cancels schedules and pipelines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from delegate.config.settings import Settings
from delegate.errors import InvalidField, InvalidSchedule, KeyUsed, NoSuchSchedule, ScheduleEnded
from delegate.intake.dependencies import resolve_dependencies
from delegate.intake.firing import (
    BATCH_SIZE,
    ScheduleTransition,
    is_open,
    log_transition,
    next_free_time,
    settle,
    settle_missed,
    waits_for_runs,
)
from delegate.intake.from_wire import NewPipeline, NewSchedule, request_of_template
from delegate.intake.schedule_decisions import decide_invalid, end_schedule, set_next_run
from delegate.intake.submit import build_task, prefix_fields, resolve_preferences
from delegate.model import DEPENDENCIES_MAX, FOLLOWERS_MAX, OWNER, Actor, ScheduleId, Task, TaskId, new_schedule_id
from delegate.queue.schedule_runs import FollowerSchedule, due_after
from delegate.schedule.cron import check_cron, time_after
from delegate.schedule.model import FINAL_SCHEDULE_STATES, RunOutcome, Schedule, ScheduleRun, ScheduleState, Timing
from delegate.schedule.zones import zone_named
from delegate.store.database import Connection, Database
from delegate.store.people import record_audit
from delegate.store.schedules import (
    count_waiting_with,
    drop_misses_recorded_after,
    get_schedule,
    insert_schedule,
    lock_ended_after,
    lock_run_of_task,
    lock_schedule,
    runs_of_schedule,
    schedule_of_trigger,
    steps_of_pipeline,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSchedule:
    schedule: Schedule
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedPipeline:
    steps: tuple[Schedule, ...]
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCancellation:
    schedule: Schedule
    open_task: TaskId | None  # of its last run


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSchedule:
    schedule: Schedule
    history: list[ScheduleRun]  # the latest first


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerDueTime:
    """When a schedule that follows another is due: at a time, not yet known (neither field), or never."""

    at: datetime | None = None
    never_reason: str | None = None


async def create(
    database: Database, definition: NewSchedule, settings: Settings, now: datetime, by: Actor = OWNER
) -> CreatedSchedule:
    """Write the schedule; repeating a request key returns the same schedule."""

    def write(connection: Connection) -> CreatedSchedule:
        earlier = schedule_of_trigger(connection, definition.request_key) if definition.request_key else None
        if earlier is not None:
            if earlier.pipeline is not None:
                raise KeyUsed(key=definition.request_key)
            return CreatedSchedule(schedule=earlier, is_new=False)
        new = new_schedule(definition, now)  # after the key check: a repeated request may name a past time
        resolve_dependencies(connection, _task_of(new, settings, now))
        placed = replace(_resolve_first_run(connection, new, now), created_by=by.person_id)
        record_audit(connection, by, "schedule.create", placed.id, now=now)
        insert_schedule(connection, placed, trigger_key=definition.request_key)
        return CreatedSchedule(schedule=placed, is_new=True)

    created = await database.write("schedule.create", write)
    log.info("schedule created", extra={"schedule_id": created.schedule.id, "new": created.is_new})
    return created


async def create_pipeline(
    database: Database, definition: NewPipeline, settings: Settings, now: datetime, by: Actor = OWNER
) -> CreatedPipeline:
    """Create one-time schedules that follow each other, in one transaction; the first is due at once."""

    def write(connection: Connection) -> CreatedPipeline:
        earlier = schedule_of_trigger(connection, definition.request_key) if definition.request_key else None
        if earlier is not None:
            if earlier.pipeline is None:
                raise KeyUsed(key=definition.request_key)
            return CreatedPipeline(steps=tuple(steps_of_pipeline(connection, earlier.pipeline)), is_new=False)
        steps = tuple(replace(step, created_by=by.person_id) for step in build_pipeline(definition, now))
        record_audit(connection, by, "pipeline.create", steps[0].id, now=now)
        for number, step in enumerate(steps):
            with prefix_fields(f"steps.{number}"):
                resolve_dependencies(connection, _task_of(step, settings, now))
            insert_schedule(connection, step, trigger_key=definition.request_key if number == 0 else None)
        return CreatedPipeline(steps=steps, is_new=True)

    created = await database.write("schedule.pipeline", write)
    log.info("pipeline created", extra={"schedule_id": created.steps[0].id, "new": created.is_new})
    return created


async def pause(database: Database, schedule_id: ScheduleId, reason: str, now: datetime, by: Actor = OWNER) -> Schedule:
    def write(connection: Connection) -> ScheduleTransition:
        schedule = _lock_open_schedule(connection, schedule_id, verb="paused")
        if schedule.state is ScheduleState.PAUSED:
            return ScheduleTransition(schedule=schedule)
        record_audit(connection, by, "schedule.pause", schedule_id, now=now)
        message = f"paused: {reason}" if reason else None
        # A follower that already has its time keeps it: it does not wait for the other schedule again.
        time = schedule.next_run_at if is_follower(schedule) else None
        paused = replace(schedule, state=ScheduleState.PAUSED, next_run_at=time, reckoned_at=now, message=message)
        return ScheduleTransition(schedule=paused, followers=settle(connection, paused, was=schedule.state, now=now))

    return await _write(database, "schedule.pause", write)


async def resume(
    database: Database, schedule_id: ScheduleId, reason: str, now: datetime, by: Actor = OWNER
) -> Schedule:
    """Resume with the next time. Times that passed during the pause are not missed, except the only time of a one-time
    schedule: if that is too late, the miss is recorded here, so that the response shows it."""

    def write(connection: Connection) -> ScheduleTransition:
        schedule = _lock_open_schedule(connection, schedule_id, verb="resumed")
        if schedule.state is ScheduleState.ACTIVE:
            return ScheduleTransition(schedule=schedule)
        record_audit(connection, by, "schedule.resume", schedule_id, now=now)
        message = f"resumed: {reason}" if reason else None
        resumed = _resume_schedule(connection, replace(schedule, state=ScheduleState.ACTIVE, message=message), now)
        settled = ScheduleTransition(
            schedule=resumed, followers=settle(connection, resumed, was=schedule.state, now=now)
        )
        return settle_missed(connection, resumed, now) or settled

    return await _write(database, "schedule.resume", write)


async def cancel(
    database: Database, schedule_id: ScheduleId, reason: str, *, with_tasks: bool, now: datetime, by: Actor = OWNER
) -> ScheduleCancellation:
    """End the schedule. With `with_tasks`, also return the open task of its last run for the caller to cancel; this
    works for an ended schedule, too."""

    def write(connection: Connection) -> tuple[ScheduleCancellation, list[FollowerSchedule]]:
        followers: list[FollowerSchedule] = []
        schedule = lock_existing_schedule(connection, schedule_id)
        runs = is_open(connection, schedule.last_task_id)
        has_open = with_tasks and runs
        if schedule.state in FINAL_SCHEDULE_STATES:
            if schedule.state is not ScheduleState.CANCELLED and not has_open:
                raise _open_task_error(schedule) if runs else _ended_error(schedule, verb="cancelled")
        else:
            was = schedule.state
            record_audit(connection, by, "schedule.cancel", schedule_id, now=now)
            schedule = end_schedule(schedule, ScheduleState.CANCELLED, reason or None, now)
            followers = settle(connection, schedule, was=was, now=now)
        return ScheduleCancellation(schedule=schedule, open_task=schedule.last_task_id if has_open else None), followers

    cancelled, followers = await database.write("schedule.cancel", write)
    log_transition(ScheduleTransition(schedule=cancelled.schedule, followers=followers))
    return cancelled


async def reopen_ended(database: Database, now: datetime) -> None:
    """Open schedules again that a clock ended which was ahead; what is due or missed now is decided again."""

    def write(connection: Connection) -> list[ScheduleTransition]:
        moved: list[ScheduleTransition] = []
        for ended in lock_ended_after(connection, now, limit=BATCH_SIZE):
            after = _reopen(connection, ended, now)
            moved.append(
                ScheduleTransition(schedule=after, followers=settle(connection, after, was=ended.state, now=now))
            )
        return moved

    while opened := await database.write("schedule.reopen", write):
        log.warning("clock set back, schedules opened again", extra={"count": len(opened)})
        for one in opened:
            log_transition(one)


def _reopen(connection: Connection, ended: Schedule, now: datetime) -> Schedule:
    missed_at = drop_misses_recorded_after(connection, ended.id, now)
    assert ended.reopens_as is not None
    schedule = replace(
        ended, state=ended.reopens_as, reopens_as=None, next_run_at=missed_at, ended_at=None, message=None
    )
    if schedule.state is ScheduleState.PAUSED or missed_at is not None:
        return replace(schedule, reckoned_at=now)
    try:
        return _resume_schedule(connection, schedule, now)
    except InvalidSchedule as error:
        return decide_invalid(schedule, error, now).after


async def read_full_schedule(database: Database, schedule_id: ScheduleId, history_limit: int) -> FullSchedule:
    def read(connection: Connection) -> FullSchedule:
        schedule = get_schedule(connection, schedule_id)
        if schedule is None:
            raise NoSuchSchedule(schedule_id=schedule_id)
        return FullSchedule(schedule=schedule, history=runs_of_schedule(connection, schedule_id, limit=history_limit))

    return await database.read(read)


def new_schedule(definition: NewSchedule, now: datetime) -> Schedule:
    """Pure: build the schedule, or raise the reason to refuse it."""
    timing = definition.timing
    first = first_run_time(timing, now)
    if timing.expires_at is not None and (first or now) >= timing.expires_at:
        when = f"the first run would be at {first.isoformat()}" if first else "it is in the past"
        raise InvalidSchedule(field="expiresAt", why=f"leaves no time to run: {when}")
    return Schedule(
        id=new_schedule_id(),
        state=ScheduleState.ACTIVE,
        timing=timing,
        request=definition.template,
        created_at=now,
        reckoned_at=now,
        next_run_at=first,
    )


def first_run_time(timing: Timing, now: datetime) -> datetime | None:
    """Pure: return the first run time, or None for a schedule that follows another."""
    zone_named(timing.timezone)
    if timing.cron is not None:
        check_cron(timing.cron)
        first = time_after(timing.cron, timing.timezone, now)
        if first is None:
            raise InvalidSchedule(field="cronExpression", why=f"`{timing.cron}` has no future run time")
        return first
    if timing.at is not None and timing.at <= now:
        raise InvalidSchedule(field="scheduledAt", why=_past_time_message(timing.at, now))
    return timing.at if timing.after is None else None


def _past_time_message(moment: datetime, now: datetime) -> str:
    return f"{moment.isoformat(timespec='seconds')} is in the past; it is now {now.isoformat(timespec='seconds')}"


def build_pipeline(definition: NewPipeline, now: datetime) -> tuple[Schedule, ...]:
    """Pure: build the steps of a pipeline; the first is due at once."""
    steps: list[Schedule] = []
    for step in definition.steps:
        after = steps[-1].id if steps else None
        new = new_schedule(replace(step, timing=replace(step.timing, after=after)), now)
        steps.append(replace(new, pipeline=steps[0].id if steps else new.id, next_run_at=None if steps else now))
    return tuple(steps)


def is_follower(schedule: Schedule) -> bool:
    """Whether its only run starts after the run of another schedule."""
    return schedule.timing.after is not None and schedule.timing.cron is None


def follower_due_time(timing: Timing, before: Schedule, run: ScheduleRun | None, now: datetime) -> FollowerDueTime:
    """Pure: decide when a one-time schedule is due that follows `before`, whose last run is `run`."""
    if run is not None and run.outcome is RunOutcome.COMPLETED:
        return FollowerDueTime(at=max(now, due_after(timing.at, timing.delay, ended_at=run.finished_at or now)))
    is_over = before.state in FINAL_SCHEDULE_STATES and (run is None or run.outcome is not RunOutcome.STARTED)
    if not is_over:
        return FollowerDueTime()
    outcome = "has not run" if run is None else f"the outcome of its last run was {run.outcome}"
    return FollowerDueTime(never_reason=f"{before.id} is {before.state} and {outcome}")


def _resolve_first_run(connection: Connection, new: Schedule, now: datetime) -> Schedule:
    """Set the time of a schedule that follows another; locks the other, so that its end is not missed."""
    if new.timing.after is None:
        return new
    before = lock_schedule(connection, new.timing.after)
    if before is None:
        advice = "`delegate schedule list` lists all schedules"
        raise InvalidSchedule(field="afterSchedule", why=f"no schedule {new.timing.after}; {advice}")
    if new.timing.cron is not None:
        return new
    due = follower_due_time(new.timing, before, _last_run(connection, before), now)
    if due.never_reason is not None:
        raise InvalidSchedule(field="afterSchedule", why=f"{due.never_reason}, so no schedule can follow it")
    if due.at is None:
        _check_follower_count(connection, before.id)
    return replace(new, next_run_at=due.at)


def _check_follower_count(connection: Connection, before: ScheduleId) -> None:
    """Concurrent requests may exceed the limit by a few schedules, which does no harm."""
    waiting = count_waiting_with(connection, before)
    if waiting >= FOLLOWERS_MAX:
        why = (
            f"cannot name {before}: {waiting:,} schedules wait for the same run, and the limit is {FOLLOWERS_MAX:,}; "
            "name another schedule, or cancel some of those"
        )
        raise InvalidField(field="afterSchedule", why=why)


def _resume_schedule(connection: Connection, schedule: Schedule, now: datetime) -> Schedule:
    timing = schedule.timing
    if timing.cron is not None:
        return set_next_run(schedule, next_free_time(connection, schedule, now), now)
    if schedule.next_run_at is not None:
        return replace(schedule, next_run_at=max(now, schedule.next_run_at), reckoned_at=now)
    before = None if timing.after is None else lock_schedule(connection, timing.after)
    if before is None:
        return replace(schedule, next_run_at=timing.at or now, reckoned_at=now)
    due = follower_due_time(timing, before, _last_run(connection, before), now)
    if due.never_reason is not None:
        return end_schedule(schedule, ScheduleState.FAILED, due.never_reason, now)
    return replace(schedule, next_run_at=due.at, reckoned_at=now)


def _last_run(connection: Connection, schedule: Schedule) -> ScheduleRun | None:
    return None if schedule.last_task_id is None else lock_run_of_task(connection, schedule.last_task_id)


def _task_of(schedule: Schedule, settings: Settings, now: datetime) -> Task:
    """Build the task of a run, so that an invalid one is refused at once."""
    request = request_of_template(schedule.request)
    task = build_task(request, resolve_preferences(request, settings), settings, now)
    if waits_for_runs(schedule) and len(task.depends_on) >= DEPENDENCIES_MAX:
        count = len(task.depends_on) + 1
        why = f"has {count} tasks including that of the previous schedule; the limit is {DEPENDENCIES_MAX}"
        raise InvalidField(field="dependsOn", why=why)
    return task


def lock_existing_schedule(connection: Connection, schedule_id: ScheduleId) -> Schedule:
    schedule = lock_schedule(connection, schedule_id)
    if schedule is None:
        raise NoSuchSchedule(schedule_id=schedule_id)
    return schedule


def _lock_open_schedule(connection: Connection, schedule_id: ScheduleId, *, verb: str) -> Schedule:
    schedule = lock_existing_schedule(connection, schedule_id)
    if schedule.state in FINAL_SCHEDULE_STATES:
        raise _ended_error(schedule, verb=verb)
    return schedule


def _ended_error(schedule: Schedule, *, verb: str) -> ScheduleEnded:
    return ScheduleEnded(schedule_id=schedule.id, state=schedule.state, verb=verb)


def _open_task_error(schedule: Schedule) -> ScheduleEnded:
    advice = f"`delegate schedule cancel --cancel-tasks {schedule.id}` cancels its task, which has not ended"
    return ScheduleEnded(schedule_id=schedule.id, state=schedule.state, verb="cancelled", advice=advice)


async def _write(database: Database, name: str, work: Callable[[Connection], ScheduleTransition]) -> Schedule:
    settled = await database.write(name, work)
    log_transition(settled)
    return settled.schedule
