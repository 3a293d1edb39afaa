"""Derives the state of a runner from when it was seen and what it holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

ONLINE_FOR = timedelta(seconds=60)  # since it was seen: a free process asks for work every 25 seconds
OFFLINE_AFTER = timedelta(days=1)


class RunnerCondition(StrEnum):
    CLAIMING = "claiming"  # a slot has claimed a task, and the agent has not spoken yet
    RUNNING = "running"  # at least one slot works
    ONLINE = "online"  # free
    SILENT = "silent"  # not seen for longer than a lease while it holds work
    IDLE = "idle"  # holds nothing, not seen for a minute to a day
    OFFLINE = "offline"
    DRAINING = "draining"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerActivity:
    """What the state depends on."""

    seen_at: datetime  # by its heartbeat, or by a call of one of its slots
    holds: Sequence[bool] = ()  # for each attempt it holds, whether the agent has spoken
    is_draining: bool = False
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCounts:
    online: int  # claiming, running, or free
    claiming: int
    idle: int  # online and free
    total: int


def condition_of(activity: RunnerActivity, lease: timedelta, now: datetime) -> RunnerCondition:
    if activity.is_revoked:
        return RunnerCondition.REVOKED
    if activity.is_draining:
        return RunnerCondition.DRAINING
    unseen = now - activity.seen_at
    if activity.holds:
        if unseen > lease:
            return RunnerCondition.SILENT
        return RunnerCondition.RUNNING if any(activity.holds) else RunnerCondition.CLAIMING
    if unseen <= ONLINE_FOR:
        return RunnerCondition.ONLINE
    return RunnerCondition.IDLE if unseen <= OFFLINE_AFTER else RunnerCondition.OFFLINE


def count_conditions(conditions: Iterable[RunnerCondition]) -> RunnerCounts:
    found = Counter(conditions)
    claiming, free = found[RunnerCondition.CLAIMING], found[RunnerCondition.ONLINE]
    return RunnerCounts(
        online=claiming + found[RunnerCondition.RUNNING] + free,
        claiming=claiming,
        idle=free,
        total=found.total() - found[RunnerCondition.REVOKED],
    )
