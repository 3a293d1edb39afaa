"""Examines what runners left behind when they crashed: processes, workspaces and unpushed work."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from delegate.config.disk import format_bytes
from delegate.config.home_files import is_held
from delegate.runner.doctor.context import DoctorContext, format_age, pluralize, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.process import supervisor
from delegate.runner.process.strays import ATTEMPT_VARIABLE, environment_of, is_supervisor
from delegate.runner.process.supervisor import Table
from delegate.runner.workspaces.kept import list_kept
from delegate.runner.workspaces.locks import LOCK_NAME

LISTED_MAX = 5
EXPIRY_WARNING = timedelta(days=2)  # before kept work is dropped


def examine_orphans(context: DoctorContext) -> list[Finding]:
    """Blocks. Processes of this home's attempts that no supervisor watches; only where there is a /proc."""
    if not supervisor.IS_LINUX:
        return []
    found = find_orphans(supervisor.read_table(), context.home.root)
    if not found:
        return [DoctorSection.LEFTOVERS.ok("processes", "none")]
    pids = " ".join(str(pid) for pid in found[:LISTED_MAX])
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    message = f"{pids}{more}: left by an attempt that has ended"
    return [
        DoctorSection.LEFTOVERS.warning(
            "processes", message, f"check with `ps -p {pids.replace(' ', ',')}`, then `kill {pids}`"
        )
    ]


def find_orphans(table: Table, home: Path) -> list[int]:
    """A supervisor keeps the descendants of its agent below it: a marked process elsewhere has lost its supervisor."""
    watched = {os.getpid(), *(pid for pid in table if is_supervisor(pid))}
    watched |= {below for pid in watched for below in supervisor.descendants(table, pid)}
    found = []
    for pid in sorted(table.keys() - watched):
        environment = environment_of(pid)
        if ATTEMPT_VARIABLE in environment and environment.get("DELEGATE_HOME") == str(home):
            found.append(pid)
    return found


def examine_workspaces(context: DoctorContext) -> list[Finding]:
    """Blocks. A runner holds the lock of the workspace that it works in."""
    try:
        roots = sorted(path for path in context.home.workspaces.iterdir() if path.is_dir())
    except OSError:
        return []
    left = [root.name for root in roots if not is_held(root / LOCK_NAME)]
    used = len(roots) - len(left)
    if not left:
        return [DoctorSection.LEFTOVERS.ok("workspaces", f"{used} in use")] if used else []
    message = f"{pluralize(len(left), 'unused workspace')}: {quote_line(', '.join(left[:LISTED_MAX]))}"
    return [
        DoctorSection.LEFTOVERS.note(
            "workspaces", message, "a runner saves the work in them and removes them when it starts"
        )
    ]


def examine_kept(context: DoctorContext) -> list[Finding]:
    """Blocks."""
    kept = list_kept(context.home)
    if not kept:
        return [DoctorSection.LEFTOVERS.ok("kept work", "none")]
    oldest = context.now - kept[-1].at
    size = format_bytes(sum(one.size for one in kept))
    names = ", ".join(f"{one.lineage} ({one.repository})" for one in kept[-LISTED_MAX:])
    count = pluralize(len(kept), "task")
    message = f"{count} with unpushed work, {size}, the oldest {format_age(oldest)} old: {quote_line(names)}"
    fix = "list, restore or drop it with `delegate workspaces`"
    if oldest > timedelta(days=context.settings.salvage_days) - EXPIRY_WARNING:
        soon = f"{message}; kept work is dropped after {pluralize(context.settings.salvage_days, 'day')}"
        return [DoctorSection.LEFTOVERS.warning("kept work", soon, fix)]
    return [DoctorSection.LEFTOVERS.note("kept work", message, fix)]
