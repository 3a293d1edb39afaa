"""Time zones by their names, and when their clocks show a time. Pure, and quick to load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from delegate.errors import InvalidSchedule

MINUTE = timedelta(minutes=1)


@lru_cache(maxsize=64)
def zone_named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = get_close_matches(name, _names(), n=1)
        advice = f"did you mean {near[0]}?" if near else "write one like Europe/Berlin or UTC"
        raise InvalidSchedule(field="timezone", why=f"there is no time zone {name!r}; {advice}") from None


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Read once: it takes a walk through some thousand files."""
    return frozenset(available_timezones())


def moments_of(time: datetime, place: ZoneInfo) -> list[datetime]:
    """When the clocks show this: once, twice, or never."""
    readings = (time.replace(tzinfo=place, fold=fold).astimezone(UTC) for fold in (0, 1))
    return sorted({moment for moment in readings if moment.astimezone(place).replace(tzinfo=None, fold=0) == time})


def moment_of(time: datetime, place: ZoneInfo) -> datetime:
    """When the clocks show this for the first time; if they skip it, the first minute after the gap."""
    if moments := moments_of(time, place):
        return moments[0]
    time = time.replace(second=0, microsecond=0)
    while not (moments := moments_of(time, place)):
        time += MINUTE
    return moments[0]
