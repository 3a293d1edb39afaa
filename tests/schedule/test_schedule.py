"""Times of cron expressions, and what comes of a time that is due: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from delegate.errors import InvalidSchedule
from delegate.intake.schedule_decisions import PASSED_TIMES_MAX, decide, upcoming_times
from delegate.model import ScheduleId, TaskId
from delegate.schedule.cron import check_cron, time_after, times_after
from delegate.schedule.model import MissedRunPolicy, RunOutcome, Schedule, ScheduleState, Timing
from delegate.schedule.zones import zone_named

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
YEARS = timedelta(days=3653)
SKIP, CATCHUP, FAIL = MissedRunPolicy.SKIP, MissedRunPolicy.CATCHUP, MissedRunPolicy.FAIL


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due_at(occurrence: datetime = NOON, **timing: object) -> Schedule:
    return Schedule(
        id=ScheduleId("schedule-1"),
        state=ScheduleState.ACTIVE,
        timing=Timing(**{"cron": "0 * * * *", **timing}),  # type: ignore[arg-type]
        request={"prompt": "tidy up"},
        created_at=NOON - DAY,
        reckoned_at=NOON - HOUR,
        next_run_at=occurrence,
        last_task_id=TaskId("task-before"),
    )


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * *", "has 4 fields, not 5"),
        ("0 0 2 * * *", "has 6 fields, not 5"),
        ("0 0 2 * * * 2030", "has 7 fields, not 5"),
        ("60 * * * *", "minute field must be 0 to 59"),
        ("0 24 * * *", "hour field must be 0 to 23"),
        ("0 0 32 * *", "day-of-month field must be 1 to 31"),
        ("0 0 1 13 *", "month field must be 1 to 12"),
        ("0 0 * * FOO", "day-of-week field must be 0 to 7"),
        ("0 0 31 2 *", "that day never occurs in that month"),
        ("0 0 30,31 2 *", "that day never occurs in that month"),
        ("@every 0s", "write five fields"),
        ("@daily", "write `0 0 * * *`"),
        ("", "has 0 fields"),
        ("*/0 * * * *", "the step `/0` in the minute field must be 1 or more"),
        ("*/61 * * * *", "the step `/61` in the minute field is larger than the field"),
        ("0 0 1 */13 *", "the step `/13` in the month field is larger than the field"),
        ("5-1 * * * *", "the range `5-1` in the minute field ends before it starts"),
        ("0 9,17-12 * * *", "the range `17-12` in the hour field ends before it starts"),
        ("9" * 150 + " * * * *", "minute field must be"),
    ],
)
def test_an_invalid_cron_expression_is_refused_with_what_to_write(expression: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match="cronExpression: ") as refused:
        check_cron(expression)

    assert words in refused.value.message


@pytest.mark.parametrize(
    "expression", ["0 0 29 2 *", "*/15 9-17 * * MON-FRI", "0 8 L * *", "0 8 * * 1#2", "0 0 31 2 1"]
)
def test_a_cron_expression_that_comes_at_some_time_is_taken(expression: str) -> None:
    check_cron(expression)

    assert time_after(expression, "UTC", NOON) is not None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Mars/Base", "use a name like"),
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("/etc/passwd", ""),
        ("America", ""),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(name: str, advice: str) -> None:
    with pytest.raises(InvalidSchedule, match="timezone: unknown time zone") as refused:
        zone_named(name)

    assert advice in refused.value.message


@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    ("expression", "place", "after", "times"),
    [
        # A time of day that is skipped comes once, in the first minute after the gap.
        ("30 2 * * *", "America/New_York", "2026-03-08T00:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        # One that comes twice runs the first time only, also when it is asked for between the two.
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10", ["2026-11-02T06:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:45", ["2026-10-26T01:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        # Every hour is every hour.
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30",
            ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00"],
        ),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30", ["2026-03-29T01:00", "2026-03-29T02:00"]),
        ("*/20 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:41", ["2026-04-04T15:10", "2026-04-05T14:30"]),
        # The evening of the twenty-ninth in New York is the first of March elsewhere.
        ("0 22 29 2 *", "America/New_York", "2026-01-01T00:00", ["2028-03-01T03:00", "2032-03-01T03:00"]),
        ("0 9 * * *", "Asia/Kathmandu", "2026-03-08T00:00", ["2026-03-08T03:15"]),
    ],
)
def test_times_go_by_the_clocks_of_their_zone(expression: str, place: str, after: str, times: list[str]) -> None:
    found = islice(times_after(expression, place, utc(after)), len(times))

    assert list(found) == [utc(time) for time in times]


def test_a_time_is_later_than_what_it_comes_after() -> None:
    assert time_after("0 12 * * *", "UTC", NOON) == NOON + DAY
    assert time_after("0 12 * * *", "UTC", NOON - timedelta(microseconds=1)) == NOON
    assert time_after("0 12 * * *", "UTC", NOON + timedelta(microseconds=1)) == NOON + DAY


@pytest.mark.promise("P14")
@pytest.mark.parametrize("late", [timedelta(), timedelta(seconds=1), 4 * MINUTE, 5 * MINUTE])
@pytest.mark.parametrize("policy", MissedRunPolicy)
def test_a_run_that_is_at_most_five_minutes_late_starts(late: timedelta, policy: MissedRunPolicy) -> None:
    decision = decide(due_at(missed_run_policy=policy), is_run_open=False, now=NOON + late)

    assert (decision.outcome, decision.missed) == (RunOutcome.STARTED, 0)
    assert (decision.after.runs, decision.after.next_run_at) == (1, NOON + HOUR)


@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    ("late", "policy", "outcome", "missed", "state", "next_run_at"),
    [
        (6 * MINUTE, SKIP, RunOutcome.MISSED, 0, ScheduleState.ACTIVE, NOON + HOUR),
        (6 * MINUTE, CATCHUP, RunOutcome.STARTED, 0, ScheduleState.ACTIVE, NOON + HOUR),
        (6 * MINUTE, FAIL, RunOutcome.MISSED, 0, ScheduleState.FAILED, None),
        (DAY + 30 * MINUTE, SKIP, RunOutcome.MISSED, 24, ScheduleState.ACTIVE, NOON + DAY + HOUR),
        (DAY + 30 * MINUTE, CATCHUP, RunOutcome.STARTED, 24, ScheduleState.ACTIVE, NOON + DAY + HOUR),
        (DAY + 30 * MINUTE, FAIL, RunOutcome.MISSED, 24, ScheduleState.FAILED, None),
        # The last of them is only two minutes late: it still runs.
        (DAY + 2 * MINUTE, SKIP, RunOutcome.MISSED, 23, ScheduleState.ACTIVE, NOON + DAY),
        (DAY + 5 * MINUTE, SKIP, RunOutcome.MISSED, 23, ScheduleState.ACTIVE, NOON + DAY),
        (YEARS, SKIP, RunOutcome.MISSED, PASSED_TIMES_MAX, ScheduleState.ACTIVE, NOON + YEARS),
        (YEARS, CATCHUP, RunOutcome.STARTED, PASSED_TIMES_MAX, ScheduleState.ACTIVE, NOON + YEARS + HOUR),
    ],
)
def test_a_run_that_is_later_goes_by_the_policy(
    late: timedelta,
    policy: MissedRunPolicy,
    outcome: RunOutcome,
    missed: int,
    state: ScheduleState,
    next_run_at: datetime | None,
) -> None:
    decision = decide(due_at(missed_run_policy=policy), is_run_open=False, now=NOON + late)

    assert (decision.outcome, decision.missed) == (outcome, missed)
    assert (decision.after.state, decision.after.next_run_at) == (state, next_run_at)


def test_a_schedule_that_a_missed_run_has_stopped_says_so() -> None:
    decision = decide(due_at(missed_run_policy=FAIL), is_run_open=False, now=NOON + HOUR)

    assert decision.after.message == (
        "the run at 2026-03-04 12:00 UTC was missed: it could not start before 2026-03-04 13:00 UTC; "
        "its policy ends it after a missed run"
    )


@pytest.mark.parametrize(("policy", "state"), [(SKIP, ScheduleState.EXPIRED), (FAIL, ScheduleState.FAILED)])
def test_a_moment_that_was_missed_does_not_come_again(policy: MissedRunPolicy, state: ScheduleState) -> None:
    schedule = due_at(cron=None, at=NOON, missed_run_policy=policy)

    decision = decide(schedule, is_run_open=False, now=NOON + HOUR)

    assert (decision.outcome, decision.after.state) == (RunOutcome.MISSED, state)
    assert "2026-03-04 12:00 UTC was missed" in (decision.after.message or "")


def test_a_run_does_not_start_before_the_one_before_has_ended() -> None:
    decision = decide(due_at(cron="* * * * *"), is_run_open=True, now=NOON + 2 * MINUTE)

    assert (decision.outcome, decision.missed) == (RunOutcome.OVERLAPPED, 2)
    assert decision.message == "the previous run, task-before, had not ended"
    assert (decision.after.runs, decision.after.next_run_at) == (0, NOON + 3 * MINUTE)


@pytest.mark.parametrize("after_expiry", [timedelta(), timedelta(seconds=1), DAY])
@pytest.mark.parametrize("policy", MissedRunPolicy)
def test_nothing_runs_at_or_after_the_expiry(after_expiry: timedelta, policy: MissedRunPolicy) -> None:
    schedule = due_at(missed_run_policy=policy, expires_at=NOON + MINUTE)

    decision = decide(schedule, is_run_open=False, now=NOON + MINUTE + after_expiry)

    assert (decision.outcome, decision.after.state) == (RunOutcome.MISSED, ScheduleState.EXPIRED)
    assert decision.after.next_run_at is None


def test_a_schedule_expires_with_its_last_run_before_the_expiry() -> None:
    decision = decide(due_at(expires_at=NOON + HOUR), is_run_open=False, now=NOON)

    assert (decision.outcome, decision.after.state) == (RunOutcome.STARTED, ScheduleState.EXPIRED)


def test_a_schedule_is_complete_with_the_last_of_its_runs() -> None:
    schedule = replace(due_at(max_runs=3), runs=2)

    decision = decide(schedule, is_run_open=False, now=NOON)

    assert (decision.after.state, decision.after.runs) == (ScheduleState.COMPLETED, 3)


def test_a_run_that_could_not_start_is_none_of_the_wanted_ones() -> None:
    schedule = replace(due_at(max_runs=3), runs=2)

    decision = decide(schedule, is_run_open=True, now=NOON)

    assert (decision.after.state, decision.after.runs) == (ScheduleState.ACTIVE, 2)


def test_the_coming_runs_are_as_many_as_are_left() -> None:
    hours = [NOON, NOON + HOUR, NOON + 2 * HOUR]

    assert upcoming_times(due_at()) == hours
    assert upcoming_times(replace(due_at(max_runs=5), runs=3)) == hours[:2]
    assert upcoming_times(due_at(expires_at=NOON + HOUR)) == hours[:1]
    assert upcoming_times(due_at(cron=None, at=NOON)) == [NOON]
    assert upcoming_times(replace(due_at(), next_run_at=None)) == []


@pytest.mark.parametrize("name", ["localtime", "Factory", "posixrules"])
def test_a_file_of_the_database_that_is_not_a_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"unknown time zone '{name}'"):
        zone_named(name)
