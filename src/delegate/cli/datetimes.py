"""Parses times as people type them: in a time zone, or relative to now."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from delegate.errors import InvalidSchedule
from delegate.schedule.zones import first_instant_of, instants_of, zone_named

FROM_NOW = re.compile(r"\+(\d{1,9})([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
DATETIME_HELP = "write it as 2030-02-19T08:00, 2030-02-19T08:00:00Z or +2h"


def parse_datetime(field: str, text: str, zone: str, now: datetime) -> str:
    """Convert ISO 8601 with or without an offset, or a time relative to now, to ISO 8601 with an offset."""
    if counted := FROM_NOW.fullmatch(text.strip()):
        try:
            return (now + timedelta(**{UNITS[counted[2]]: int(counted[1])})).isoformat()
        except OverflowError:
            raise InvalidSchedule(field=field, why=f"{text} from now is after the year 9999") from None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidSchedule(field=field, why=f"{text!r} is not a time; {DATETIME_HELP}") from None
    if len(text.strip()) <= len("2026-02-19"):
        raise InvalidSchedule(field=field, why=f"{text!r} has no time of day; {DATETIME_HELP}")
    if instant.tzinfo:
        return instant.isoformat()
    zone_info = zone_named(zone)
    return first_instant_of(instant, zone_info).astimezone(zone_info).isoformat()


def is_skipped_time(text: str, zone: str) -> bool:
    """Whether the clocks of the zone skip this time, as when daylight saving time starts."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return False
    return time.tzinfo is None and not instants_of(time, zone_named(zone))
