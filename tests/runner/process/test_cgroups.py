"""Limits and limits of control groups. Their files are made by hand: few test machines let a test divide a group."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from delegate.config.settings import Settings
from delegate.model import Outcome
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.doctor.context import DoctorContext
from delegate.runner.doctor.findings import Level
from delegate.runner.doctor.memory_limit import examine_memory_limit
from delegate.runner.process.cgroups import Groups, MemoryLimits, cpu_quota, cpu_seconds, memory_left, own_groups
from delegate.states import AttemptState, Reason

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

MIB = 1024 * 1024


def make(place: Path, **files: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".", 1)).write_text(text)
    return place


def delegated(root: Path) -> Groups:
    """As systemd gives one to a scope: we are in it, and the slice around it is ours to divide."""
    make(root, cgroup__controllers="cpu memory")
    around = make(root / "app.slice", cgroup__subtree_control="memory pids", cgroup__procs="")
    own = make(around / "run-1.scope", cgroup__subtree_control="", cgroup__procs="")
    return Groups(unified=(own, around, root))


def kernel(limits: MemoryLimits, attempt_id: str) -> Path:
    """The files that the kernel would make in a new group."""
    place = limits.groups.unified[1] / f"delegate-{attempt_id}"
    return make(place, cgroup__procs="", memory__events="low 0\noom_kill 0\n")


def test_a_process_is_found_in_its_group_and_in_those_around_it(tmp_path: Path) -> None:
    root = make(tmp_path / "cgroup", cgroup__controllers="memory")
    own = make(root / "user.slice" / "app.slice")
    membership = tmp_path / "membership"
    membership.write_text("0::/user.slice/app.slice\n")

    assert own_groups(root, membership).unified == (own, own.parent, root)


def test_in_a_container_the_mount_itself_is_our_group(tmp_path: Path) -> None:
    root = make(tmp_path / "cgroup", cgroup__controllers="memory")
    membership = tmp_path / "membership"
    membership.write_text("0::/docker/abc\n")

    assert own_groups(root, membership).unified == (root,)


def test_the_older_hierarchy_is_found_beside_the_new_one(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    unified = make(root / "unified", cgroup__controllers="")
    memory = make(root / "memory" / "box")
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/box\n1:cpu,cpuacct:/\n0::/\n")

    assert own_groups(root, membership) == Groups(unified=(unified,), memory_v1=(memory, root / "memory"))


def test_a_system_without_groups_has_no_limits(tmp_path: Path) -> None:
    nothing = own_groups(tmp_path, tmp_path / "membership")

    assert (nothing, memory_left(nothing), cpu_quota(nothing)) == (Groups(), None, None)


def test_the_tightest_limit_counts_and_what_can_be_dropped_is_free(tmp_path: Path) -> None:
    outer = make(tmp_path, memory__max=str(900 * MIB), memory__current=str(800 * MIB), memory__stat="inactive_file 0\n")
    inner = make(
        tmp_path / "inner",
        memory__max=str(500 * MIB),
        memory__current=str(450 * MIB),
        memory__stat=f"anon 1\ninactive_file {100 * MIB}\n",
    )

    assert memory_left(Groups(unified=(inner,))) == 150 * MIB
    assert memory_left(Groups(unified=(inner, outer))) == 100 * MIB
    assert memory_left(Groups(unified=(make(tmp_path / "free", memory__max="max", memory__current="5"),))) is None


def test_a_quota_of_cpu_is_a_number_of_cores(tmp_path: Path) -> None:
    tight = make(tmp_path / "a", cpu__max="150000 100000\n", cpu__stat="usage_usec 2500000\nuser_usec 1\n")
    free = make(tmp_path / "b", cpu__max="max 100000\n")

    assert cpu_quota(Groups(unified=(free, tight))) == (1.5, tight)
    assert cpu_seconds(tight) == 2.5


def test_a_memory_limit_is_a_group_of_its_own_that_is_killed_as_a_whole(tmp_path: Path) -> None:
    limits = MemoryLimits(limit=64 * MIB, groups=delegated(tmp_path))

    made = limits.begin("att-1")

    assert made is not None
    assert limits.unavailable_reason() is None
    assert made.paths == (str(tmp_path / "app.slice/delegate-att-1"), str(tmp_path / "app.slice/run-1.scope"))
    assert (made.directory / "memory.max").read_text() == str(64 * MIB)
    assert (made.directory / "memory.oom.group").read_text() == "1"


def test_without_a_group_to_divide_it_says_so_and_the_task_runs_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    none = MemoryLimits(limit=MIB, groups=Groups())
    foreign = MemoryLimits(limit=MIB, groups=Groups(unified=(make(tmp_path, cgroup__subtree_control="pids"),)))

    assert none.unavailable_reason() == "this system has no cgroup v2"
    assert foreign.unavailable_reason() == "no cgroup with the memory controller is delegated to Delegate"
    assert [foreign.begin("att-1"), foreign.begin("att-2")] == [None, None]
    assert caplog.messages == ["memory limit not enforced"]


def test_without_a_limit_nothing_is_made(tmp_path: Path) -> None:
    limits = MemoryLimits(limit=None, groups=delegated(tmp_path))

    assert (limits.begin("att-1"), limits.unavailable_reason()) == (None, None)


@pytest.mark.anyio
async def test_an_agent_starts_inside_its_group_and_the_supervisor_goes_back(stage: Stage, tmp_path: Path) -> None:
    equipment, assignment = await stage.take("exit 0")
    limits = MemoryLimits(limit=64 * MIB, groups=delegated(tmp_path / "cgroup"))
    inside = kernel(limits, assignment.attempt_id)

    end = await run_attempt(replace(equipment, memory_limits=limits), assignment)

    assert end is not None
    assert end.state is AttemptState.COMPLETED
    assert (inside / "cgroup.procs").read_text() == "0"
    assert (limits.groups.unified[0] / "cgroup.procs").read_text() == "0"


async def run_with_oom_kill(stage: Stage, place: Path, then: str) -> Outcome:
    """A command that continues after the kernel has killed a process of its group for its memory."""
    limits = MemoryLimits(limit=64 * MIB, groups=delegated(place))
    events = f'"{place}/app.slice/delegate-$DELEGATE_ATTEMPT_ID/memory.events"'
    equipment, assignment = await stage.take(f"echo 'oom_kill 1' > {events}; {then}")
    kernel(limits, assignment.attempt_id)
    end = await run_attempt(replace(equipment, memory_limits=limits), assignment)
    assert end is not None
    return end


@pytest.mark.anyio
async def test_an_agent_that_was_killed_at_its_limit_ran_out_of_memory(stage: Stage, tmp_path: Path) -> None:
    end = await run_with_oom_kill(stage, tmp_path / "cgroup", then="kill -9 $$")

    assert (end.state, end.reason) == (AttemptState.FAILED, Reason.OUT_OF_MEMORY)
    assert end.message == "it exceeded the memory limit of 64.0 MiB per task"


@pytest.mark.anyio
async def test_an_agent_that_ended_well_is_not_blamed_for_what_it_left_behind(stage: Stage, tmp_path: Path) -> None:
    end = await run_with_oom_kill(stage, tmp_path / "cgroup", then="exit 0")

    assert end.state is AttemptState.COMPLETED


def test_the_doctor_says_whether_the_memory_limit_is_enforced(tmp_path: Path) -> None:
    case = DoctorContext(
        settings=Settings(task_memory_max=64 * MIB),
        environ={},
        directory=tmp_path,
        scratch=tmp_path,
        now=datetime.now(UTC),
        is_root=False,
    )

    (good,) = examine_memory_limit(case, MemoryLimits(limit=64 * MIB, groups=delegated(tmp_path)))
    (bad,) = examine_memory_limit(case, MemoryLimits(limit=64 * MIB, groups=Groups()))

    assert (good.level, good.message) == (Level.OK, "a task may use 64.0 MiB of memory")
    assert bad.level is Level.WARNING
    assert bad.message == "DELEGATE_TASK_MEMORY_MAX is not enforced: this system has no cgroup v2"
    assert examine_memory_limit(replace(case, settings=Settings()), MemoryLimits(limit=None)) == []
