"""Decides which parts of the queue a runner may take tasks from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delegate.model import Runner
from delegate.placement import ANY_MACHINE, Placement, accepts, lane_prefix, placement_of, prefix_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneScope:
    """The lanes of a runner: of its machine or of any, for what it can run now, as far as it accepts them."""

    runner: Runner
    prefixes: tuple[str, ...]

    def covers(self, lane: str) -> bool:
        return prefix_of(lane) in self.prefixes and refusal(self.runner, placement_of(lane)) is None

    def choose(self, lanes: Iterable[str]) -> list[str]:
        return [lane for lane in lanes if self.covers(lane)]


def scope_of(runner: Runner, agents: Iterable[str]) -> LaneScope:
    # A task that waits for the runner with its session is in a lane of that runner.
    places = (runner.machine, ANY_MACHINE, runner.id)
    return LaneScope(runner=runner, prefixes=tuple(lane_prefix(place, agent) for agent in agents for place in places))


def refusal(runner: Runner, placement: Placement) -> str | None:
    """Return why the runner may not take the task, as in "studio {reason}"; None if it may. Ignores the machine."""
    if placement.runner is not None and placement.runner != runner.name:
        return f"is not {placement.runner}"
    if missing := [tag for tag in placement.tags if tag not in runner.tags]:
        return f"does not have the tag {missing[0]}"
    return accepts(runner.policy, placement, runner.paired_by)
