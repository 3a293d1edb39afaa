"""The limits of the queue: leases, budgets and the number of runners."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.config.settings import Settings
from delegate.model import Task
from delegate.store.children import committed_budget
from delegate.store.database import Connection

LEAST_BUDGET_USD = 0.0001  # when nothing is left: an agent started with this ends at once and reports why


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    lease: timedelta
    reclaim_after: timedelta
    daily_budget_usd: float | None = None
    max_runners: int | None = None
    session_wait: timedelta = timedelta(minutes=10)  # for the runner that has the session of a task

    def silent_since(self, now: datetime) -> datetime:
        """Another runner may take leases that were last renewed at or before this time."""
        return now - self.reclaim_after


def rules_of(settings: Settings) -> QueueRules:
    return QueueRules(
        lease=settings.lease,
        reclaim_after=settings.reclaim_after,
        daily_budget_usd=settings.daily_budget_usd,
        max_runners=settings.max_runners,
        session_wait=settings.session_wait,
    )


def own_budget_left(connection: Connection, task: Task) -> float | None:
    """Return what earlier attempts, and tasks that its agents submitted, have left of the task's own budget;
    LEAST_BUDGET_USD for nothing."""
    if task.limits.max_budget_usd is None:
        return None
    left = task.limits.max_budget_usd - task.usage.cost_usd - committed_budget(connection, task.id)
    return left if left > 0 else LEAST_BUDGET_USD


def start_of_day(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
