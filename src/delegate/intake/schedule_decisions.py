"""Decides the outcome of a due run and the time of the next one, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile

from delegate.errors import InvalidSchedule, Refused
from delegate.schedule.cron import time_after, times_after
from delegate.schedule.model import MISSED_AFTER, MissedRunPolicy, RunOutcome, Schedule, ScheduleState

PASSED_TIMES_MAX = 1_000  # bounds the work when a relay starts again after years
UPCOMING_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDecision:
    """The outcome of one due run, and the schedule after it."""

    outcome: RunOutcome
    after: Schedule
    missed: int = 0
    message: str | None = None


def decide(schedule: Schedule, *, is_run_open: bool, now: datetime) -> RunDecision:
    """Pure: decide whether the due run starts, is missed, or overlaps the previous run."""
    timing, occurrence = schedule.timing, schedule.next_run_at
    assert occurrence is not None
    if timing.expires_at is not None and now >= timing.expires_at:
        return _decide_expired(schedule, now)
    if now - occurrence > MISSED_AFTER and timing.missed_run_policy is not MissedRunPolicy.CATCHUP:
        return _decide_missed(schedule, now)
    missed = count_passed_times(schedule, until=now)
    if is_run_open:
        message = f"the previous run, {schedule.last_task_id}, had not ended"
        after = advance_schedule(schedule, since=now, now=now)
        return RunDecision(outcome=RunOutcome.OVERLAPPED, after=after, missed=missed, message=message)
    started = replace(schedule, runs=schedule.runs + 1, last_run_at=now)
    return RunDecision(outcome=RunOutcome.STARTED, after=advance_schedule(started, since=now, now=now), missed=missed)


def _decide_expired(schedule: Schedule, now: datetime) -> RunDecision:
    message = f"the schedule expired at {schedule.timing.expires_at:%Y-%m-%d %H:%M} UTC, before the run could start"
    missed = count_passed_times(schedule, until=now)
    after = end_by_clock(schedule, ScheduleState.EXPIRED, None, now)
    return RunDecision(outcome=RunOutcome.MISSED, after=after, missed=missed, message=message)


def _decide_missed(schedule: Schedule, now: datetime) -> RunDecision:
    run = f"the run at {schedule.next_run_at:%Y-%m-%d %H:%M} UTC"
    late = f"{run} was missed: it could not start before {now:%Y-%m-%d %H:%M} UTC"
    too_late = now - MISSED_AFTER - timedelta.resolution  # later times may still run
    missed = count_passed_times(schedule, until=too_late)
    if schedule.timing.missed_run_policy is MissedRunPolicy.FAIL:
        after = end_by_clock(schedule, ScheduleState.FAILED, f"{late}; its policy ends it after a missed run", now)
        missed = count_passed_times(schedule, until=now)
    elif schedule.timing.cron is None:
        after = end_by_clock(schedule, ScheduleState.EXPIRED, f"{late}; its policy skips missed runs", now)
    else:
        after = advance_schedule(schedule, since=too_late, now=now)
    return RunDecision(outcome=RunOutcome.MISSED, after=after, missed=missed, message=late)


def decide_refused(schedule: Schedule, decision: RunDecision, error: Refused, now: datetime) -> RunDecision:
    """Pure: record that the task was refused; a cron schedule continues with its next time."""
    if schedule.timing.cron is None:
        after = end_schedule(schedule, ScheduleState.FAILED, f"its task could not be created: {error.message}", now)
    else:
        after = advance_schedule(schedule, since=now, now=now)
    return replace(decision, outcome=RunOutcome.REFUSED, after=after, message=error.message)


def decide_invalid(schedule: Schedule, error: InvalidSchedule, now: datetime) -> RunDecision:
    """Pure: end a schedule whose times cannot be computed, for example without its time zone: it would stay due."""
    after = end_schedule(schedule, ScheduleState.FAILED, f"its run times cannot be computed: {error.message}", now)
    return RunDecision(outcome=RunOutcome.REFUSED, after=after, message=error.message)


def advance_schedule(schedule: Schedule, *, since: datetime, now: datetime) -> Schedule:
    """Pure: set the next time after `since`, or end the schedule if there is none."""
    timing = schedule.timing
    if timing.cron is None or (timing.max_runs is not None and schedule.runs >= timing.max_runs):
        return end_schedule(schedule, ScheduleState.COMPLETED, None, now)
    return set_next_run(schedule, time_after(timing.cron, timing.timezone, since), now)


def set_next_run(schedule: Schedule, next_run_at: datetime | None, now: datetime) -> Schedule:
    """Pure: set this next time, or end the schedule if it expires before."""
    if next_run_at is None:
        return end_schedule(schedule, ScheduleState.COMPLETED, "it has no further run times", now)
    if schedule.timing.expires_at is not None and next_run_at >= schedule.timing.expires_at:
        return end_by_clock(schedule, ScheduleState.EXPIRED, None, now)
    return replace(schedule, next_run_at=next_run_at, reckoned_at=now)


def end_schedule(schedule: Schedule, state: ScheduleState, message: str | None, now: datetime) -> Schedule:
    return replace(schedule, state=state, message=message, next_run_at=None, reckoned_at=now, ended_at=now)


def end_by_clock(schedule: Schedule, state: ScheduleState, message: str | None, now: datetime) -> Schedule:
    """Pure: end a schedule because of the time; if the clock is found to be ahead, the schedule opens again."""
    return replace(end_schedule(schedule, state, message, now), reopens_as=schedule.state)


def count_passed_times(schedule: Schedule, *, until: datetime) -> int:
    """Count the times after the due one that have also passed, up to PASSED_TIMES_MAX."""
    timing, occurrence = schedule.timing, schedule.next_run_at
    if timing.cron is None or occurrence is None:
        return 0
    end = until if timing.expires_at is None else min(until, timing.expires_at - timedelta.resolution)
    further = takewhile(lambda time: time <= end, times_after(timing.cron, timing.timezone, occurrence))
    return sum(1 for _ in islice(further, PASSED_TIMES_MAX))


def upcoming_times(schedule: Schedule) -> list[datetime]:
    """Return the next few run times."""
    timing, first = schedule.timing, schedule.next_run_at
    if first is None or schedule.state is not ScheduleState.ACTIVE:
        return []
    if timing.cron is None:
        return [first]
    left = UPCOMING_MAX if timing.max_runs is None else min(UPCOMING_MAX, timing.max_runs - schedule.runs)
    try:
        times = [first, *islice(times_after(timing.cron, timing.timezone, first), left - 1)]
    except InvalidSchedule:  # firing reports it; a page only shows less
        times = [first]
    return [time for time in times if timing.expires_at is None or time < timing.expires_at]
