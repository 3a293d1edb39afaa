"""Control groups (Linux): the limits we live under, and a ceiling on the memory of one attempt. Standard library only.

A ceiling needs cgroup v2, and a group that is ours to divide: systemd gives one to every user service and scope.
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
    """Where this process stands: its own group first, then those around it."""

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
    """A path of the host is not there inside a container: the mount itself is our group then."""
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
    except (OSError, ValueError):  # a group at the top has no such file, one without a limit says "max"
        return None
    return max(0, limit - usage + _read_counters(group / "memory.stat").get(droppable, 0))


def _read_counters(path: Path) -> dict[str, int]:
    """A file of lines with a name and a number."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def cpu_quota(groups: Groups) -> tuple[float, Path] | None:
    """The tightest number of cores that a group of ours may use, and that group; None without a limit."""
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
    """No group of ours can be divided; the text is a sentence for a person."""


def find_delegated_group(groups: Groups) -> Path:
    """The group in which groups with a ceiling can be made: ours or the one around it."""
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
    """A command took more memory than the attempt may have; the text is a sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """At most so much memory for an attempt and all it starts; whatever passes it is killed, as a whole."""

    directory: Path
    home: Path  # the group of whoever starts something in it, and goes back
    limit: int

    @property
    def paths(self) -> tuple[str, str]:
        return str(self.directory), str(self.home)

    def kills(self) -> int:
        """How often something in it was killed for want of memory."""
        return _read_counters(self.directory / "memory.events").get("oom_kill", 0)

    @property
    def message(self) -> str:
        return f"it took more than {format_bytes(self.limit)} of memory, which is all that a task may have here"


@dataclass(slots=True, kw_only=True)
class MemoryLimits:
    """Makes the ceilings of a runner's attempts, where the system allows it."""

    limit: int | None
    groups: Groups = field(default_factory=own_groups)
    _has_warned: bool = False

    def unavailable_reason(self) -> str | None:
        """Why a ceiling that was asked for cannot be set; None when it can, or when none was asked for."""
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
        except (NotDelegated, OSError) as problem:  # the task runs without; the doctor says so, too
            if not self._has_warned:
                log.warning("memory ceiling not enforced", extra={"why": str(problem)})
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
        """Remove the group of an attempt of which nothing lives any more; one that is not there is no matter."""
        with suppress(NotDelegated, OSError):
            (find_delegated_group(self.groups) / f"{PREFIX}{attempt_id}").rmdir()
