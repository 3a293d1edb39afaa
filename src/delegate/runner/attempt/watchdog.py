"""When an agent must be ended: decided here, done elsewhere. All times are seconds on one monotonic clock.

That clock stands still while the machine sleeps, so a closed lid is neither silence nor time spent.
"""

from __future__ import annotations

from dataclasses import dataclass

from delegate.config.settings import Settings
from delegate.model import AgentName
from delegate.runner.agents.base import Ending
from delegate.wire.runners import Assignment

ASKED_TIMEOUT = 60.0  # seconds in which an agent that has asked should end its turn: nothing else is left to do


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds; None: no such limit."""

    total: float
    asked: float = ASKED_TIMEOUT
    no_start: float | None = None
    silence: float | None = None
    linger: float | None = None


@dataclass(slots=True, kw_only=True)
class AgentActivity:
    """The signs of life an agent has given."""

    started_at: float  # of the attempt, which may launch its agent a second time
    launched_at: float
    output_at: float | None = None
    result_at: float | None = None  # None again when a message gives it more to do
    asked_at: float | None = None


def time_limits_for(assignment: Assignment, settings: Settings) -> TimeLimits:
    total = assignment.timeout_ms / 1000
    if assignment.agent == AgentName.SHELL:
        return TimeLimits(total=total)  # a silent build is no stalled one, and a command has no result to linger after
    return TimeLimits(
        total=total,
        no_start=settings.no_start_after.total_seconds(),
        silence=settings.stalled_after.total_seconds(),
        linger=settings.linger_after.total_seconds(),
    )


def next_deadline(limits: TimeLimits, activity: AgentActivity) -> tuple[float, Ending]:
    """When this agent will be ended if it gives no further sign, and why."""
    end = (activity.started_at + limits.total, Ending.TIMEOUT)
    if activity.asked_at is not None:
        end = _earlier_end(end, activity.asked_at, limits.asked, Ending.ASKED)
    if activity.result_at is not None:
        return _earlier_end(end, activity.result_at, limits.linger, Ending.LINGERED)
    if activity.output_at is None:
        return _earlier_end(end, activity.launched_at, limits.no_start, Ending.NO_START)
    return _earlier_end(end, activity.output_at, limits.silence, Ending.STALLED)


def _earlier_end(end: tuple[float, Ending], since: float, limit: float | None, ending: Ending) -> tuple[float, Ending]:
    return end if limit is None else min(end, (since + limit, ending))
