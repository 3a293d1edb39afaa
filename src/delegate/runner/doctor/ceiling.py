"""DELEGATE_TASK_MEMORY_MAX: whether this system lets us enforce it."""

from __future__ import annotations

from delegate.config.disk import spoken
from delegate.runner.doctor.case import Case
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.process.cgroups import Ceilings

SUBJECT = "memory ceiling"
FIX = "`systemd-run --user --scope delegate up` gives it one where systemd runs; or unset DELEGATE_TASK_MEMORY_MAX"


def examine_ceiling(case: Case, ceilings: Ceilings) -> list[Finding]:
    """Blocks."""
    limit = case.settings.task_memory_max
    if limit is None:
        return []
    why_not = ceilings.why_not()
    if why_not is None:
        return [Part.SETTINGS.ok(SUBJECT, f"a task may take {spoken(limit)} of memory")]
    return [Part.SETTINGS.warning(SUBJECT, f"DELEGATE_TASK_MEMORY_MAX is not enforced: {why_not}", FIX)]
