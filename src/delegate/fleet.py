"""Which runner processes the keeper starts, lets claim, holds back and sends home. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delegate.pool import Room

BASE_MOST = 8  # processes that are always there, however many cores the machine has: each holds some 50 MB
WARM_LEAST = 5  # processes in all while there is work and room for more: starting one takes half a second of CPU
SURGE = 3  # processes started together when none is left that waits: work seldom comes alone
RETIRE_AFTER = 300.0  # seconds without work after which a process beyond the base is sent home


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    base: int  # processes that are kept, whatever happens
    warm: int  # processes that are kept while some of them work, if there is room for them
    most: int

    @classmethod
    def of(cls, *, cores: float, fixed: int | None, ceiling: int) -> Shape:
        """`fixed` is a number that somebody asked for: all of them are kept."""
        if fixed is not None:
            return cls(base=fixed, warm=fixed, most=fixed)
        base = min(max(1, int(cores)), BASE_MOST, ceiling)
        return cls(base=base, warm=min(max(base, WARM_LEAST), ceiling), most=ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A runner without a task: it is starting, waits for one, or is held back."""

    slot: int
    is_ready: bool  # it could claim at once
    is_open: bool
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    open: frozenset[int]
    hold: frozenset[int]
    retire: frozenset[int]
    start: int


def plan(waiting: Sequence[Waiting], busy: int, room: Room, shape: Shape, now: float) -> Orders:
    # Those that are open stay it first: breaking off a claim only to let another one ask helps nobody.
    ordered = [one.slot for one in sorted(waiting, key=lambda one: (not one.is_ready, not one.is_open, one.slot))]
    retire = _to_retire(waiting, busy, shape, now)
    staying = [slot for slot in ordered if slot not in retire]
    return Orders(
        open=frozenset(staying[: room.count]),
        hold=frozenset(staying[room.count :]),
        retire=retire,
        start=_to_start(waiting, busy, room, shape),
    )


def _to_start(waiting: Sequence[Waiting], busy: int, room: Room, shape: Shape) -> int:
    there = len(waiting) + busy
    if there < shape.base:
        return shape.base - there
    starting = sum(not one.is_ready for one in waiting)
    if busy and starting == len(waiting):
        # One is wanted even without room: it is quick when there is some, and until then it says what is lacking.
        wanted = max(1, min(room.count, max(SURGE, shape.base)))
        return max(0, min(wanted - starting, shape.most - there))
    # One after the other: nobody waits for these, and what works just now must not feel them.
    return int(busy > 0 and starting == 0 and there < shape.warm and len(waiting) < room.count)


def _to_retire(waiting: Sequence[Waiting], busy: int, shape: Shape, now: float) -> frozenset[int]:
    wanted = shape.warm if busy else shape.base
    kept = max(wanted - busy, min(1, shape.most - busy))
    rested = [one.slot for one in waiting if now - one.since >= RETIRE_AFTER]
    surplus = max(0, len(waiting) - kept)
    return frozenset(sorted(rested, reverse=True)[:surplus])
