"""The pool of this machine: it grows with the work, keeps to its ceiling, and says which resource work waits for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.world import World, living, wait_until

from delegate.keeper.machine import available_memory

HOLD = "touch {0}.begun; while [ ! -e {1} ]; do sleep 0.05; done"
LACKS = re.compile(
    r"no other runner is accepting work: the machine has been short of memory since [\d-]+ [\d:]+ UTC: .* one more "
)


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "home", DELEGATE_MAX_RUNNERS="5") as world:
        yield world


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[World]:
    """Two agents, as they are expected to be at first, would not fit; and the first runner cannot write its claim."""
    memory = str(available_memory() // 2)
    with living(tmp_path / "home", DELEGATE_AGENT_MEMORY=memory, DELEGATE_MAX_RUNNERS="3") as world:
        (world.home / "runners" / "1" / "claim").mkdir(parents=True)
        yield world


@pytest.mark.promise("P16")
def test_a_burst_makes_the_pool_grow_up_to_its_ceiling(crowded: World) -> None:
    runners = crowded.home / "runners"
    for slot in (7, 8, 9):  # the power went out while runners beyond today's number worked
        (runners / str(slot) / "spool" / "att-1").mkdir(parents=True)
    for slot in range(10, 30):  # and others waited
        (runners / str(slot)).mkdir()
        (runners / str(slot) / "claim").write_text("claim-0123456789")
    gate = crowded.work / "gate"
    crowded.ok("up")

    tasks = [crowded.submit(HOLD.format(number, gate)) for number in range(6)]
    wait_until(lambda: len(list(crowded.work.glob("*.begun"))) == 5)
    waiting = [task for task in crowded.tasks() if task["status"] == "queued"]
    gate.touch()
    ended = [crowded.wait_for(task)["status"] for task in tasks]

    assert [task["why"] for task in waiting] == ["all runners are busy"]
    assert ended == ["completed"] * 6
    wait_until(lambda: list(runners.glob("*/spool/*")) == [])  # other runners have taken their slots, and settled it
    assert {path.parent.name for path in runners.glob("*/identity.json")} <= {str(slot) for slot in range(1, 10)}


@pytest.mark.promise("P16")
def test_what_waits_for_memory_says_so_and_since_when_and_runs_when_there_is_some(tight: World) -> None:
    gate = tight.work / "gate"
    tight.ok("up")
    first = tight.submit(HOLD.format("first", gate))
    tight.wait_for(first, "running")
    second = tight.submit("true")

    why = wait_until(lambda: (found := tight.task(second)["why"]) and LACKS.match(found) and found)
    gate.touch()

    assert tight.wait_for(second)["status"] == "completed", why
    assert tight.wait_for(first)["status"] == "completed"
