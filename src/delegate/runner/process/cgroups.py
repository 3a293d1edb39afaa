"""Reads this process's cgroup limits and limits the memory of one attempt (Linux). Standard library only.

A memory limit needs cgroup v2 and a delegated group; systemd delegates one to every user service and scope.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from delegate.config.disk import format_bytes

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
PREFIX = "delegate-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of this process: its own first, then the parents."""

    unified: tuple[Path, ...] = ()
    memory_v1: tuple[Path, ...] = ()


def own_groups(root: Path = ROOT, membership: Path = MEMBERSHIP) -> Groups:
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux
        return Groups()
    mount = root if (root / "cgroup.controllers").exists() else root / "unified"
    unified: tuple[Path, ...] = ()
    memory_v1: tuple[Path, ...] = ()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and (mount / "cgroup.controllers").exists():
            unified = _group_and_parents(mount, path)
        elif "memory" in controllers.split(","):
            memory_v1 = _group_and_parents(root / "memory", path)
    return Groups(unified=unified, memory_v1=memory_v1)


def _group_and_parents(mount: Path, path: str) -> tuple[Path, ...]:
    """Inside a container the host's path does not exist; then the mount itself is the group."""
    own = mount / path.lstrip("/")
    if not own.is_dir() or mount not in (own, *own.parents):
        return (mount,)
    return tuple(group for group in (own, *own.parents) if group == mount or mount in group.parents)


def memory_left(groups: Groups) -> int | None:
    """Bytes until the tightest limit is reached, not counting what the kernel can drop; None without a limit."""
    found = [_remaining_bytes(group, "memory.max", "memory.current", "inactive_file") for group in groups.unified]
    found += [
        _remaining_bytes(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for group in groups.memory_v1
    ]
    return min((left for left in found if left is not None), default=None)


def _remaining_bytes(group: Path, limit_file: str, usage_file: str, droppable: str) -> int | None:
    try:
        limit, usage = int((group / limit_file).read_text()), int((group / usage_file).read_text())
    except (OSError, ValueError):  # the root group has no such file; "max" means no limit
        return None
    return max(0, limit - usage + _read_counters(group / "memory.stat").get(droppable, 0))


def _read_counters(path: Path) -> dict[str, int]:
    """Parse a file of lines with a name and a number."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def cpu_quota(groups: Groups) -> tuple[float, Path] | None:
    """The lowest CPU quota of these groups, in cores, and its group; None without a limit."""
    found = [(cores, group) for group in groups.unified if (cores := _quota(group)) is not None]
    return min(found, default=None)


def _quota(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def cpu_seconds(group: Path) -> float:
    return _read_counters(group / "cpu.stat").get("usage_usec", 0) / 1e6


class NotDelegated(Exception):
    """No group is delegated to this process; the text is shown to the user."""


def find_delegated_group(groups: Groups) -> Path:
    """The group in which groups with a memory limit can be created: this process's own or its parent."""
    if not groups.unified:
        raise NotDelegated("this system has no cgroup v2")
    for group in groups.unified[:2]:
        if "memory" in _read_words(group / "cgroup.subtree_control") and _is_ours(group):
            return group
    raise NotDelegated("no cgroup with the memory controller is delegated to Delegate")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _is_ours(group: Path) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)


class OutOfMemory(Exception):
    """A command exceeded the attempt's memory limit; the text is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A memory limit for an attempt and all its processes; exceeding it kills the whole group."""

    directory: Path
    home: Path  # the group that a supervisor returns to after starting the agent
    limit: int

    @property
    def paths(self) -> tuple[str, str]:
        return str(self.directory), str(self.home)

    def kills(self) -> int:
        """How often a process in the group was killed for exceeding the limit."""
        return _read_counters(self.directory / "memory.events").get("oom_kill", 0)

    @property
    def message(self) -> str:
        return f"it exceeded the memory limit of {format_bytes(self.limit)} per task"


@dataclass(slots=True, kw_only=True)
class MemoryLimits:
    """Creates the memory limits of a runner's attempts, where the system allows it."""

    limit: int | None
    groups: Groups = field(default_factory=own_groups)
    _has_warned: bool = False

    def unavailable_reason(self) -> str | None:
        """Why the configured limit cannot be enforced; None when it can, or when no limit is set."""
        try:
            if self.limit is not None:
                find_delegated_group(self.groups)
        except NotDelegated as problem:
            return str(problem)
        return None

    def begin(self, attempt_id: str) -> MemoryLimit | None:
        if self.limit is None:
            return None
        try:
            return self._create_group(find_delegated_group(self.groups) / f"{PREFIX}{attempt_id}", self.limit)
        except (NotDelegated, OSError) as problem:  # the task runs without a limit; the doctor reports it too
            if not self._has_warned:
                log.warning("memory limit not enforced", extra={"why": str(problem)})
            self._has_warned = True
            return None

    def _create_group(self, directory: Path, limit: int) -> MemoryLimit:
        directory.mkdir(exist_ok=True)
        try:
            (directory / "memory.max").write_text(str(limit))
            with suppress(OSError):  # a system without swap has no such file
                (directory / "memory.swap.max").write_text("0")
            (directory / "memory.oom.group").write_text("1")
        except OSError:
            directory.rmdir()
            raise
        return MemoryLimit(directory=directory, home=self.groups.unified[0], limit=limit)

    def end(self, attempt_id: str) -> None:
        """Remove the group of an attempt without live processes; a missing group is ignored."""
        with suppress(NotDelegated, OSError):
            (find_delegated_group(self.groups) / f"{PREFIX}{attempt_id}").rmdir()
