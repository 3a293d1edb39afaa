"""A machine in simulated time: tasks with a need for memory and CPU, run by the pool as the keeper would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from delegate.keeper.capacity import CPU_WINDOW, Load, Pool, PoolLimits, Sample
from delegate.keeper.scaling import FleetShape, IdleRunner, plan

GIB = 1024**3
MIB = 1024**2
TICK = 0.25  # seconds
LOOK_EVERY = 1.0
START = 0.75  # seconds until a new process can claim
PROCESS = 50 * MIB  # of a runner itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Grows to `peak` bytes over `growing` seconds and stays there; it ends when it has had `work` core-seconds, or
    after `lasts` seconds if it mostly waits."""

    peak: int
    growing: float = 1.0
    cores: float = 0.1
    work: float = 0.0
    lasts: float = 0.0
    kind: str = "shell"
    arrives: float = 0.0

    def memory(self, age: float) -> int:
        return int(self.peak * min(1.0, age / self.growing)) if self.growing else self.peak


@dataclass(slots=True, kw_only=True)
class Running:
    job: Job
    began: float
    done: float = 0.0


@dataclass(slots=True, kw_only=True)
class Process:
    slot: int
    since: float
    is_open: bool = False
    running: Running | None = None


@dataclass(slots=True, kw_only=True)
class Machine:
    cores: float
    memory: int
    taken: int = 0  # by others
    cpu_of_others: Callable[[float], float] = lambda _: 0.0  # cores
    limits: PoolLimits
    fixed: int | None = None
    now: float = 0.0
    most_memory: int = 0
    most_running: int = 0
    longest_idle: float = 0.0  # with work waiting and nothing running
    starts: list[float] = field(default_factory=list)
    switches: int = 0  # from open to held and back
    load: list[float] = field(default_factory=list)  # the share of the cores in use, tick by tick
    waiting_load: list[float] = field(default_factory=list)  # the same while more work waited
    ended: int = 0

    def run(self, jobs: Sequence[Job], limit: float = 100_000.0) -> Machine:
        """Until all have ended."""
        pool = Pool(self.limits)
        ceiling = self.limits.ceiling if self.limits.ceiling is not None else 256
        shape = FleetShape.of(cores=self.cores, fixed=self.fixed, ceiling=ceiling)
        queue, processes, idle_since = list(jobs), list[Process](), None
        next_look = 0.0
        while self.ended < len(jobs):
            assert self.now < limit, f"{self.ended} of {len(jobs)} have ended"
            if self.now >= next_look:
                next_look = self.now + LOOK_EVERY
                self._look(pool, processes)
            self._obey(pool, shape, processes)
            self._claim(pool, shape, queue, processes)
            self._work(pool, processes)
            is_waiting = self._is_waiting(queue)
            self.waiting_load += self.load[-1:] if is_waiting else []
            has_worked = self.starts[-1:] == [self.now] or any(one.running for one in processes)
            is_idle = is_waiting and not has_worked
            idle_since = (self.now if idle_since is None else idle_since) if is_idle else None
            self.longest_idle = max(self.longest_idle, 0.0 if idle_since is None else self.now - idle_since)
            self.now += TICK
        return self

    def _look(self, pool: Pool, processes: Sequence[Process]) -> None:
        usages = {str(one.slot): self._usage(one.running) for one in processes if one.running}
        pool.record_sample(self._sample(processes), usages, self.now)

    def _usage(self, running: Running) -> Load:
        return Load(memory=running.job.memory(self.now - running.began), cpu_seconds=running.done)

    def used(self, processes: Sequence[Process]) -> int:
        agents = sum(self._usage(one.running).memory for one in processes if one.running)
        return self.taken + len(processes) * PROCESS + agents

    def _sample(self, processes: Sequence[Process]) -> Sample:
        window = self.load[-int(CPU_WINDOW / TICK) :]
        share = sum(window) / len(window) if window else min(1.0, self.cpu_of_others(0) / self.cores)
        return Sample(cores=self.cores, cpu=share, available=max(0, self.memory - self.used(processes)))

    def _obey(self, pool: Pool, shape: FleetShape, processes: list[Process]) -> None:
        waiting = [
            IdleRunner(slot=one.slot, is_ready=self._is_ready(one), is_open=one.is_open, since=one.since)
            for one in processes
            if one.running is None
        ]
        capacity = pool.capacity(self.now)
        made = plan(waiting, pool.busy, capacity, shape, self.now)
        assert len(made.open) <= capacity.count
        processes[:] = [one for one in processes if one.slot not in made.retire]
        for one in processes:
            if one.running is None:
                self.switches += one.is_open != (one.slot in made.open)
                one.is_open = one.slot in made.open
        for _ in range(made.start):
            free = min(set(range(1, 300)) - {one.slot for one in processes})
            processes.append(Process(slot=free, since=self.now))

    def _is_ready(self, process: Process) -> bool:
        return self.now - process.since >= START

    def _is_waiting(self, queue: Sequence[Job]) -> bool:
        return bool(queue) and queue[0].arrives <= self.now

    def _claim(self, pool: Pool, shape: FleetShape, queue: list[Job], processes: list[Process]) -> None:
        for one in processes:
            if self._is_waiting(queue) and one.is_open and one.running is None and self._is_ready(one):
                one.running = Running(job=queue.pop(0), began=self.now)
                pool.record_start(str(one.slot), one.running.job.kind, self.now)
                self.starts.append(self.now)
                self._obey(pool, shape, processes)  # the keeper hears of it at once

    def _work(self, pool: Pool, processes: list[Process]) -> None:
        running = [(one, one.running) for one in processes if one.running]
        others = self.cpu_of_others(self.now)
        wanted = others + sum(each.job.cores for _, each in running)
        share = min(1.0, self.cores / wanted) if wanted else 1.0
        self.load.append(min(1.0, wanted / self.cores))
        self.most_memory = max(self.most_memory, self.used(processes))
        self.most_running = max(self.most_running, len(running))
        for process, each in running:
            each.done += each.job.cores * share * TICK
            if each.done >= each.job.work and self.now - each.began >= each.job.lasts:
                process.running, process.since = None, self.now - START  # it is warm
                pool.record_end(str(process.slot), self.now)
                self.ended += 1
                self._look(pool, processes)
