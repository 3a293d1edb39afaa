"""How many more agents this machine can bear, decided from looks at it. No I/O: the keeper looks, tests simulate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from delegate.config.disk import spoken

GUESS_MARGIN = 1.5  # an agent of a kind that nobody has seen may need this many times what the setting says
SEEN_MARGIN = 1.2  # and one of a known kind this many times what most of them needed
SEEN_SHARE = 0.9  # what so many of a kind got by with is expected of the next; with fewer than ten it is the largest
SEEN_ENOUGH = 3  # agents of a kind after which they are known; with each of them the guess counts less
SEEN_KEPT = 32  # the last ones of a kind count; what was long ago says little about what comes
LATELY = 4  # the next one is taken to be of a kind of which one of so many was that began last
YOUNG = 6.0  # seconds in which an agent counts with all that the setting says: after small ones may come a large one
START_UP = 3.0  # seconds in which a program loads itself; how fast it grows then says nothing about later
GROWTH_WINDOW = 10.0  # seconds over which growth is measured
GROWTH_LEAST = 2.0  # seconds that two looks must be apart to tell growth from noise
GROWTH_HORIZON = 60.0  # seconds for which what grows is taken to go on growing
SETTLED_AFTER = 8.0  # seconds of life after which an agent that does not grow has shown what it needs
SETTLED_GROWTH = 0.001  # a second, of what it has
CPU_GUESS, CPU_LEAST, CPU_MOST = 0.2, 0.05, 1.0  # cores of an agent: at first, and what may be learned
CPU_LEARNS = 0.3  # the weight of the latest one
CPU_WINDOW = 3.0  # seconds; the mean use over so long is looked at, and an agent shows in it bit by bit
CPU_SLACK = 0.03  # of the machine; once it was too busy it must be so much less busy
MEMORY_SLACK = 0.1  # of what one more needs; the same for memory
UNMETERED = 1.0  # with this threshold CPU does not count


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
    """One look at the machine, or at the part of it that we may use."""

    cores: float
    cpu: float  # the share of them in use, a mean over CPU_WINDOW
    faded: float = 0.0  # cores of that mean that were used by agents which have ended since
    available: int  # bytes of memory that can be had


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an agent and everything it started uses."""

    memory: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAgent:
    kind: str
    age: float
    used: int = 0
    growth: float = 0.0  # bytes a second
    is_settled: bool = False  # what it needs has shown, and belongs to the experience

    @property
    def foreseen(self) -> int:
        return self.used + int(self.growth * GROWTH_HORIZON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What agents needed: the last ones of each kind, the latest at the end."""

    peaks: tuple[tuple[str, int], ...] = ()
    cpu: float = CPU_GUESS
    lately: tuple[str, ...] = ()  # the kinds of those that began last

    def grown_by(self, kind: str, peak: int, cpu: float | None) -> Experience:
        """With one more; `cpu`, in cores, is None when its life was too short to tell."""
        now = self.cpu if cpu is None else self.cpu + CPU_LEARNS * (cpu - self.cpu)
        others = [one for one in self.peaks if one[0] != kind]
        alike = [*(one for one in self.peaks if one[0] == kind), (kind, peak)][-SEEN_KEPT:]
        return replace(self, peaks=(*others, *alike), cpu=min(max(now, CPU_LEAST), CPU_MOST))

    def corrected(self, kind: str, before: int, peak: int) -> Experience:
        """One that was learned with `before` has needed more since."""
        if (kind, before) not in self.peaks:
            return self
        at = self.peaks.index((kind, before))
        return replace(self, peaks=(*self.peaks[:at], (kind, peak), *self.peaks[at + 1 :]))

    def begun(self, kind: str) -> Experience:
        return replace(self, lately=(*self.lately, kind)[-LATELY:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    resource: Resource
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many more may begin now, and what keeps it from being more."""

    count: int
    lack: Lack | None = None
    short: frozenset[Resource] = frozenset()  # what there is not even enough of for one more


def room(
    sample: Sample, agents: Sequence[SeenAgent], limits: PoolLimits, experience: Experience, before: Room | None = None
) -> Room:
    """Pure. `before` is the room of the last look: what was short then must have recovered a little."""
    was_short = before.short if before else frozenset()
    by_memory, memory_lack = _memory_room(sample, agents, limits, experience, was_short=Resource.MEMORY in was_short)
    by_cpu, cpu_lack = _cpu_room(sample, agents, limits, experience, was_short=Resource.CPU in was_short)
    by_ceiling = math.inf if limits.ceiling is None else limits.ceiling - len(agents)
    bearable = min(by_memory, by_cpu)
    if not agents:
        bearable = max(bearable, 1)  # or a small or busy machine would be locked out for ever
    short = {Resource.MEMORY: by_memory, Resource.CPU: by_cpu}
    return Room(
        count=int(max(0, min(bearable, by_ceiling))),
        lack=None if bearable >= by_ceiling else memory_lack if by_memory <= by_cpu else cpu_lack,
        short=frozenset(resource for resource, count in short.items() if count < 1),
    )


def _memory_room(
    sample: Sample, agents: Sequence[SeenAgent], limits: PoolLimits, experience: Experience, *, was_short: bool
) -> tuple[float, Lack]:
    coming = sum(_still_to_come(agent, agents, limits, experience) for agent in agents)
    need = expected_of_new(agents, limits, experience)
    free = sample.available - limits.memory_reserve - coming
    count = math.floor((free - (MEMORY_SLACK * need if was_short else 0)) / need)
    why = (
        f"{spoken(sample.available)} of memory are available, running agents are expected to take "
        f"{spoken(coming)} of it, {spoken(limits.memory_reserve)} are the reserve, and one more needs {spoken(need)}"
    )
    return count, Lack(resource=Resource.MEMORY, why=why)


def _cpu_room(
    sample: Sample, agents: Sequence[SeenAgent], limits: PoolLimits, experience: Experience, *, was_short: bool
) -> tuple[float, Lack]:
    unseen = sum(max(0.0, 1 - agent.age / CPU_WINDOW) for agent in agents)
    used = max(0.0, sample.cpu * sample.cores - sample.faded) + unseen * experience.cpu
    threshold = limits.cpu_threshold - (CPU_SLACK if was_short else 0)
    count = math.ceil((threshold * sample.cores - used) / experience.cpu)
    again = f"they must fall below {threshold:.0%} before the next one starts, " if was_short else ""
    why = (
        f"{min(used / sample.cores, 1.0):.0%} of {sample.cores:g} cores are in use, or promised to agents that have "
        f"just begun, one more is expected to take {experience.cpu / sample.cores:.0%}, {again}"
        f"and the threshold is {limits.cpu_threshold:.0%}"
    )
    is_metered = limits.cpu_threshold < UNMETERED
    return count if is_metered else math.inf, Lack(resource=Resource.CPU, why=why)


def expected_of(kind: str, agents: Iterable[SeenAgent], limits: PoolLimits, experience: Experience) -> int:
    """Bytes that an agent of this kind comes to need, as far as anybody can tell."""
    seen = sorted(peak for name, peak in experience.peaks if name == kind)
    guess = GUESS_MARGIN * limits.agent_memory * max(0.0, 1 - len(seen) / SEEN_ENOUGH)
    usual = SEEN_MARGIN * seen[math.ceil(SEEN_SHARE * len(seen)) - 1] if seen else 0
    foreseen = (agent.foreseen for agent in agents if agent.kind == kind and not agent.is_settled)
    return int(max([guess, usual, *foreseen]))


def expected_of_new(agents: Sequence[SeenAgent], limits: PoolLimits, experience: Experience) -> int:
    """Of the next one, whose kind is not known: as much as the largest kind of late."""
    expected = [expected_of(kind, agents, limits, experience) for kind in set(experience.lately) or {""}]
    return _capped(max(limits.agent_memory, *expected), limits)


def _still_to_come(agent: SeenAgent, agents: Iterable[SeenAgent], limits: PoolLimits, experience: Experience) -> int:
    expected = expected_of(agent.kind, agents, limits, experience)
    least = limits.agent_memory if agent.age < YOUNG else 0
    return max(0, _capped(max(expected, least), limits) - agent.used)


def _capped(size: int, limits: PoolLimits) -> int:
    return size if limits.task_memory_max is None else min(size, limits.task_memory_max)


@dataclass(slots=True, kw_only=True)
class Watched:
    """An agent that runs, and what was seen of it."""

    kind: str
    began: float
    looks: deque[tuple[float, int]] = field(default_factory=deque)  # of the last seconds, those of its start apart
    used: int = 0
    peak: int = 0
    cpu_seconds: float = 0.0
    is_seen: bool = False
    learned: int | None = None  # the peak that the experience has

    def seen(self, usage: Load, now: float) -> None:
        self.is_seen = True
        self.used, self.peak = usage.memory, max(self.peak, usage.memory)
        self.cpu_seconds = max(self.cpu_seconds, usage.cpu_seconds)
        if now - self.began >= START_UP:
            self.looks.append((now, usage.memory))
        while len(self.looks) > 1 and self.looks[1][0] <= now - GROWTH_WINDOW:
            self.looks.popleft()

    def agent(self, now: float) -> SeenAgent:
        is_settled = self.learned is not None and self.is_settled(now)
        return SeenAgent(
            kind=self.kind, age=now - self.began, used=self.used, growth=self._growth(), is_settled=is_settled
        )

    def cores(self, now: float) -> float | None:
        return self.cpu_seconds / (now - self.began) if now - self.began >= 1 else None

    def is_settled(self, now: float) -> bool:
        return now - self.began >= SETTLED_AFTER and self._growth() <= SETTLED_GROWTH * self.used

    def _growth(self) -> float:
        if len(self.looks) < 2:
            return 0.0
        (since, before), (until, after) = self.looks[0], self.looks[-1]
        return max(0.0, (after - before) / (until - since)) if until - since >= GROWTH_LEAST else 0.0


class Pool:
    """The agents of one machine as they come and go, and what their like is expected to need."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._agents: dict[str, Watched] = {}
        self._experience = Experience()
        self._sample: Sample | None = None
        self._ended: deque[tuple[float, float]] = deque()  # when, and how many cores it had used
        self._before: Room | None = None

    @property
    def busy(self) -> int:
        return len(self._agents)

    def begins(self, name: str, kind: str, now: float) -> None:
        self._agents[name] = Watched(kind=kind, began=now)
        self._experience = self._experience.begun(kind)

    def ends(self, name: str, now: float) -> None:
        watched = self._agents.pop(name, None)
        if watched is not None and watched.is_seen:  # one that nobody saw teaches nothing
            self._learn(watched, now)
            self._ended.append((now, watched.cores(now) or 0.0))

    def look(self, sample: Sample, usages: Mapping[str, Load], now: float) -> None:
        self._sample = sample
        for name, usage in usages.items():
            if (watched := self._agents.get(name)) is not None:
                watched.seen(usage, now)
                if watched.is_settled(now):
                    self._learn(watched, now)

    def _learn(self, watched: Watched, now: float) -> None:
        """Each one once, whenever it has shown what it needs; later it can only correct that."""
        if watched.learned is None:
            self._experience = self._experience.grown_by(watched.kind, watched.peak, watched.cores(now))
        elif watched.peak > watched.learned:
            self._experience = self._experience.corrected(watched.kind, watched.learned, watched.peak)
        watched.learned = watched.peak

    def room(self, now: float) -> Room:
        """As of the last look; who began since then counts with all that is expected of him."""
        if self._sample is None:
            return Room(count=0)
        agents = [watched.agent(now) for watched in self._agents.values()]
        sample = replace(self._sample, faded=self._faded(now))
        self._before = room(sample, agents, self._limits, self._experience, self._before)
        return self._before

    def _faded(self, now: float) -> float:
        while self._ended and now - self._ended[0][0] >= CPU_WINDOW:
            self._ended.popleft()
        return sum(cores * (1 - (now - when) / CPU_WINDOW) for when, cores in self._ended)
