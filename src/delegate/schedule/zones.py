"""Looks up time zones by name and converts local times to UTC. Pure, and quick to load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from delegate.errors import InvalidSchedule

MINUTE = timedelta(minutes=1)
# Files of the time zone database that are not zones: the machine's own zone, a placeholder, and rules for others.
NOT_ZONES = frozenset({"localtime", "Factory", "posixrules"})


@lru_cache(maxsize=64)
def zone_named(name: str) -> ZoneInfo:
    try:
        if name in NOT_ZONES:
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = get_close_matches(name, _names(), n=1)
        advice = f"did you mean {near[0]}?" if near else "use a name like Europe/Berlin or UTC"
        raise InvalidSchedule(field="timezone", why=f"unknown time zone {name!r}; {advice}") from None


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Cached, because it reads thousands of files."""
    return frozenset(available_timezones()) - NOT_ZONES


def instants_of(time: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the instants at which local clocks show this time: one, two, or none."""
    readings = (time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return sorted({instant for instant in readings if instant.astimezone(zone).replace(tzinfo=None, fold=0) == time})


def first_instant_of(time: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which clocks show this time, or the first minute after the gap that skips it."""
    if instants := instants_of(time, zone):
        return instants[0]
    time = time.replace(second=0, microsecond=0)
    while not (instants := instants_of(time, zone)):
        time += MINUTE
    return instants[0]
