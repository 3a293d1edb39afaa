"""Decides from samples of the machine's load how many more agents it can handle. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from delegate.config.disk import format_bytes

GUESS_MARGIN = 1.5  # an agent of an unknown kind may need this many times the configured memory
OBSERVED_MARGIN = 1.2  # and one of a known kind this many times what earlier ones used: no two runs are the same
FADING = 0.75  # each agent measured lowers earlier expectations to this share: a large one is soon forgotten
STARTUP_TIME = 3.0  # seconds in which a program loads; its growth in that time says nothing about later
GROWTH_NOISE = 1.02  # a peak of up to this many times the last one is noise, not growth
GROWTH_PAUSE = 3.0  # seconds without growth after which an agent is not expected to continue growing
GROWTH_HORIZON = 60.0  # seconds for which a growing agent is expected to continue at its mean rate
STABLE_AFTER = 20.0  # seconds without growth after which an agent has shown what it needs
CPU_GUESS = 0.2  # cores per agent: most of them wait for their model, and five must fit on two idle cores
CPU_WINDOW = 3.0  # seconds over which CPU use is averaged; a new agent shows in it gradually
CPU_UNLIMITED = 1.0  # with this threshold, CPU use is ignored
SLACK = 0.03  # of the machine's CPU, or of what one more needs: after a shortage, this much more must be free


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

    def cap_memory(self, size: float) -> int:
        return int(size if self.task_memory_max is None else min(size, self.task_memory_max))


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
    predicted_memory: float = 0.0  # its peak, or what it reaches if it continues to grow
    is_stable: bool = False  # it has shown what it needs
    is_waiting: bool = False  # perhaps for a task that needs capacity

    def expected_growth(self, usual: float, limits: PoolLimits) -> int:
        least = self.predicted_memory if self.is_stable else limits.agent_memory
        return max(0, limits.cap_memory(max(usual, least)) - self.used)


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
    needs: Mapping[str, float],
    previous: Capacity | None = None,
) -> Capacity:
    """Pure. `needs` are bytes by kind. A resource that was short in `previous` must have recovered by SLACK."""
    was_short = previous.short_resources if previous else frozenset()
    by_memory = _memory_capacity(sample, agents, limits, needs, was_short=Resource.MEMORY in was_short)
    by_cpu = _cpu_capacity(sample, agents, limits, was_short=Resource.CPU in was_short)
    by_resources, shortage = min(by_memory, by_cpu, key=lambda each: each[0])
    by_ceiling = math.inf if limits.ceiling is None else limits.ceiling - len(agents)
    if all(agent.is_waiting for agent in agents):
        by_resources = max(by_resources, 1)  # otherwise a small or busy machine would never run any
    return Capacity(
        count=int(max(0, min(by_resources, by_ceiling))),
        shortage=shortage if by_resources < by_ceiling else None,
        short_resources=frozenset(lack.resource for count, lack in (by_memory, by_cpu) if count < 1),
    )


def _memory_capacity(
    sample: Sample, agents: Sequence[AgentSnapshot], limits: PoolLimits, needs: Mapping[str, float], *, was_short: bool
) -> tuple[float, Shortage]:
    expected, guess = dict(needs), GUESS_MARGIN * limits.agent_memory
    for agent in agents:
        predicted = 0.0 if agent.is_stable else agent.predicted_memory  # a stable one is in `needs` already
        expected[agent.kind] = max(expected.get(agent.kind, guess), predicted)
    coming = sum(agent.expected_growth(expected[agent.kind], limits) for agent in agents)
    need = limits.cap_memory(max(limits.agent_memory, *expected.values()) if expected else guess)  # its kind is unknown
    free = sample.available - limits.memory_reserve - coming
    count = math.floor((free - (SLACK * need if was_short else 0)) / need)
    why = (
        f"{format_bytes(sample.available)} of memory are available, running agents are expected to take "
        f"{format_bytes(coming)} of it, {format_bytes(limits.memory_reserve)} are the reserve, "
        f"and one more needs {format_bytes(need)}"
    )
    return count, Shortage(resource=Resource.MEMORY, why=why)


def _cpu_capacity(
    sample: Sample, agents: Sequence[AgentSnapshot], limits: PoolLimits, *, was_short: bool
) -> tuple[float, Shortage]:
    unseen = sum(max(0.0, 1 - agent.age / CPU_WINDOW) for agent in agents)
    used = max(0.0, sample.cpu * sample.cores - sample.released_cores) + unseen * CPU_GUESS
    threshold = limits.cpu_threshold - (SLACK if was_short else 0)
    count = math.ceil((threshold * sample.cores - used) / CPU_GUESS)
    recovery_text = f"they must fall below {threshold:.0%} before the next one starts, " if was_short else ""
    why = (
        f"{min(used / sample.cores, 1.0):.0%} of {sample.cores:g} cores are in use or reserved for agents that have "
        f"just started, one more is expected to take {CPU_GUESS / sample.cores:.0%}, {recovery_text}"
        f"and the threshold is {limits.cpu_threshold:.0%}"
    )
    return count if limits.cpu_threshold < CPU_UNLIMITED else math.inf, Shortage(resource=Resource.CPU, why=why)


@dataclass(slots=True, kw_only=True)
class RunningAgent:
    """A running agent and its measurements."""

    kind: str
    started_at: float
    used: int = 0
    peak: int = 0
    startup_peak: int | None = None  # the peak after STARTUP_TIME
    grew_at: float | None = None  # when the peak last rose by more than noise; None without a sample
    grew_to: int = 0
    cpu_seconds: float = 0.0
    learned_peak: int | None = None  # the peak that the expected needs include
    is_waiting: bool = False  # it may wait for tasks that it submitted

    def add_sample(self, usage: Load, now: float) -> None:
        self.used, self.peak = usage.memory, max(self.peak, usage.memory)
        self.cpu_seconds = max(self.cpu_seconds, usage.cpu_seconds)
        if self.startup_peak is None and now - self.started_at >= STARTUP_TIME:
            self.startup_peak = self.peak
        if self.grew_at is None or self.peak > GROWTH_NOISE * self.grew_to:
            self.grew_at, self.grew_to = now, self.peak

    def snapshot(self, now: float) -> AgentSnapshot:
        age, predicted = now - self.started_at, float(self.peak)
        if self.startup_peak is not None and not self.has_paused(now, GROWTH_PAUSE):
            predicted += (self.peak - self.startup_peak) / age * GROWTH_HORIZON
        is_stable = self.has_paused(now, STABLE_AFTER)
        return AgentSnapshot(
            kind=self.kind,
            age=age,
            used=self.used,
            predicted_memory=predicted,
            is_stable=is_stable,
            is_waiting=self.is_waiting,
        )

    def has_paused(self, now: float, seconds: float) -> bool:
        return self.grew_at is not None and now - self.grew_at >= seconds


def learn(needs: Mapping[str, float], agent: RunningAgent, limits: PoolLimits) -> dict[str, float]:
    """Include an agent's peak in the need of its kind. All needs fade when it is new; later calls correct its peak."""
    fading = FADING if agent.learned_peak is None else 1.0
    faded = {kind: fading * need for kind, need in {agent.kind: GUESS_MARGIN * limits.agent_memory, **needs}.items()}
    return {**faded, agent.kind: max(faded[agent.kind], OBSERVED_MARGIN * agent.peak)}


class Pool:
    """The agents of one machine, and what agents like them are expected to need."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._agents: dict[str, RunningAgent] = {}
        self._needs: dict[str, float] = {}  # bytes, by kind
        self._sample: Sample | None = None
        self._ended: list[tuple[float, float]] = []  # end time, and cores used
        self._previous: Capacity | None = None

    @property
    def busy(self) -> int:
        return len(self._agents)

    def record_start(self, name: str, kind: str, now: float) -> None:
        self._agents[name] = RunningAgent(kind=kind, started_at=now)

    def record_waiting(self, name: str, *, waits: bool) -> None:
        if (running := self._agents.get(name)) is not None:
            running.is_waiting = waits

    def record_end(self, name: str, now: float) -> None:
        running = self._agents.pop(name, None)
        if running is not None and running.grew_at is not None:  # without a sample there is nothing to learn
            self._needs = learn(self._needs, running, self._limits)
            self._ended.append((now, running.cpu_seconds / max(now - running.started_at, 1.0)))

    def record_sample(self, sample: Sample, usages: Mapping[str, Load], now: float) -> None:
        self._sample = sample
        for name, usage in usages.items():
            if (running := self._agents.get(name)) is not None:
                running.add_sample(usage, now)
                if running.has_paused(now, STABLE_AFTER) and running.learned_peak != running.peak:
                    self._needs = learn(self._needs, running, self._limits)
                    running.learned_peak = running.peak

    def capacity(self, now: float) -> Capacity:
        """As of the last sample; an agent started since then counts with all its expected needs."""
        if self._sample is None:
            return Capacity(count=0)
        self._ended = [(when, cores) for when, cores in self._ended if now - when < CPU_WINDOW]
        released = sum(cores * (1 - (now - when) / CPU_WINDOW) for when, cores in self._ended)
        agents = [running.snapshot(now) for running in self._agents.values()]
        sample = replace(self._sample, released_cores=released)
        self._previous = compute_capacity(sample, agents, self._limits, self._needs, self._previous)
        return self._previous
