"""Ends processes left by a runner and its supervisor that were killed together, if they are certainly ours."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from delegate.config.home_files import SurvivingProcess
from delegate.runner.process import supervisor
from delegate.runner.process.strays import ATTEMPT_VARIABLE, attempt_of, is_supervisor, program_of
from delegate.runner.process.supervisor import Process, Table

log = logging.getLogger(__name__)

SUPERVISOR_TIMEOUT = 5.0  # seconds for a supervisor without a runner to end its agent, which usually takes milliseconds
KILL_TIMEOUT = 5.0  # seconds; a kill takes milliseconds, and a process that lives longer hangs in the kernel
OTHER_USER, STUCK = "it belongs to another user", "it was killed but has not ended"
INIT = 1  # its children may come from anywhere in the container


class Orphans:
    """Orphans of the keeper's descendants become its children (Linux). Without strangers, every orphan is ours; with
    strangers, an orphan is ours only if it carries our mark or was seen below one of our children.

    Strangers are children that existed before the keeper (`sleep 300 & exec delegate up --foreground`), and the
    orphans they leave; the keeper reaps them when they end, and does not touch them otherwise.
    """

    def __init__(self) -> None:
        supervisor.become_subreaper()
        self._pid = os.getpid()
        table = supervisor.read_table() if supervisor.IS_LINUX else {}
        self._strangers = _identities(supervisor.descendants(table, self._pid).values())
        self._may_have_strangers = self._pid == INIT or bool(self._strangers)
        self._ours: set[tuple[int, str]] = set()
        self._supervisors: dict[tuple[int, str], float] = {}  # their deadlines to end by themselves
        self._killed: dict[tuple[int, str], float] = {}  # their deadlines to end after the kill
        self._survivors: dict[tuple[int, str], SurvivingProcess] = {}

    @property
    def survivors(self) -> list[SurvivingProcess]:
        """The processes that could not be ended, as of the last check."""
        return list(self._survivors.values())

    def end(self, own: set[int]) -> bool:
        """Kill what is ours and not in `own`, the children the keeper has started; True while some may still end."""
        if not supervisor.IS_LINUX:
            return False
        table = supervisor.read_table()
        roots = [process for process in table.values() if process.parent == self._pid and process.pid not in own]
        ours = [process for process in roots if self._is_ours(process)]
        self._update_ownership(table, own, roots, ours)
        self._forget_ended(table)
        ending = [self._end_tree(table, root) for root in ours]
        for process in roots:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        return any(ending)

    def _is_ours(self, process: Process) -> bool:
        identity = (process.pid, process.start)
        if identity in self._strangers:
            return False
        if not self._may_have_strangers or identity in self._ours:
            return True
        # A keeper that was started in an attempt shares that mark with strangers.
        return is_supervisor(process.pid) or attempt_of(process.pid) not in {None, os.environ.get(ATTEMPT_VARIABLE)}

    def _update_ownership(self, table: Table, own: set[int], roots: Iterable[Process], ours: Iterable[Process]) -> None:
        """Remember the descendants of each process: when it dies, they lose their parent."""
        known = {process.pid for process in ours}
        strangers = [process for process in roots if process.pid not in known]
        self._ours = _identities(ours) | {
            identity for pid in own | known for identity in _identities(supervisor.descendants(table, pid).values())
        }
        self._strangers = _identities(strangers) | {
            identity
            for process in strangers
            for identity in _identities(supervisor.descendants(table, process.pid).values())
        }
        # Without a living stranger, the next orphan must come from one of our children.
        self._may_have_strangers = self._pid == INIT or bool(strangers)

    def _end_tree(self, table: Table, root: Process) -> bool:
        if root.is_zombie:
            return False
        if is_supervisor(root.pid):
            until = self._supervisors.setdefault((root.pid, root.start), time.monotonic() + SUPERVISOR_TIMEOUT)
            if time.monotonic() < until:
                return True
        tree = (root, *supervisor.descendants(table, root.pid).values())
        ending = [self._kill(process) for process in tree if not process.is_zombie]
        return any(ending)

    def _kill(self, process: Process) -> bool:
        """True while it may still end; a process that does not, or that we may not kill, must not block the keeper."""
        identity, now = (process.pid, process.start), time.monotonic()
        if not supervisor.send_signal(process, signal.SIGKILL):
            return self._record_survivor(process, OTHER_USER)
        if identity not in self._killed:
            log.warning("orphan killed", extra={"pid": process.pid})
        if now < self._killed.setdefault(identity, now + KILL_TIMEOUT):
            return True
        return self._record_survivor(process, STUCK)

    def _record_survivor(self, process: Process, why: str) -> bool:
        identity = (process.pid, process.start)
        if identity not in self._survivors:
            survivor = self._survivors[identity] = SurvivingProcess(
                pid=process.pid, command=program_of(process.pid), why=why
            )
            log.warning("orphan left", extra={"pid": survivor.pid, "command": survivor.command, "why": survivor.why})
        return False

    def _forget_ended(self, table: Table) -> None:
        living = _identities(process for process in table.values() if not process.is_zombie)
        self._killed = {identity: until for identity, until in self._killed.items() if identity in living}
        self._survivors = {identity: survivor for identity, survivor in self._survivors.items() if identity in living}


def _identities(processes: Iterable[Process]) -> set[tuple[int, str]]:
    return {(process.pid, process.start) for process in processes}
