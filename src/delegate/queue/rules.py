"""The times and sums the queue works with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.config import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    lease: timedelta
    reclaim_after: timedelta
    daily_budget_usd: float | None = None

    def silent_since(self, now: datetime) -> datetime:
        """Leases renewed at or before this moment may be taken by another runner."""
        return now - self.reclaim_after


def rules_of(settings: Settings) -> Rules:
    return Rules(lease=settings.lease, reclaim_after=settings.reclaim_after, daily_budget_usd=settings.daily_budget_usd)


def start_of_day(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
