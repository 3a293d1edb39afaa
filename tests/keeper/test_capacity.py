"""How many agents a machine bears: the rules one by one, and whole days of work in simulated time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.keeper.simulated_machine import GIB, MIB, START, Job, Machine

from delegate.config.disk import format_bytes
from delegate.keeper.capacity import (
    CPU_WINDOW,
    GROWTH_HORIZON,
    GROWTH_PAUSE,
    STABLE_AFTER,
    STARTUP_TIME,
    AgentSnapshot,
    Capacity,
    Load,
    Pool,
    PoolLimits,
    Resource,
    RunningAgent,
    Sample,
    compute_capacity,
    learn,
)
from delegate.keeper.scaling import RETIRE_AFTER, SURGE, FleetShape, IdleRunner, plan

LIMITS = PoolLimits(cpu_threshold=0.8, memory_reserve=GIB, agent_memory=GIB)
QUIET = Sample(cores=2, cpu=0.1, available=23 * GIB)
NOTHING: dict[str, float] = {}


def settled(used: int = 300 * MIB) -> AgentSnapshot:
    return AgentSnapshot(kind="claude", age=100, used=used, predicted_memory=used, is_stable=True)


def needs_after(*peaks: int, kind: str = "claude", needs: Mapping[str, float] = NOTHING) -> Mapping[str, float]:
    """What is expected after agents with these peaks have ended."""
    for peak in peaks:
        needs = learn(needs, RunningAgent(kind=kind, started_at=0, peak=peak), LIMITS)
    return needs


# The rules.


def test_a_quiet_machine_has_room_for_a_burst() -> None:
    assert compute_capacity(QUIET, [], LIMITS, NOTHING).count >= 5


def test_above_the_threshold_there_is_no_room_and_it_says_why() -> None:
    busy = Sample(cores=2, cpu=0.93, available=23 * GIB)

    found = compute_capacity(busy, [settled()], LIMITS, NOTHING)

    assert found.count == 0
    assert found.shortage is not None
    assert found.shortage.resource is Resource.CPU
    assert found.shortage.why.startswith("93% of 2 cores are in use")
    assert found.shortage.why.endswith("the threshold is 80%")


def test_what_decides_is_named_also_while_the_machine_recovers_or_has_room_for_one_alone() -> None:
    almost = Sample(cores=2, cpu=0.78, available=23 * GIB)
    full = compute_capacity(Sample(cores=2, cpu=0.93, available=23 * GIB), [settled()], LIMITS, NOTHING)

    for_one, recovering = (compute_capacity(almost, [settled()], LIMITS, NOTHING, before) for before in (None, full))

    assert (for_one.count, recovering.count) == (1, 0)
    assert for_one.shortage is not None
    assert for_one.shortage.why.endswith("one more is expected to take 10%, and the threshold is 80%")
    assert recovering.shortage is not None
    assert "78% of 2 cores" in recovering.shortage.why
    assert "they must fall below 77% before the next one starts" in recovering.shortage.why


def test_a_threshold_of_everything_means_that_cpu_does_not_count() -> None:
    limits = PoolLimits(cpu_threshold=1.0, memory_reserve=0, agent_memory=GIB, ceiling=4)

    assert compute_capacity(Sample(cores=2, cpu=1.0, available=23 * GIB), [settled()], limits, NOTHING).count == 3


def test_one_more_needs_its_own_memory_beside_the_reserve_and_what_is_still_to_come() -> None:
    agents = [settled(used=500 * MIB)]
    known = needs_after(1000 * MIB, 1000 * MIB, 1000 * MIB)

    enough = compute_capacity(Sample(cores=8, cpu=0, available=GIB + 700 * MIB + 1200 * MIB), agents, LIMITS, known)
    too_little = compute_capacity(Sample(cores=8, cpu=0, available=GIB + 700 * MIB + 1199 * MIB), agents, LIMITS, known)

    assert (enough.count, too_little.count) == (1, 0)
    assert too_little.shortage is not None
    assert too_little.shortage.why == (
        "2.9 GiB of memory are available, running agents are expected to take 700.0 MiB of it, "
        "1.0 GiB are the reserve, and one more needs 1.2 GiB"
    )


def test_with_nothing_running_there_is_room_for_one_whatever_is_lacking() -> None:
    found = compute_capacity(Sample(cores=1, cpu=1.0, available=0), [], LIMITS, NOTHING)

    assert found.count == 1
    assert found.short_resources == {Resource.CPU, Resource.MEMORY}


def test_there_is_room_for_one_more_while_all_others_wait_for_tasks_of_theirs() -> None:
    pool, full = Pool(LIMITS), Sample(cores=2, cpu=1.0, available=0)
    for name in ("one", "two"):
        pool.record_start(name, "claude", 0.0)
    pool.record_sample(full, {}, 1.0)
    counts = [pool.capacity(1.0).count]

    for name, waits in (("one", True), ("two", True), ("one", False)):
        pool.record_waiting(name, waits=waits)
        counts.append(pool.capacity(1.0).count)

    assert counts == [0, 0, 1, 0]


def test_who_has_just_begun_counts_before_it_shows() -> None:
    fresh = [AgentSnapshot(kind="claude", age=CPU_WINDOW / 2)] * 16

    assert compute_capacity(Sample(cores=2, cpu=0.0, available=99 * GIB), fresh, LIMITS, NOTHING).short_resources == {
        Resource.CPU
    }
    assert compute_capacity(Sample(cores=64, cpu=0.0, available=25 * GIB), fresh, LIMITS, NOTHING).short_resources == {
        Resource.MEMORY
    }


def test_an_agent_that_grows_is_expected_to_continue_and_so_are_the_others_of_its_kind() -> None:
    known = needs_after(*[50 * MIB] * 6)
    sample = Sample(cores=64, cpu=0.0, available=7 * GIB)
    growing = RunningAgent(
        kind="claude", started_at=90, used=600 * MIB, peak=600 * MIB, startup_peak=100 * MIB, grew_at=100
    ).snapshot(100)
    grown = (600 + 50 * int(GROWTH_HORIZON)) * MIB

    alone, beside = (
        compute_capacity(sample, agents, LIMITS, known).shortage for agents in ([growing], [growing, settled(0)])
    )

    assert compute_capacity(sample, [settled()] * 3, LIMITS, known).count == 6
    assert compute_capacity(sample, [growing] * 3, LIMITS, known).count == 0
    assert alone is not None
    assert f"expected to take {format_bytes(grown - 600 * MIB)} of it" in alone.why
    assert alone.why.endswith(f"one more needs {format_bytes(grown)}")
    assert beside is not None
    assert f"expected to take {format_bytes(2 * grown - 600 * MIB)} of it" in beside.why


def test_an_agent_that_has_paused_is_not_expected_to_continue_growing() -> None:
    known = needs_after(*[50 * MIB] * 6)
    sample = Sample(cores=64, cpu=0.0, available=7 * GIB)
    growing, paused = (
        RunningAgent(kind="claude", started_at=0, used=GIB, peak=GIB, startup_peak=100 * MIB, grew_at=100 - pause)
        for pause in (GROWTH_PAUSE - 0.1, GROWTH_PAUSE)
    )

    assert compute_capacity(sample, [growing.snapshot(100)], LIMITS, known).count == 3
    assert compute_capacity(sample, [paused.snapshot(100)], LIMITS, known).count == 6


def test_how_fast_an_agent_grows_while_it_starts_says_nothing() -> None:
    pool = Pool(LIMITS)
    pool.record_start("1", "claude", 0)
    for now, memory in ((1, 100), (STARTUP_TIME, 400), (STARTUP_TIME + 1, 400)):
        pool.record_sample(QUIET, {"1": Load(memory=memory * MIB, cpu_seconds=0)}, now)
    lack = pool.capacity(STARTUP_TIME + 1).shortage

    assert lack is None or lack.resource is Resource.CPU
    assert pool.capacity(STARTUP_TIME + 1).count >= 4


def test_a_ceiling_on_the_memory_of_a_task_is_all_that_it_can_take() -> None:
    capped = PoolLimits(cpu_threshold=0.8, memory_reserve=0, agent_memory=GIB, task_memory_max=512 * MIB)

    assert compute_capacity(Sample(cores=64, cpu=0, available=4 * GIB), [], capped, NOTHING).count == 8


@pytest.mark.parametrize("resource", [Resource.CPU, Resource.MEMORY])
def test_what_was_short_must_recover_a_little_before_there_is_room_again(resource: Resource) -> None:
    short = Capacity(count=0, short_resources=frozenset({resource}))
    just_enough = Sample(cores=2, cpu=0.78, available=GIB + 2 * 1536 * MIB + MIB)
    agents = [AgentSnapshot(kind="claude", age=100, used=0)]

    assert compute_capacity(just_enough, agents, LIMITS, NOTHING).count == 1
    assert compute_capacity(just_enough, agents, LIMITS, NOTHING, short).count == 0


def test_the_pool_learns_what_agents_need() -> None:
    pool = Pool(LIMITS)
    small = Sample(cores=8, cpu=0, available=4 * GIB)
    pool.record_sample(small, {}, 0)
    before = pool.capacity(0).count
    for number in range(3):
        pool.record_start(str(number), "shell", 0)
        pool.record_sample(small, {str(number): Load(memory=100 * MIB, cpu_seconds=1)}, 5)
        pool.record_end(str(number), 10)

    assert (before, pool.capacity(20).count) == (2, 3)


def test_an_agent_without_a_sample_teaches_nothing_and_counts_as_unknown() -> None:
    pool = Pool(LIMITS)
    small = Sample(cores=8, cpu=0, available=4 * GIB)
    for number in range(3):
        pool.record_start(str(number), "shell", 0)
        pool.record_sample(small, {}, 5)
        pool.record_end(str(number), 10)
    pool.record_start("4", "shell", 10)
    lack = pool.capacity(10 + 10 * STABLE_AFTER).shortage

    assert lack is not None
    assert lack.why.startswith("4.0 GiB of memory are available, running agents are expected to take 1.5 GiB of it")
    assert lack.why.endswith("one more needs 1.5 GiB")


def test_agents_that_have_settled_teach_before_they_end() -> None:
    pool = Pool(LIMITS)
    small = Sample(cores=8, cpu=0, available=6 * GIB)
    names = [str(number) for number in range(3)]
    for name in names:
        pool.record_start(name, "claude", 0)
    for now in range(int(STABLE_AFTER)):
        pool.record_sample(small, dict.fromkeys(names, Load(memory=400 * MIB, cpu_seconds=now / 10)), now)
    before = pool.capacity(STABLE_AFTER - 1).count
    pool.record_sample(small, dict.fromkeys(names, Load(memory=400 * MIB, cpu_seconds=1)), STABLE_AFTER)

    assert (before, pool.capacity(STABLE_AFTER).count) == (1, 4)


def test_an_agent_that_grows_by_more_than_noise_has_not_settled() -> None:
    steady, growing = RunningAgent(kind="claude", started_at=0), RunningAgent(kind="claude", started_at=0)
    for now in range(int(2 * STABLE_AFTER)):
        steady.add_sample(Load(memory=(1000 + now // 4) * MIB, cpu_seconds=0), now)
        growing.add_sample(Load(memory=(1000 + 3 * now) * MIB, cpu_seconds=0), now)

    assert steady.snapshot(2 * STABLE_AFTER).is_stable
    assert not growing.snapshot(2 * STABLE_AFTER).is_stable


def test_an_agent_that_has_settled_counts_with_its_peak() -> None:
    pool = Pool(LIMITS)
    pool.record_start("1", "claude", 0)
    for now in range(61):
        memory = 2000 * MIB if now == 10 else 100 * MIB
        pool.record_sample(QUIET, {"1": Load(memory=memory, cpu_seconds=0)}, now)
    pool.record_sample(Sample(cores=8, cpu=0, available=3 * GIB), {}, 61)
    lack = pool.capacity(61).shortage

    assert lack is not None
    assert "are expected to take 2.2 GiB of it" in lack.why  # a fifth more than 2000 MiB, less what it uses
    assert lack.why.endswith("one more needs 2.3 GiB")


def test_an_agent_that_has_settled_teaches_once() -> None:
    pool = Pool(LIMITS)
    small = Sample(cores=8, cpu=0, available=3 * GIB)
    pool.record_start("1", "claude", 0)
    for now in range(60):
        pool.record_sample(small, {"1": Load(memory=100 * MIB, cpu_seconds=1)}, now)
    pool.record_end("1", 60)
    lack = pool.capacity(60).shortage

    assert lack is not None
    assert lack.why.endswith("one more needs 1.1 GiB")  # three quarters of the first guess


def test_what_an_agent_needs_after_it_had_settled_corrects_what_it_taught() -> None:
    pool = Pool(LIMITS)
    small = Sample(cores=8, cpu=0, available=6 * GIB)
    pool.record_start("1", "claude", 0)
    for now in range(60):
        pool.record_sample(small, {"1": Load(memory=100 * MIB, cpu_seconds=1)}, now)
    pool.record_sample(small, {"1": Load(memory=1500 * MIB, cpu_seconds=1)}, 60)
    pool.record_end("1", 60)
    lack = pool.capacity(60).shortage

    assert lack is not None
    assert lack.why.endswith("one more needs 1.8 GiB")


def test_an_agent_that_was_larger_than_the_others_is_forgotten_step_by_step() -> None:
    sample = Sample(cores=64, cpu=0, available=13 * GIB)

    counts = [
        compute_capacity(sample, [], LIMITS, needs_after(5 * GIB, *[100 * MIB] * number)).count
        for number in (0, 1, 2, 4, 8)
    ]

    assert counts == [2, 2, 3, 6, 12]


def test_what_one_kind_needed_is_expected_of_the_next_agent_until_enough_of_another_kind_have_ended() -> None:
    sample = Sample(cores=64, cpu=0, available=8 * GIB)
    shell = needs_after(5 * GIB, kind="shell")

    counts = [
        compute_capacity(sample, [], LIMITS, needs_after(*[100 * MIB] * number, needs=shell)).count
        for number in (0, 3, 8)
    ]

    assert counts == [1, 2, 7]


def test_running_agents_count_as_much_as_their_own_kind_needed() -> None:
    needs = needs_after(*[1000 * MIB] * 3, needs=needs_after(5 * GIB, kind="shell"))
    sample = Sample(cores=64, cpu=0, available=4 * GIB)

    lack = compute_capacity(sample, [settled(500 * MIB)], LIMITS, needs).shortage

    assert lack is not None
    assert "are expected to take 700.0 MiB of it" in lack.why
    assert lack.why.endswith("one more needs 2.5 GiB")


def test_the_cpu_of_an_agent_that_has_just_ended_is_free_before_the_average_shows_it() -> None:
    pool = Pool(LIMITS)
    full = Sample(cores=2, cpu=1.0, available=23 * GIB)
    for name in ("1", "2"):
        pool.record_start(name, "shell", 0)
    pool.record_sample(full, dict.fromkeys(("1", "2"), Load(memory=MIB, cpu_seconds=10)), 10)
    before = pool.capacity(10).count
    pool.record_end("1", 10)

    assert (before, pool.capacity(10).count) == (0, 3)
    assert pool.capacity(10 + CPU_WINDOW).count == 0  # unless the next sample shows it


# Who is started, opened, held and sent home.


SHAPE = FleetShape(base=2, warm=3, maximum=256)


def waits(slot: int, *, is_open: bool = True) -> IdleRunner:
    return IdleRunner(slot=slot, is_ready=True, is_open=is_open, since=0)


def test_a_base_is_kept_and_more_is_started_when_nobody_waits_any_more() -> None:
    waiting = [waits(2)]

    assert plan([], 0, Capacity(count=9), SHAPE, 0).start == 2
    assert plan(waiting, 2, Capacity(count=8), SHAPE, 0).start == 0
    assert plan([], 2, Capacity(count=7), SHAPE, 0).start == SURGE
    assert plan([], 2, Capacity(count=1), SHAPE, 0).start == 1
    assert (
        plan([IdleRunner(slot=3, is_ready=False, is_open=True, since=0)], 2, Capacity(count=7), SHAPE, 0).start
        == SURGE - 1
    )


def test_while_there_is_work_and_room_some_more_are_started_ahead_one_after_the_other() -> None:
    starting = IdleRunner(slot=2, is_ready=False, is_open=True, since=0)

    assert plan([waits(2)], 1, Capacity(count=9), SHAPE, 0).start == 1
    assert plan([waits(1), starting], 1, Capacity(count=9), SHAPE, 0).start == 0
    assert plan([waits(2)], 1, Capacity(count=1), SHAPE, 0).start == 0
    assert plan([waits(1), waits(2)], 1, Capacity(count=9), SHAPE, 0).start == 0
    assert plan([waits(1), waits(2)], 0, Capacity(count=9), SHAPE, 0).start == 0


def test_one_waits_even_without_room_so_that_it_can_say_why() -> None:
    made = plan([waits(3)], 2, Capacity(count=0), SHAPE, 0)

    assert plan([], 2, Capacity(count=0), SHAPE, 0).start == 1
    assert (made.hold, made.open) == ({3}, frozenset())


def test_a_fixed_number_is_started_at_once_and_never_exceeded() -> None:
    fixed = FleetShape.of(cores=2, fixed=5, ceiling=5)

    assert plan([], 0, Capacity(count=5), fixed, 0).start == 5
    assert plan([], 5, Capacity(count=0), fixed, 0).start == 0
    assert plan([], 0, Capacity(count=0), FleetShape.of(cores=2, fixed=0, ceiling=0), 0).start == 0


def test_whoever_is_open_stays_it_first() -> None:
    starting = IdleRunner(slot=1, is_ready=False, is_open=True, since=0)

    made = plan([starting, waits(2, is_open=False), waits(3)], 0, Capacity(count=1), SHAPE, 0)

    assert (made.open, made.hold) == ({3}, {1, 2})


def test_one_in_trouble_keeps_no_place_for_which_others_wait_and_is_replaced() -> None:
    ill = [IdleRunner(slot=slot, is_ready=False, is_open=True, is_in_trouble=True, since=0) for slot in (1, 2, 3)]

    assert plan([ill[0], waits(2, is_open=False)], 0, Capacity(count=1), SHAPE, 0).open == {2}
    assert plan([ill[0], waits(2)], 0, Capacity(count=1), SHAPE, 0).start == 1
    assert plan([ill[0]], 1, Capacity(count=1), SHAPE, 0).start == 1
    assert plan(ill, 0, Capacity(count=1), SHAPE, 0).start == 1  # when many are, something else is the matter
    assert plan([ill[0], waits(2)], 0, Capacity(count=1), FleetShape(base=2, warm=2, maximum=2), 0).start == 0
    assert plan([ill[0], waits(2), waits(3)], 0, Capacity(count=1), SHAPE, RETIRE_AFTER).retire == {1}


def test_nobody_is_sent_home_before_it_has_started() -> None:
    settling = IdleRunner(slot=9, is_ready=False, is_open=False, since=float("-inf"))

    assert plan([waits(1), waits(2), settling], 0, Capacity(count=1), SHAPE, 0).retire == frozenset()


def test_what_is_beyond_the_base_goes_home_after_a_while_and_one_stays_beside_those_at_work() -> None:
    waiting = [waits(slot) for slot in (1, 2, 3, 4)]

    assert plan(waiting, 0, Capacity(count=9), SHAPE, RETIRE_AFTER - 1).retire == frozenset()
    assert plan(waiting, 0, Capacity(count=9), SHAPE, RETIRE_AFTER).retire == {3, 4}
    assert plan(waiting, 1, Capacity(count=9), SHAPE, RETIRE_AFTER).retire == {3, 4}
    assert plan(waiting, 6, Capacity(count=9), SHAPE, RETIRE_AFTER).retire == {2, 3, 4}
    assert plan(waiting, 6, Capacity(count=9), SHAPE, RETIRE_AFTER).open == {1}


# Whole machines.


@pytest.mark.promise("P16")
@pytest.mark.parametrize("growing", [1.0, 20.0, 120.0, 600.0])
def test_twenty_tasks_that_grow_end_without_ever_exceeding_the_memory(growing: float) -> None:
    jobs = [Job(peak=1536 * MIB, growing=growing, lasts=growing + 60) for _ in range(20)]

    machine = Machine(cores=2, memory=8 * GIB, taken=600 * MIB, limits=LIMITS).run(jobs)

    assert machine.ended == 20
    assert machine.most_memory <= 8 * GIB - LIMITS.memory_reserve / 2
    assert machine.most_running >= 3


@pytest.mark.parametrize(("peak", "growing", "every"), [(3, 120, 10), (3, 60, 5), (2, 60, 10), (4, 30, 5)])
def test_tasks_that_arrive_one_by_one_and_outgrow_the_setting_fit_into_the_memory(
    peak: int, growing: float, every: float
) -> None:
    jobs = [Job(peak=peak * GIB, growing=growing, lasts=growing + 120, arrives=every * number) for number in range(20)]

    machine = Machine(cores=4, memory=16 * GIB, taken=600 * MIB, limits=LIMITS).run(jobs)

    assert machine.most_memory <= 16 * GIB


def test_small_tasks_before_them_do_not_make_room_for_a_crowd_of_large_ones() -> None:
    small = [Job(peak=20 * MIB, lasts=2) for _ in range(40)]
    large = [Job(peak=GIB, growing=60, lasts=120) for _ in range(20)]

    machine = Machine(cores=2, memory=8 * GIB, taken=600 * MIB, limits=LIMITS).run([*small, *large])

    assert machine.most_memory <= 8 * GIB


@pytest.mark.parametrize(("kind", "one_by_one"), [("claude", 4), ("shell", 10)])
def test_one_large_task_does_not_make_the_small_ones_after_it_run_one_by_one(kind: str, one_by_one: int) -> None:
    large = Job(peak=5 * GIB, growing=10, lasts=30, kind="shell")
    small = [Job(peak=100 * MIB, cores=0.05, lasts=20, kind=kind) for _ in range(one_by_one + 12)]

    machine = Machine(cores=8, memory=8 * GIB, taken=600 * MIB, limits=LIMITS).run([large, *small])

    assert machine.most_running >= 4
    assert machine.now <= 30 + one_by_one * 20 + 4 * 20


def test_large_tasks_among_many_small_ones_are_not_forgotten() -> None:
    mixed = [Job(peak=4 * GIB if number % 6 == 0 else 50 * MIB, growing=2, lasts=32) for number in range(30)]

    machine = Machine(cores=4, memory=8 * GIB, taken=600 * MIB, limits=LIMITS).run(mixed)

    assert machine.most_memory <= 8 * GIB


@pytest.mark.promise("P16")
@pytest.mark.parametrize(("cores", "memory"), [(2, 4), (4, 8), (8, 16)])
def test_a_hundred_small_tasks_use_the_machine_fully(cores: int, memory: int) -> None:
    jobs = [Job(peak=120 * MIB, cores=1.0, work=5.0) for _ in range(100)]

    machine = Machine(cores=cores, memory=memory * GIB, taken=600 * MIB, limits=LIMITS).run(jobs)

    mean = sum(machine.waiting_load) / len(machine.waiting_load)
    assert mean >= 0.78
    assert machine.now <= 500 / cores / 0.75


def test_a_burst_of_five_starts_without_a_gap() -> None:
    jobs = [Job(peak=100 * MIB, lasts=30) for _ in range(5)]

    machine = Machine(cores=2, memory=16 * GIB, taken=2 * GIB, limits=LIMITS).run(jobs)

    assert machine.starts[-1] - machine.starts[0] <= 1.0


@pytest.mark.promise("P16")
def test_a_small_host_that_others_keep_busy_still_runs_one_at_a_time() -> None:
    jobs = [Job(peak=300 * MIB, cores=0.1, lasts=20) for _ in range(6)]

    machine = Machine(cores=2, memory=2 * GIB, taken=700 * MIB, cpu_of_others=lambda _: 1.8, limits=LIMITS).run(jobs)

    assert (machine.ended, machine.most_running) == (6, 1)
    assert machine.longest_idle <= 2 * START


def test_a_use_that_swings_around_the_threshold_does_not_make_the_pool_flap() -> None:
    jobs = [Job(peak=100 * MIB, cores=0.05, lasts=300), Job(peak=100 * MIB, cores=0.05, lasts=300)]

    machine = Machine(
        cores=2,
        memory=8 * GIB,
        cpu_of_others=lambda now: 1.45 + 0.1 * (int(now) // 4 % 2),
        limits=LIMITS,
    ).run(jobs)

    assert machine.switches <= 12


def job(draw: st.DrawFn) -> Job:
    peak = draw(st.integers(1, 1536))
    growing = draw(st.sampled_from([0.5, 5, 30, 120]))
    cores = draw(st.sampled_from([0.05, 0.3, 1.0, 2.0]))
    lasts = draw(st.sampled_from([0.0, 1.0, 10.0, 90.0]))
    kind = draw(st.sampled_from(["claude", "codex", "shell"]))
    return Job(peak=peak * MIB, growing=growing, cores=cores, lasts=lasts, work=lasts * cores / 2, kind=kind)


@pytest.mark.promise("P16")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_limits_hold_whatever_comes(data: st.DataObject) -> None:
    """limits_property: never more than the ceiling, never nothing while work waits, never more memory than there is."""
    ceiling = data.draw(st.one_of(st.none(), st.integers(1, 12)), label="ceiling")
    cores = data.draw(st.sampled_from([1, 2, 4, 16]), label="cores")
    memory = data.draw(st.sampled_from([3, 4, 8, 32]), label="memory")
    others = data.draw(st.floats(0, cores), label="cpu of others")
    jobs = data.draw(st.lists(st.composite(job)(), min_size=1, max_size=25), label="jobs")
    limits = PoolLimits(cpu_threshold=0.8, memory_reserve=GIB, agent_memory=GIB, ceiling=ceiling)

    machine = Machine(
        cores=cores, memory=memory * GIB, taken=400 * MIB, cpu_of_others=lambda _: others, limits=limits
    ).run(jobs)

    assert machine.most_running <= (ceiling or 256)
    assert machine.longest_idle <= 2 * START
    assert machine.most_memory <= memory * GIB
