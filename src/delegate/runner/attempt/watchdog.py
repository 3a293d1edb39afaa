"""When an agent must be ended: decided here, done elsewhere. All times are seconds on one monotonic clock.

That clock stands still while the machine sleeps, so a closed lid is neither silence nor time spent.
"""

from __future__ import annotations

from dataclasses import dataclass

from delegate.config.settings import Settings
from delegate.model import AgentName
from delegate.runner.agents.base import Ending
from delegate.wire.runners import Assignment

ASKED_PATIENCE = 60.0  # seconds in which an agent that has asked should end its turn: nothing else is left to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds; None: no such limit."""

    total: float
    asked: float = ASKED_PATIENCE
    no_start: float | None = None
    silence: float | None = None
    linger: float | None = None


@dataclass(slots=True, kw_only=True)
class Signs:
    """The signs of life an agent has given."""

    started_at: float  # of the attempt, which may launch its agent a second time
    launched_at: float
    output_at: float | None = None
    result_at: float | None = None  # None again when a message gives it more to do
    asked_at: float | None = None


def patience_with(assignment: Assignment, settings: Settings) -> Patience:
    total = assignment.timeout_ms / 1000
    if assignment.agent == AgentName.SHELL:
        return Patience(total=total)  # a silent build is no stalled one, and a command has no result to linger after
    return Patience(
        total=total,
        no_start=settings.no_start_after.total_seconds(),
        silence=settings.stalled_after.total_seconds(),
        linger=settings.linger_after.total_seconds(),
    )


def next_end(patience: Patience, signs: Signs) -> tuple[float, Ending]:
    """When this agent will be ended if it gives no further sign, and why."""
    end = (signs.started_at + patience.total, Ending.TIMEOUT)
    if signs.asked_at is not None:
        end = _sooner(end, signs.asked_at, patience.asked, Ending.ASKED)
    if signs.result_at is not None:
        return _sooner(end, signs.result_at, patience.linger, Ending.LINGERED)
    if signs.output_at is None:
        return _sooner(end, signs.launched_at, patience.no_start, Ending.NO_START)
    return _sooner(end, signs.output_at, patience.silence, Ending.STALLED)


def _sooner(end: tuple[float, Ending], since: float, patience: float | None, ending: Ending) -> tuple[float, Ending]:
    return end if patience is None else min(end, (since + patience, ending))
