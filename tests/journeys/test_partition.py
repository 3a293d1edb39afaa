"""A paired runner is cut off from its relay: the work is delayed, and nothing that is visible outside happens twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.fakes.remote import remote_world
from tests.fakes.world import wait_until
from tests.git import run_git

pytestmark = pytest.mark.slow
SEEDS = 20  # of `make soak`


def new_project(place: Path) -> Path:
    """A clone with one commit, and its remote beside it."""
    project, origin = place / "project", place / "origin.git"
    run_git("init", "-q", "--bare", "-b", "main", str(origin), cwd=place)
    run_git("clone", "-q", str(origin), str(project), cwd=place)
    run_git("commit", "-q", "--allow-empty", "-m", "first", cwd=project)
    run_git("push", "-q", "origin", "HEAD:main", cwd=project)
    return project


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    "outages",
    [
        pytest.param([1.0], id="within a lease"),
        pytest.param([4.0], id="beyond it"),
        pytest.param([8.0], id="beyond the time to take over"),
        *(pytest.param(seed, id=f"seed {seed}", marks=pytest.mark.soak) for seed in range(SEEDS)),
    ],
)
def test_a_cut_connection_delays_the_work_and_repeats_nothing(tmp_path: Path, outages: list[float] | int) -> None:
    dice = random.Random(outages if isinstance(outages, int) else 0)
    if isinstance(outages, int):
        outages = [dice.uniform(0.1, 12) for _ in range(dice.randint(2, 6))]
    project, begun = new_project(tmp_path), tmp_path / "begun"
    command = f"echo before; touch {begun}; sleep {2 * len(outages)}; echo after; echo made > made.txt"
    with remote_world(tmp_path / "home") as world:
        world.ok("up", "--runners", "1")
        task_id = world.submit(command, "--worktree", "--working-directory", str(project))
        wait_until(begun.exists)

        for number, outage in enumerate(outages):
            time.sleep(dice.uniform(0, 3) if number else 0)
            world.namespace.set_link(up=False)
            time.sleep(outage)  # the outage itself
            world.namespace.set_link(up=True)
        task = world.wait_for(task_id)

        branches = run_git("for-each-ref", "--format=%(refname:short)", "refs/heads", cwd=tmp_path / "origin.git")
        assert (task["status"], task["attempt"]) == ("completed", 1), task["message"]
        assert sorted(branches.split()) == sorted(["main", task["result"]["branch"]])
        assert world.ok("logs", task_id).split() == ["before", "after"]
        world.down()
        world.audit()
