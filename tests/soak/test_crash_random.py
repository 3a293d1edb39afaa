"""Hundreds of tasks while random processes are killed for twenty minutes."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.fakes.storm import KINDS, strike
from tests.fakes.world import living

pytestmark = pytest.mark.soak
SEED = int(os.environ.get("DELEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
MINUTES = float(os.environ.get("DELEGATE_SOAK_MINUTES", "20"))
TASKS = 500
WORK = "exec 9>>lock-{n}; flock -n 9 || echo {n} >> overlaps; sleep 0.{tenths}; echo {n} >> ended"


@pytest.mark.promise("P1")
def test_a_storm_of_kills_loses_and_repeats_nothing(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    print(f"seed {SEED}")
    with living(tmp_path / "home") as world:
        world.ok("up", "--runners", "4")
        ids = [world.submit(WORK.format(n=n, tenths=dice.randrange(10)), "--rerun") for n in range(TASKS)]
        stop_at = time.monotonic() + MINUTES * 60

        while time.monotonic() < stop_at and any(t["status"] in ("queued", "running") for t in world.tasks()):
            strike(world, [dice.choice(KINDS)], dice)
            time.sleep(dice.uniform(0.2, 2))

        ends = [world.wait_for(task_id, patience=600) for task_id in ids]
        world.ok("down", timeout=120)
        world.audit()
        assert not (world.work / "overlaps").exists()
        assert {(end["status"], end["reason"]) for end in ends} <= {
            ("completed", "done"),
            ("failed", "crashed"),
            ("failed", "poison"),
        }
