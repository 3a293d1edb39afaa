from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delegate.queue.runner_states import (
    RunnerActivity,
    RunnerCondition,
    RunnerCounts,
    condition_of,
    count_conditions,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
LEASE = timedelta(minutes=2)
TICK = timedelta(microseconds=1)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
C = RunnerCondition
SPOKEN, CLAIMED = True, False
STATES: list[tuple[RunnerCondition, timedelta, tuple[bool, ...], dict[str, bool]]] = [
    (C.ONLINE, timedelta(), (), {}),
    (C.ONLINE, MINUTE, (), {}),
    (C.IDLE, MINUTE + TICK, (), {}),
    (C.IDLE, DAY, (), {}),
    (C.OFFLINE, DAY + TICK, (), {}),
    (C.CLAIMING, timedelta(), (CLAIMED,), {}),
    (C.CLAIMING, LEASE, (CLAIMED, CLAIMED), {}),
    (C.RUNNING, timedelta(), (SPOKEN,), {}),
    (C.RUNNING, LEASE, (CLAIMED, SPOKEN), {}),
    (C.SILENT, LEASE + TICK, (SPOKEN,), {}),
    (C.SILENT, DAY + LEASE, (CLAIMED,), {}),
    (C.DRAINING, timedelta(), (SPOKEN,), {"is_draining": True}),
    (C.DRAINING, DAY + LEASE, (), {"is_draining": True}),
    (C.REVOKED, timedelta(), (SPOKEN,), {"is_revoked": True, "is_draining": True}),
]


@pytest.mark.parametrize(("expected", "unseen", "holds", "flags"), STATES)
def test_the_state_of_a_runner(
    expected: RunnerCondition, unseen: timedelta, holds: tuple[bool, ...], flags: dict[str, bool]
) -> None:
    activity = RunnerActivity(seen_at=NOW - unseen, holds=holds, **flags)

    assert condition_of(activity, LEASE, NOW) is expected


def test_the_counts_of_the_head_line() -> None:
    counts = count_conditions([C.CLAIMING, C.ONLINE, C.ONLINE, C.RUNNING, C.SILENT, C.IDLE, C.DRAINING, C.REVOKED])

    assert counts == RunnerCounts(online=4, claiming=1, idle=2, total=7)
