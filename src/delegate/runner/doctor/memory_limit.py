"""Checks whether DELEGATE_TASK_MEMORY_MAX can be enforced on this system."""

from __future__ import annotations

from delegate.config.disk import format_bytes
from delegate.runner.doctor.context import DoctorContext
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.process.cgroups import MemoryLimits

SUBJECT = "memory limit"
FIX = "with systemd, start it with `systemd-run --user --scope delegate up`; or unset DELEGATE_TASK_MEMORY_MAX"


def examine_memory_limit(context: DoctorContext, limits: MemoryLimits) -> list[Finding]:
    """Blocks."""
    limit = context.settings.task_memory_max
    if limit is None:
        return []
    why_not = limits.unavailable_reason()
    if why_not is None:
        return [DoctorSection.SETTINGS.ok(SUBJECT, f"a task may use {format_bytes(limit)} of memory")]
    return [DoctorSection.SETTINGS.warning(SUBJECT, f"DELEGATE_TASK_MEMORY_MAX is not enforced: {why_not}", FIX)]
