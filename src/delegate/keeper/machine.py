"""Measures the machine: how busy it is, how much memory is available, and what agents use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from delegate.keeper.capacity import CPU_WINDOW, Load, Sample
from delegate.runner.process import cgroups
from delegate.runner.process.supervisor import IS_LINUX

PROC = Path("/proc")
IDLE_COLUMNS = (3, 4)  # of a line of /proc/stat: idle, and waiting for a disk
GUEST_COLUMNS = 8  # this column and those after it are included in earlier ones
KIB = 1024


class CpuTimes(NamedTuple):
    busy: float  # core-seconds, since some point in time
    total: float


class CpuReading(NamedTuple):
    at: float
    times: CpuTimes
    of_group: float  # core-seconds used inside the cgroup that limits us, if any


class MachineState:
    """`startup_seconds` returns the core-seconds spent on starting our own processes: that load does not last."""

    def __init__(
        self, startup_seconds: Callable[[], float], proc: Path = PROC, groups: cgroups.Groups | None = None
    ) -> None:
        self._startup_seconds = startup_seconds
        self._proc = proc
        self._groups = cgroups.own_groups() if groups is None else groups
        self._counts: deque[CpuReading] = deque()

    def cores(self) -> float:
        """The number of cores that we may use."""
        own = len(own_cpus()) or os.cpu_count() or 1
        quota = cgroups.cpu_quota(self._groups)
        return min(float(own), quota[0]) if quota else float(own)

    def sample(self, now: float) -> Sample:
        cores = self.cores()
        self._record_times(now)
        return Sample(cores=cores, cpu=self._cpu_share(cores), available=self._available())

    def _record_times(self, now: float) -> None:
        quota = cgroups.cpu_quota(self._groups)
        of_group = cgroups.cpu_seconds(quota[1]) if quota else 0.0
        times, startup_seconds = cpu_times(self._proc), self._startup_seconds()
        times = CpuTimes(busy=times.busy - startup_seconds, total=times.total)
        self._counts.append(CpuReading(at=now, times=times, of_group=of_group - startup_seconds))
        while len(self._counts) > 2 and self._counts[1].at <= now - CPU_WINDOW:
            self._counts.popleft()

    def _cpu_share(self, cores: float) -> float:
        """The larger of the machine's and our own cgroup's."""
        first, last = self._counts[0], self._counts[-1]
        machine = (last.times.busy - first.times.busy) / max(last.times.total - first.times.total, 1e-9)
        own = (last.of_group - first.of_group) / max((last.at - first.at) * cores, 1e-9)
        return min(max(machine, own, 0.0), 1.0)

    def _available(self) -> int:
        machine, own = available_memory(self._proc), cgroups.memory_left(self._groups)
        return machine if own is None else min(machine, own)


def own_cpus() -> set[int]:
    """The CPUs we may run on; empty where the system cannot tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def cpu_times(proc: Path = PROC) -> CpuTimes:
    """The times of the CPUs that we may run on; the load of other CPUs does not affect us."""
    if not IS_LINUX:
        import psutil  # noqa: PLC0415  only systems without /proc need it

        times = psutil.cpu_times()
        return CpuTimes(busy=sum(times) - times.idle, total=sum(times))
    everything, *lines = (proc / "stat").read_text().splitlines()
    names = {f"cpu{number}" for number in own_cpus()}
    own = [line for line in lines if line.split(" ", 1)[0] in names] or [everything]
    total = idle = 0
    for line in own:
        columns = [int(word) for word in line.split()[1:]][:GUEST_COLUMNS]
        total += sum(columns)
        idle += sum(columns[number] for number in IDLE_COLUMNS)
    tick = os.sysconf("SC_CLK_TCK")
    return CpuTimes(busy=(total - idle) / tick, total=total / tick)


def available_memory(proc: Path = PROC) -> int:
    if not IS_LINUX:
        import psutil  # noqa: PLC0415  only systems without /proc need it

        return int(psutil.virtual_memory().available)
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return 0


def measure_descendants(pid: int) -> Load | None:
    """What the descendants of this process use and have used; None if it cannot be measured."""
    if not IS_LINUX:
        return _measure_with_psutil(pid)
    try:
        found = [_usage(below) for below in descendants(pid)]
    except OSError:  # a kernel that does not list children
        return None
    return Load(memory=sum(one.memory for one in found), cpu_seconds=sum(one.cpu_seconds for one in found))


def descendants(pid: int) -> Iterable[int]:
    """Read only our own processes: a table of all is expensive on a machine with thousands."""
    pending = [pid]
    while pending:
        parent = pending.pop()
        try:
            threads = os.listdir(PROC / str(parent) / "task")  # noqa: PTH208
        except FileNotFoundError:  # it has ended
            continue
        for thread in threads:
            children = _children(parent, thread)
            yield from children
            pending += children


def _children(pid: int, thread: str) -> list[int]:
    directory = PROC / str(pid) / "task" / thread
    try:
        return [int(word) for word in (directory / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        if directory.exists():
            raise
        return []


def _usage(pid: int) -> Load:
    """Private memory only: shared memory, such as program code, would be counted many times."""
    try:
        _, resident, shared, *_ = (PROC / str(pid) / "statm").read_text().split()
    except OSError:  # it has ended
        return Load(memory=0, cpu_seconds=0.0)
    own = max(0, int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return Load(memory=own, cpu_seconds=cpu_seconds_of(pid))


def cpu_seconds_of(pid: int) -> float:
    """The CPU time of a process and of the children that it has reaped."""
    with suppress(OSError, ValueError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _measure_with_psutil(pid: int) -> Load | None:
    import psutil  # noqa: PLC0415  only systems without /proc need it

    memory, seconds = 0, 0.0
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                memory += process.memory_info().rss
                seconds += sum(process.cpu_times()[:2])
    return Load(memory=memory, cpu_seconds=seconds)
