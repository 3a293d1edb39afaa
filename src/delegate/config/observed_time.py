"""The time that deletions go by: a clock that is ahead for less than an hour of uptime deletes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delegate.config.home_files import write_private

OBSERVED_MIN = timedelta(hours=1)
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
# Counts the time the machine sleeps, unlike the clock that timeouts run on.
SLEEP_COUNTING = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC


def sleep_counting_clock() -> float:
    return time.clock_gettime(SLEEP_COUNTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    confirmed: datetime  # the clock has shown this time or a later one for OBSERVED_MIN of uptime
    since: datetime  # the clock has shown this time or a later one for `uptime`, so far
    uptime: timedelta = timedelta()


def observe(before: Observation, *, now: datetime, elapsed: timedelta) -> Observation:
    """Pure: add an observation after so much uptime; time during which the machine slept is not uptime."""
    if now < before.since:  # the clock was set back
        return Observation(confirmed=min(before.confirmed, now), since=now)
    uptime = before.uptime + elapsed
    if uptime < OBSERVED_MIN:
        return replace(before, uptime=uptime)
    return Observation(confirmed=before.since, since=now)


class ObservedClock:
    """Keeps the observations of one process in a file, so that short uptimes add up."""

    def __init__(self, path: Path, uptime: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._uptime = uptime
        self._observed_at: float | None = None  # on the clock of `uptime`

    def confirm(self, now: datetime) -> datetime:
        """Observe the clock, and return the time that has been confirmed; NEVER if none has."""
        before, uptime = self._read() or Observation(confirmed=NEVER, since=now), self._uptime()
        elapsed = timedelta(seconds=uptime - (uptime if self._observed_at is None else self._observed_at))
        after = observe(before, now=now, elapsed=elapsed)
        self._observed_at = uptime
        times = {"confirmed": after.confirmed.isoformat(), "since": after.since.isoformat()}
        write_private(self._path, json.dumps({**times, "uptime": after.uptime.total_seconds()}))
        return after.confirmed

    def _read(self) -> Observation | None:
        try:
            found = json.loads(self._path.read_text())
            confirmed, since = (datetime.fromisoformat(found[name]).astimezone(UTC) for name in ("confirmed", "since"))
            return Observation(confirmed=confirmed, since=since, uptime=timedelta(seconds=found["uptime"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None  # missing or damaged: start again
