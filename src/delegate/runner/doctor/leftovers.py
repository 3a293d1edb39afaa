"""What was left by runners that ended badly: processes, workspaces, work that nobody has pushed."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

from delegate.config.disk import spoken
from delegate.runner.doctor.case import Case, counted, spoken_age, told
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.process import supervisor
from delegate.runner.process.strays import MARK, environment_of, is_supervisor
from delegate.runner.process.supervisor import Table
from delegate.runner.workspaces.journal import read_journal
from delegate.runner.workspaces.kept import list_kept

SHOWN = 5
SOON = timedelta(days=2)  # before kept work is dropped


def examine_orphans(case: Case) -> list[Finding]:
    """Blocks. Processes of this home's attempts that no supervisor watches; only where there is a /proc."""
    if not supervisor.IS_LINUX:
        return []
    found = orphans(supervisor.read_table(), case.home.root)
    if not found:
        return [Part.LEFTOVERS.ok("processes", "none")]
    pids = " ".join(str(pid) for pid in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    message = f"{pids}{more}: of an attempt that has ended"
    return [
        Part.LEFTOVERS.warning("processes", message, f"look with `ps -p {pids.replace(' ', ',')}`, then `kill {pids}`")
    ]


def orphans(table: Table, home: Path) -> list[int]:
    """A supervisor keeps all descendants of its agent below it; what carries an attempt's mark elsewhere lost it."""
    watched = {os.getpid(), *(pid for pid in table if is_supervisor(pid))}
    watched |= {below for pid in watched for below in supervisor.descendants(table, pid)}
    found = []
    for pid in sorted(table.keys() - watched):
        environment = environment_of(pid)
        if MARK in environment and environment.get("DELEGATE_HOME") == str(home):
            found.append(pid)
    return found


def examine_workspaces(case: Case, running: Collection[str]) -> list[Finding]:
    """Blocks. `running` are the tasks that runners work on now."""
    try:
        roots = sorted(path for path in case.home.workspaces.iterdir() if path.is_dir())
    except OSError:
        return []
    journals = [(root, read_journal(root)) for root in roots]
    left = [root.name for root, journal in journals if journal is None or not set(journal.tasks) & set(running)]
    used = len(roots) - len(left)
    if not left:
        return [Part.LEFTOVERS.ok("workspaces", f"{used} in use")] if used else []
    message = f"{counted(len(left), 'workspace')} that nobody works in: {told(', '.join(left[:SHOWN]))}"
    return [
        Part.LEFTOVERS.note("workspaces", message, "a runner saves what is in them and removes them when it starts")
    ]


def examine_kept(case: Case) -> list[Finding]:
    """Blocks."""
    kept = list_kept(case.home)
    if not kept:
        return [Part.LEFTOVERS.ok("kept work", "none")]
    oldest = case.now - kept[-1].at
    size = spoken(sum(one.size for one in kept))
    names = ", ".join(f"{one.lineage} ({one.repository})" for one in kept[-SHOWN:])
    message = (
        f"{counted(len(kept), 'task')} with unpushed work, {size}, the oldest {spoken_age(oldest)} old: {told(names)}"
    )
    fix = "`delegate workspaces` lists, restores and drops it"
    if oldest > timedelta(days=case.settings.salvage_days) - SOON:
        soon = f"{message}; it goes after {counted(case.settings.salvage_days, 'day')}"
        return [Part.LEFTOVERS.warning("kept work", soon, fix)]
    return [Part.LEFTOVERS.note("kept work", message, fix)]
