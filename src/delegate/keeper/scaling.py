"""Decides which runners the keeper starts, lets claim, holds back and retires. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delegate.keeper.capacity import Capacity

BASE_MAX = 8  # processes to keep at most, however many cores the machine has: each uses about 50 MB
WARM_MIN = 5  # processes to keep during work, if there is capacity: starting one takes half a second of CPU
SURGE = 3  # processes started together when no runner is idle: tasks often come in groups
REPLACED_MAX = 2  # runners in trouble that are replaced; with more, replacements would fail as well
RETIRE_AFTER = 300.0  # seconds without work after which a process beyond the base is retired


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    base: int  # processes that are always kept
    warm: int  # processes that are kept while some are busy, if there is capacity
    maximum: int

    @classmethod
    def of(cls, *, cores: float, fixed: int | None, ceiling: int) -> FleetShape:
        """`fixed` is a number that the user asked for: all of them are kept."""
        if fixed is not None:
            return cls(base=fixed, warm=fixed, maximum=fixed)
        base = min(max(1, int(cores)), BASE_MAX, ceiling)
        return cls(base=base, warm=min(max(base, WARM_MIN), ceiling), maximum=ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRunner:
    """A runner without a task: it is starting, waits for one, or is held back."""

    slot: int
    is_ready: bool  # it can claim now
    is_open: bool
    is_in_trouble: bool = False
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    open: frozenset[int]
    hold: frozenset[int]
    retire: frozenset[int]
    start: int


def plan(waiting: Sequence[IdleRunner], busy: int, capacity: Capacity, shape: FleetShape, now: float) -> Plan:
    ordered = [one.slot for one in sorted(waiting, key=_open_order)]
    retire = _slots_to_retire(waiting, busy, shape, now)
    staying = [slot for slot in ordered if slot not in retire]
    return Plan(
        open=frozenset(staying[: capacity.count]),
        hold=frozenset(staying[capacity.count :]),
        retire=retire,
        start=min(
            _start_count(_without_replaced(waiting), busy, capacity, shape), max(0, shape.maximum - len(waiting) - busy)
        ),
    )


def _open_order(one: IdleRunner) -> tuple[bool, bool, bool, int]:
    """Open runners come first: moving a claim from one idle runner to another gains nothing. But a runner in trouble
    comes last, so that it does not keep others from claiming."""
    return one.is_in_trouble, not one.is_ready, not one.is_open, one.slot


def _without_replaced(waiting: Sequence[IdleRunner]) -> Sequence[IdleRunner]:
    failing = [one for one in waiting if one.is_in_trouble]
    return [one for one in waiting if one not in failing[:REPLACED_MAX]]


def _start_count(waiting: Sequence[IdleRunner], busy: int, capacity: Capacity, shape: FleetShape) -> int:
    there = len(waiting) + busy
    if there < shape.base:
        return shape.base - there
    starting = sum(not one.is_ready for one in waiting)
    if busy and starting == len(waiting):
        # Start one even without capacity: it is ready when there is some, and until then it reports what is short.
        wanted = max(1, min(capacity.count, max(SURGE, shape.base)))
        return max(0, wanted - starting)
    # One at a time: no task waits for these, and they must not slow down running agents.
    return int(busy > 0 and starting == 0 and there < shape.warm and len(waiting) < capacity.count)


def _slots_to_retire(waiting: Sequence[IdleRunner], busy: int, shape: FleetShape, now: float) -> frozenset[int]:
    wanted = shape.warm if busy else shape.base
    kept = max(wanted - busy, min(1, shape.maximum - busy))
    # Not while it starts: it may be settling what its predecessor left.
    rested = [one for one in waiting if (one.is_ready or one.is_in_trouble) and now - one.since >= RETIRE_AFTER]
    surplus = max(0, len(waiting) - kept)
    first = sorted(rested, key=lambda one: (one.is_in_trouble, one.slot), reverse=True)
    return frozenset(one.slot for one in first[:surplus])
