"""Decides from samples of the machine's load how many more agents it can handle. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from delegate.config.disk import format_bytes

GUESS_MARGIN = 1.5  # an agent of an unknown kind may need this many times the configured memory
OBSERVED_MARGIN = 1.2  # and one of a known kind this many times what most of that kind needed
OBSERVED_QUANTILE = (
    0.9  # the quantile of a kind's peaks that is expected of the next one; with fewer than ten it is the largest
)
OBSERVED_ENOUGH = 3  # agents after which a kind is known; with each of them the guess counts less
OBSERVED_KEPT = 32  # agents of a kind to remember; older ones say little about the next
RECENT_KINDS_MAX = 4  # the next agent is expected to be of the same kind as one of the last few
YOUNG_AGE = (
    6.0  # seconds for which an agent counts with at least the configured memory, however small earlier ones were
)
STARTUP_TIME = 3.0  # seconds in which a program loads; its growth in that time says nothing about later
GROWTH_WINDOW = 10.0  # seconds over which growth is measured
GROWTH_INTERVAL_MIN = 2.0  # seconds between two samples, at least, to tell growth from noise
GROWTH_HORIZON = 60.0  # seconds for which growth is expected to continue
STABLE_AFTER = 8.0  # seconds after which an agent that does not grow has shown what it needs
STABLE_GROWTH = 0.001  # share of its memory per second
CPU_GUESS, CPU_MIN, CPU_MAX = 0.2, 0.05, 1.0  # cores per agent: the first guess, and the limits of what is learned
CPU_LEARNING_RATE = 0.3  # the weight of the latest agent
CPU_WINDOW = 3.0  # seconds over which CPU use is averaged; a new agent shows in it gradually
CPU_SLACK = 0.03  # of the machine; once too busy, it must get this much less busy
MEMORY_SLACK = 0.1  # of what one more needs; the same for memory
CPU_UNLIMITED = 1.0  # with this threshold, CPU use is ignored


class Resource(StrEnum):
    CPU = "CPU"
    MEMORY = "memory"
    NUMBER = "number"  # of agents at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    cpu_threshold: float  # a share of the machine
    memory_reserve: int
    agent_memory: int
    task_memory_max: int | None = None
    ceiling: int | None = None  # of agents at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement of the machine, or of the part of it that we may use."""

    cores: float
    cpu: float  # the share of cores in use, averaged over CPU_WINDOW
    released_cores: float = 0.0  # the part of that average used by agents that have ended since
    available: int  # bytes of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an agent and everything it started uses."""

    memory: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    kind: str
    age: float
    used: int = 0
    growth: float = 0.0  # bytes a second
    is_stable: bool = False  # what it needs is known and part of the history

    @property
    def predicted_memory(self) -> int:
        return self.used + int(self.growth * GROWTH_HORIZON)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHistory:
    """What agents needed: the last ones of each kind, the latest last."""

    peaks: tuple[tuple[str, int], ...] = ()
    cpu: float = CPU_GUESS
    recent_kinds: tuple[str, ...] = ()  # the kinds of the agents started last

    def with_agent(self, kind: str, peak: int, cpu: float | None) -> UsageHistory:
        """Add an agent; `cpu`, in cores, is None when it ran too briefly to tell."""
        now = self.cpu if cpu is None else self.cpu + CPU_LEARNING_RATE * (cpu - self.cpu)
        others = [one for one in self.peaks if one[0] != kind]
        same_kind = [*(one for one in self.peaks if one[0] == kind), (kind, peak)][-OBSERVED_KEPT:]
        return replace(self, peaks=(*others, *same_kind), cpu=min(max(now, CPU_MIN), CPU_MAX))

    def with_corrected_peak(self, kind: str, before: int, peak: int) -> UsageHistory:
        """Correct an agent that was recorded with `before` and has needed more since."""
        if (kind, before) not in self.peaks:
            return self
        at = self.peaks.index((kind, before))
        return replace(self, peaks=(*self.peaks[:at], (kind, peak), *self.peaks[at + 1 :]))

    def with_started(self, kind: str) -> UsageHistory:
        return replace(self, recent_kinds=(*self.recent_kinds, kind)[-RECENT_KINDS_MAX:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    resource: Resource
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many more agents may start now, and what prevents more."""

    count: int
    shortage: Shortage | None = None
    short_resources: frozenset[Resource] = frozenset()  # too little for even one more


def compute_capacity(
    sample: Sample,
    agents: Sequence[AgentSnapshot],
    limits: PoolLimits,
    history: UsageHistory,
    previous: Capacity | None = None,
) -> Capacity:
    """Pure. A resource that was short in `previous` must have recovered a little."""
    was_short = previous.short_resources if previous else frozenset()
    by_memory, memory_lack = _memory_capacity(sample, agents, limits, history, was_short=Resource.MEMORY in was_short)
    by_cpu, cpu_lack = _cpu_capacity(sample, agents, limits, history, was_short=Resource.CPU in was_short)
    by_ceiling = math.inf if limits.ceiling is None else limits.ceiling - len(agents)
    by_resources = min(by_memory, by_cpu)
    if not agents:
        by_resources = max(by_resources, 1)  # otherwise a small or busy machine would never run any
    short = {Resource.MEMORY: by_memory, Resource.CPU: by_cpu}
    return Capacity(
        count=int(max(0, min(by_resources, by_ceiling))),
        shortage=None if by_resources >= by_ceiling else memory_lack if by_memory <= by_cpu else cpu_lack,
        short_resources=frozenset(resource for resource, count in short.items() if count < 1),
    )


def _memory_capacity(
    sample: Sample, agents: Sequence[AgentSnapshot], limits: PoolLimits, history: UsageHistory, *, was_short: bool
) -> tuple[float, Shortage]:
    coming = sum(_expected_growth(agent, agents, limits, history) for agent in agents)
    need = expected_memory_of_next(agents, limits, history)
    free = sample.available - limits.memory_reserve - coming
    count = math.floor((free - (MEMORY_SLACK * need if was_short else 0)) / need)
    why = (
        f"{format_bytes(sample.available)} of memory are available, running agents are expected to take "
        f"{format_bytes(coming)} of it, {format_bytes(limits.memory_reserve)} are the reserve, "
        f"and one more needs {format_bytes(need)}"
    )
    return count, Shortage(resource=Resource.MEMORY, why=why)


def _cpu_capacity(
    sample: Sample, agents: Sequence[AgentSnapshot], limits: PoolLimits, history: UsageHistory, *, was_short: bool
) -> tuple[float, Shortage]:
    unseen = sum(max(0.0, 1 - agent.age / CPU_WINDOW) for agent in agents)
    used = max(0.0, sample.cpu * sample.cores - sample.released_cores) + unseen * history.cpu
    threshold = limits.cpu_threshold - (CPU_SLACK if was_short else 0)
    count = math.ceil((threshold * sample.cores - used) / history.cpu)
    recovery_text = f"they must fall below {threshold:.0%} before the next one starts, " if was_short else ""
    why = (
        f"{min(used / sample.cores, 1.0):.0%} of {sample.cores:g} cores are in use or reserved for agents that have "
        f"just started, one more is expected to take {history.cpu / sample.cores:.0%}, {recovery_text}"
        f"and the threshold is {limits.cpu_threshold:.0%}"
    )
    is_metered = limits.cpu_threshold < CPU_UNLIMITED
    return count if is_metered else math.inf, Shortage(resource=Resource.CPU, why=why)


def expected_memory(kind: str, agents: Iterable[AgentSnapshot], limits: PoolLimits, history: UsageHistory) -> int:
    """The bytes that an agent of this kind is expected to need."""
    seen = sorted(peak for name, peak in history.peaks if name == kind)
    guess = GUESS_MARGIN * limits.agent_memory * max(0.0, 1 - len(seen) / OBSERVED_ENOUGH)
    usual = OBSERVED_MARGIN * seen[math.ceil(OBSERVED_QUANTILE * len(seen)) - 1] if seen else 0
    foreseen = (agent.predicted_memory for agent in agents if agent.kind == kind and not agent.is_stable)
    return int(max([guess, usual, *foreseen]))


def expected_memory_of_next(agents: Sequence[AgentSnapshot], limits: PoolLimits, history: UsageHistory) -> int:
    """The kind of the next agent is unknown: expect the largest of the recent kinds."""
    expected = [expected_memory(kind, agents, limits, history) for kind in set(history.recent_kinds) or {""}]
    return _cap(max(limits.agent_memory, *expected), limits)


def _expected_growth(
    agent: AgentSnapshot, agents: Iterable[AgentSnapshot], limits: PoolLimits, history: UsageHistory
) -> int:
    expected = expected_memory(agent.kind, agents, limits, history)
    least = limits.agent_memory if agent.age < YOUNG_AGE else 0
    return max(0, _cap(max(expected, least), limits) - agent.used)


def _cap(size: int, limits: PoolLimits) -> int:
    return size if limits.task_memory_max is None else min(size, limits.task_memory_max)


@dataclass(slots=True, kw_only=True)
class RunningAgent:
    """A running agent and its measurements."""

    kind: str
    started_at: float
    samples: deque[tuple[float, int]] = field(default_factory=deque)  # of the last seconds, without those of its start
    used: int = 0
    peak: int = 0
    cpu_seconds: float = 0.0
    has_sample: bool = False
    learned_peak: int | None = None  # the peak in the history

    def add_sample(self, usage: Load, now: float) -> None:
        self.has_sample = True
        self.used, self.peak = usage.memory, max(self.peak, usage.memory)
        self.cpu_seconds = max(self.cpu_seconds, usage.cpu_seconds)
        if now - self.started_at >= STARTUP_TIME:
            self.samples.append((now, usage.memory))
        while len(self.samples) > 1 and self.samples[1][0] <= now - GROWTH_WINDOW:
            self.samples.popleft()

    def snapshot(self, now: float) -> AgentSnapshot:
        is_stable = self.learned_peak is not None and self.is_stable(now)
        return AgentSnapshot(
            kind=self.kind, age=now - self.started_at, used=self.used, growth=self._growth(), is_stable=is_stable
        )

    def cores(self, now: float) -> float | None:
        return self.cpu_seconds / (now - self.started_at) if now - self.started_at >= 1 else None

    def is_stable(self, now: float) -> bool:
        return now - self.started_at >= STABLE_AFTER and self._growth() <= STABLE_GROWTH * self.used

    def _growth(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        (since, before), (until, after) = self.samples[0], self.samples[-1]
        return max(0.0, (after - before) / (until - since)) if until - since >= GROWTH_INTERVAL_MIN else 0.0


class Pool:
    """The agents of one machine, and what agents like them are expected to need."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._agents: dict[str, RunningAgent] = {}
        self._history = UsageHistory()
        self._sample: Sample | None = None
        self._ended: deque[tuple[float, float]] = deque()  # end time, and cores used
        self._previous: Capacity | None = None

    @property
    def busy(self) -> int:
        return len(self._agents)

    def record_start(self, name: str, kind: str, now: float) -> None:
        self._agents[name] = RunningAgent(kind=kind, started_at=now)
        self._history = self._history.with_started(kind)

    def record_end(self, name: str, now: float) -> None:
        running = self._agents.pop(name, None)
        if running is not None and running.has_sample:  # without a sample there is nothing to learn
            self._learn(running, now)
            self._ended.append((now, running.cores(now) or 0.0))

    def record_sample(self, sample: Sample, usages: Mapping[str, Load], now: float) -> None:
        self._sample = sample
        for name, usage in usages.items():
            if (running := self._agents.get(name)) is not None:
                running.add_sample(usage, now)
                if running.is_stable(now):
                    self._learn(running, now)

    def _learn(self, running: RunningAgent, now: float) -> None:
        """Record an agent once, when it has shown what it needs; later calls only correct its peak."""
        if running.learned_peak is None:
            self._history = self._history.with_agent(running.kind, running.peak, running.cores(now))
        elif running.peak > running.learned_peak:
            self._history = self._history.with_corrected_peak(running.kind, running.learned_peak, running.peak)
        running.learned_peak = running.peak

    def capacity(self, now: float) -> Capacity:
        """As of the last sample; an agent started since then counts with all its expected needs."""
        if self._sample is None:
            return Capacity(count=0)
        agents = [running.snapshot(now) for running in self._agents.values()]
        sample = replace(self._sample, released_cores=self._released_cores(now))
        self._previous = compute_capacity(sample, agents, self._limits, self._history, self._previous)
        return self._previous

    def _released_cores(self, now: float) -> float:
        while self._ended and now - self._ended[0][0] >= CPU_WINDOW:
            self._ended.popleft()
        return sum(cores * (1 - (now - when) / CPU_WINDOW) for when, cores in self._ended)
