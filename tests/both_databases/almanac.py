"""A slow, plain model of schedules: checks every minute for the times of a cron expression and their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ZONES = ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


def changes_of(zone: str, year: int) -> list[datetime]:
    """When the clocks of a zone change."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + number * HOUR / 2 for number in range(2 * 8760)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return [hours[i] for i in range(1, len(hours)) if offsets[i] != offsets[i - 1]]


CHANGES = [(zone, change) for zone in ZONES for change in changes_of(zone, 2026)]


def parsed(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last) if last else high if step else int(first)
        found |= set(range(int(first), end + 1, int(step or 1)))
    return found


@dataclass
class Almanac:
    """The times of a cron expression: each minute of the world is asked whether it is one."""

    expression: str
    zone: str
    sets: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = self.expression.split()
        self.sets = [parsed(part, *bounds) for part, bounds in zip(self.parts, RANGES, strict=True)]
        self.place = ZoneInfo(self.zone)

    def shows(self, shown: datetime) -> bool:
        """Whether clocks that show this show a time of the expression."""
        minutes, hours, days, months, weekdays = self.sets
        is_day, is_weekday = shown.day in days, shown.isoweekday() % 7 in {day % 7 for day in weekdays}
        both = self.parts[2].startswith("*") or self.parts[4].startswith("*")
        is_right = (is_day and is_weekday) if both else (is_day or is_weekday)
        return shown.minute in minutes and shown.hour in hours and shown.month in months and is_right

    def is_due(self, minute: datetime) -> bool:
        local = minute.astimezone(self.place)
        shown = local.replace(tzinfo=None, fold=0)
        if any(part.startswith("*") for part in self.parts[:2]):
            return self.shows(shown)  # by real time
        if local.fold:
            return False  # it was shown before
        before = (minute - MINUTE).astimezone(self.place).replace(tzinfo=None, fold=0)
        skipped = [before + number * MINUTE for number in range(1, (shown - before) // MINUTE)]
        return self.shows(shown) or any(self.shows(time) for time in skipped)

    def times(self, after: datetime, until: datetime) -> Iterator[datetime]:
        minute = after.replace(second=0, microsecond=0)
        while (minute := minute + MINUTE) <= until:
            if self.is_due(minute):
                yield minute


Row = tuple[datetime, datetime, str, int]  # when it was due, when it was dealt with, what came of it, how many with it


@dataclass
class Keeper:
    """What should be in the history of a schedule, when the relay looks only now and then."""

    policy: str
    max_runs: int | None
    expires_at: datetime | None
    due: list[datetime] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    runs: int = 0
    is_open: bool = False  # the run before has not ended
    is_over: bool = False

    def look(self, now: datetime) -> None:
        while self.due and not self.is_over:
            is_late = now - self.due[0] > 5 * MINUTE
            has_expired = self.expires_at is not None and now >= self.expires_at
            if has_expired or (is_late and self.policy == "fail"):
                self.is_over = self.note(now, "missed", len(self.due))
            elif is_late and self.policy == "skip":
                self.note(now, "missed", sum(now - time > 5 * MINUTE for time in self.due))
            elif self.is_open:
                self.overlap(now)
            else:
                self.is_open = self.note(now, "started", len(self.due))
                self.runs += 1
                self.is_over = self.runs == self.max_runs

    def overlap(self, now: datetime) -> None:
        """One row for all that overlap the same run."""
        outcomes = [outcome for _, _, outcome, _ in self.rows]
        started = len(outcomes) - 1 - outcomes[::-1].index("started")
        if "overlapped" not in outcomes[started:]:
            self.note(now, "overlapped", len(self.due))
            return
        place = outcomes.index("overlapped", started)
        due, at, outcome, missed = self.rows[place]
        self.rows[place] = (due, at, outcome, missed + min(len(self.due), 1001))
        self.due.clear()

    def note(self, now: datetime, outcome: str, count: int) -> bool:
        self.rows.append((self.due[0], now, outcome, min(count - 1, 1000)))
        del self.due[:count]
        return True


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.integers(1, high).map(str)
    return st.one_of(
        st.just("*"),
        number.map(str),
        steps.map(lambda step: f"*/{step}"),
        span,
        st.tuples(span, steps).map("/".join),
        st.lists(number.map(str), min_size=2, max_size=4).map(",".join),
    )


MINUTES, NIGHT = fields(*RANGES[0]), st.sampled_from(["0", "1", "2", "3", "1,2", "0-4", "2-3", "*/2"])
RARELY = st.one_of(st.just("*"), st.just("*"), st.just("*"), fields(1, 31))
WEEKDAYS = st.one_of(st.just("*"), st.just("*"), st.just("*"), fields(*RANGES[4]))
EXPRESSIONS = st.tuples(MINUTES, st.one_of(NIGHT, fields(*RANGES[1])), RARELY, st.just("*"), WEEKDAYS).map(" ".join)
