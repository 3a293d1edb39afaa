"""Validates cron expressions and computes their run times in a time zone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delegate.errors import InvalidSchedule
from delegate.schedule.zones import first_instant_of, instants_of, zone_named

CHANGE_MAX = timedelta(hours=3)  # the largest clock change in any zone
FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}
SIZES = {"minute": 60, "hour": 24, "day-of-month": 31, "month": 12, "day-of-week": 7}
EXAMPLE = "`0 2 * * *` (every day at 02:00)"
SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def check_cron(expression: str) -> None:
    """Raise InvalidSchedule unless the expression has five valid fields and occurs at some time."""
    parts = expression.split()
    if parts and parts[0].startswith("@"):
        known = SHORTHANDS.get(parts[0].lower())
        raise _bad_cron(expression, f"write `{known}`" if known else f"write five fields, for example {EXAMPLE}")
    if len(parts) != len(FIELDS):
        raise _bad_cron(expression, f"it has {len(parts)} fields, not 5 ({', '.join(FIELDS)}); try {EXAMPLE}")
    if problem := _problem(parts):
        raise _bad_cron(expression, f"{problem}; try {EXAMPLE}")


def _problem(parts: list[str]) -> str | None:
    try:
        first = next(CronSim(" ".join(parts), datetime(2000, 1, 1)), None)
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        if field == "day-of-month" and parts[3] != "*" and _problem([*parts[:3], "*", parts[4]]) is None:
            return "that day never occurs in that month"
        return _describe_bad_field(field, parts[list(FIELDS).index(field)])
    return "that day never occurs" if first is None else _describe_long_step(parts)


def _describe_bad_field(field: str, written: str) -> str:
    """Return why cronsim rejects the field: its step, its range, or a value out of range."""
    for part in written.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isdecimal() and int(step)):
            return f"the step `/{step}` in the {field} field must be 1 or more"
        first, dash, last = span.partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(first) > int(last):
            return f"the range `{span}` in the {field} field ends before it starts"
    return f"the {field} field must be {FIELDS[field]}"


def _describe_long_step(parts: list[str]) -> str | None:
    """Report a step larger than its field; cronsim would accept it as the field's first value alone."""
    for (field, size), written in zip(SIZES.items(), parts, strict=True):
        for part in written.split(","):
            step = part.partition("/")[2]
            if step.isdecimal() and int(step) > size:
                return f"the step `/{step}` in the {field} field is larger than the field, which has {size} values"
    return None


def _bad_cron(expression: str, why: str) -> InvalidSchedule:
    return InvalidSchedule(field="cronExpression", why=f"`{expression[:100]}` is not a valid cron expression: {why}")


def times_after(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times of a cron expression, in UTC. Clock changes are handled as in Debian's cron: a skipped time of
    day runs in the first minute after the gap, a repeated one runs only the first time, and an expression whose minute
    or hour field starts with `*` follows real time."""
    zone = zone_named(timezone)
    has_star = any(part.startswith("*") for part in expression.split()[:2])
    instants = _by_real_time if has_star else _by_time_of_day
    last = after
    try:
        # Without a zone: with one, cronsim loses times where clocks change by half an hour, or at midnight.
        local_times = CronSim(expression, _start(after, zone))
    except CronSimError:
        raise _bad_cron(expression, f"try {EXAMPLE}") from None
    for instant in instants(local_times, zone):
        if instant > last:  # skipped times that share the end of a gap run once
            yield instant
            last = instant


def time_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    return next(times_after(expression, timezone, after), None)


def _start(after: datetime, zone: ZoneInfo) -> datetime:
    """Return the local time at `after`; near a clock change, early enough to include all repeated times."""
    local = after.astimezone(zone)
    if local.utcoffset() != (after + CHANGE_MAX).astimezone(zone).utcoffset():
        local = (after - CHANGE_MAX).astimezone(zone)
    return local.replace(tzinfo=None, fold=0)


def _by_time_of_day(local_times: Iterable[datetime], zone: ZoneInfo) -> Iterator[datetime]:
    for time in local_times:
        yield first_instant_of(time, zone)


def _by_real_time(local_times: Iterable[datetime], zone: ZoneInfo) -> Iterator[datetime]:
    repeats: list[datetime] = []  # repeated times: all of them run once, then all run again
    for time in local_times:
        instants = instants_of(time, zone)
        if len(instants) == 1:
            yield from repeats
            repeats.clear()
        yield from instants[:1]
        repeats += instants[1:]
