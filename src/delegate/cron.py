"""Cron expressions in their own time zones: which are good, and when they are due. Pure."""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delegate.errors import InvalidSchedule

MINUTE = timedelta(minutes=1)
CHANGE_MAX = timedelta(hours=3)  # no clocks are changed by more
FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}
EXAMPLE = "for example `0 2 * * *`, every day at 02:00"
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
    """Refuses one that has not five good fields, or that never comes."""
    parts = expression.split()
    if parts and parts[0].startswith("@"):
        known = SHORTHANDS.get(parts[0].lower())
        raise _bad_cron(expression, f"write `{known}`" if known else f"write five fields, {EXAMPLE}")
    if len(parts) != len(FIELDS):
        raise _bad_cron(expression, f"it has {len(parts)} fields and needs five ({', '.join(FIELDS)}), {EXAMPLE}")
    if problem := _problem(parts):
        raise _bad_cron(expression, f"{problem}; write {EXAMPLE}")


def _problem(parts: list[str]) -> str | None:
    try:
        first = next(CronSim(" ".join(parts), datetime(2000, 1, 1)), None)
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        if field == "day-of-month" and parts[3] != "*" and _problem([*parts[:3], "*", parts[4]]) is None:
            return "that day never comes in that month"
        return f"its {field} must be of {FIELDS[field]}"
    return "that day never comes" if first is None else None


def _bad_cron(expression: str, why: str) -> InvalidSchedule:
    return InvalidSchedule(field="cronExpression", why=f"`{expression[:100]}` is no time: {why}")


@lru_cache(maxsize=64)
def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(name, zoneinfo.available_timezones(), n=1)
        advice = f"did you mean {near[0]}?" if near else "write one like Europe/Berlin or UTC"
        raise InvalidSchedule(field="timezone", why=f"there is no time zone {name}; {advice}") from None


def times_after(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The times of a cron expression, in UTC. Where the clocks change it does as Debian's cron: a time of day that they
    skip comes in the first minute after the gap, one that they show twice comes once, the first time; what comes every
    so many minutes or hours (a field that begins with `*`) goes by real time."""
    place = zone(timezone)
    has_star = any(part.startswith("*") for part in expression.split()[:2])
    moments = _by_real_time if has_star else _by_time_of_day
    last = after
    # Without a zone: with one, cronsim loses times where clocks change by half an hour, or at midnight.
    for moment in moments(CronSim(expression, _start(after, place)), place):
        if moment > last:  # times that share the end of a gap come once
            yield moment
            last = moment


def time_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    return next(times_after(expression, timezone, after), None)


def _start(after: datetime, place: ZoneInfo) -> datetime:
    """What the clocks on the wall show then; before a change of clocks, early enough for all that they show again."""
    local = after.astimezone(place)
    if local.utcoffset() != (after + CHANGE_MAX).astimezone(place).utcoffset():
        local = (after - CHANGE_MAX).astimezone(place)
    return local.replace(tzinfo=None, fold=0)


def _by_time_of_day(shown: Iterable[datetime], place: ZoneInfo) -> Iterator[datetime]:
    for time in shown:
        while not (moments := _moments(time, place)):
            time += MINUTE  # noqa: PLW2901  # it is skipped: on to the end of the gap
        yield moments[0]


def _by_real_time(shown: Iterable[datetime], place: ZoneInfo) -> Iterator[datetime]:
    again: list[datetime] = []  # all that is shown twice comes first once and then once more
    for time in shown:
        moments = _moments(time, place)
        if len(moments) == 1:
            yield from again
            again.clear()
        yield from moments[:1]
        again += moments[1:]


def _moments(time: datetime, place: ZoneInfo) -> list[datetime]:
    """When the clocks show this: once, twice, or never."""
    readings = (time.replace(tzinfo=place, fold=fold).astimezone(UTC) for fold in (0, 1))
    return sorted({moment for moment in readings if moment.astimezone(place).replace(tzinfo=None, fold=0) == time})
