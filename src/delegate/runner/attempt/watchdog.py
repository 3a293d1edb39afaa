"""Decides when an agent must be stopped. All times are seconds on one monotonic clock.

That clock stops while the machine sleeps, so sleep counts neither as silence nor as run time.
"""

from __future__ import annotations

from dataclasses import dataclass

from delegate.config.settings import Settings
from delegate.model import AgentName
from delegate.runner.agents.base import Ending
from delegate.runner.assignment import Assignment

ASKED_TIMEOUT = 60.0  # seconds for an agent to end its turn after asking a question


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """In seconds; None means no limit."""

    total: float
    asked: float = ASKED_TIMEOUT
    no_start: float | None = None
    silence: float | None = None
    linger: float | None = None


@dataclass(slots=True, kw_only=True)
class AgentActivity:
    """When the agent last showed activity."""

    started_at: float  # of the attempt, which may launch several agent processes
    launched_at: float
    output_at: float | None = None
    result_at: float | None = None  # reset to None when a message starts more work
    waiting_since: float | None = None  # for commands in the background, after a result
    asked_at: float | None = None


def time_limits_for(assignment: Assignment, settings: Settings) -> TimeLimits:
    total = assignment.timeout.total_seconds()
    if assignment.agent == AgentName.SHELL:
        return TimeLimits(total=total)  # a build may be silent, and a command has no result after which it could linger
    return TimeLimits(
        total=total,
        no_start=settings.no_start_after.total_seconds(),
        silence=settings.stalled_after.total_seconds(),
        linger=settings.linger_after.total_seconds(),
    )


def next_deadline(limits: TimeLimits, activity: AgentActivity) -> tuple[float, Ending]:
    """When the agent must be stopped if it shows no further activity, and why."""
    end = (activity.started_at + limits.total, Ending.TIMEOUT)
    if activity.asked_at is not None:
        end = _earlier_end(end, activity.asked_at, limits.asked, Ending.ASKED)
    result_at = activity.waiting_since if activity.result_at is None else activity.result_at
    if result_at is not None:
        return _earlier_end(end, result_at, limits.linger, Ending.LINGERED)
    if activity.output_at is None:
        return _earlier_end(end, activity.launched_at, limits.no_start, Ending.NO_START)
    return _earlier_end(end, activity.output_at, limits.silence, Ending.STALLED)


def _earlier_end(end: tuple[float, Ending], since: float, limit: float | None, ending: Ending) -> tuple[float, Ending]:
    return end if limit is None else min(end, (since + limit, ending))
