"""What a runner and its supervisor that were killed together leave to the keeper: ended, if it is surely theirs."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from delegate.runner import supervisor
from delegate.runner.supervisor import Process, Table

log = logging.getLogger(__name__)

MARKER = b"DELEGATE_ATTEMPT_ID="
SUPERVISOR_TIME = 5.0  # seconds for a supervisor without a runner to end its agent, which takes it milliseconds
INIT = 1  # its children may come from anywhere in the container


class Orphans:
    """Orphans of the keeper's descendants become its children (Linux). Only where nobody else can have left them is
    every one known to be ours; next to strangers it must carry our mark, or have been seen under one of our children.

    Strangers are children that were there before the keeper (`sleep 300 & exec delegate up --foreground`), and
    whatever those leave behind; they are collected when they end, and otherwise left alone.
    """

    def __init__(self) -> None:
        supervisor.become_subreaper()
        self._pid = os.getpid()
        table = supervisor.read_table() if supervisor.IS_LINUX else {}
        self._strangers = _marks(supervisor.descendants(table, self._pid).values())
        self._may_be_strange = self._pid == INIT or bool(self._strangers)
        self._ours: set[tuple[int, str]] = set()
        self._supervisors: dict[tuple[int, str], float] = {}  # until when they may work

    def end(self, own: set[int]) -> bool:
        """Kill what is ours and not in `own`, the children that the keeper has started; True while there is any."""
        if not supervisor.IS_LINUX:
            return False
        table = supervisor.read_table()
        roots = [process for process in table.values() if process.parent == self._pid and process.pid not in own]
        ours = [process for process in roots if self._is_ours(process)]
        self._note(table, own, roots, ours)
        living = False
        for root in ours:
            living |= self._end_tree(table, root)
        for process in roots:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        return living

    def _is_ours(self, process: Process) -> bool:
        mark = (process.pid, process.start)
        if mark in self._strangers:
            return False
        if not self._may_be_strange or mark in self._ours:
            return True
        return is_supervisor(process.pid) or _is_marked(process.pid)

    def _note(self, table: Table, own: set[int], roots: Iterable[Process], ours: Iterable[Process]) -> None:
        """Remember by kin who is whose: after the next death its processes have lost their parents."""
        known = {process.pid for process in ours}
        strangers = [process for process in roots if process.pid not in known]
        self._ours = {mark for pid in own | known for mark in _marks(supervisor.descendants(table, pid).values())}
        self._strangers = _marks(strangers) | {
            mark for process in strangers for mark in _marks(supervisor.descendants(table, process.pid).values())
        }
        # What no stranger lives beside cannot be a stranger's: the next orphan must come from one of our children.
        self._may_be_strange = self._pid == INIT or bool(strangers)

    def _end_tree(self, table: Table, root: Process) -> bool:
        if root.is_zombie:
            return False
        if is_supervisor(root.pid):
            until = self._supervisors.setdefault((root.pid, root.start), time.monotonic() + SUPERVISOR_TIME)
            if time.monotonic() < until:
                return True
        for process in (root, *supervisor.descendants(table, root.pid).values()):
            log.warning("orphan ended", extra={"pid": process.pid})
            supervisor.send_signal(process, signal.SIGKILL)
        return True


def _marks(processes: Iterable[Process]) -> set[tuple[int, str]]:
    return {(process.pid, process.start) for process in processes}


def is_supervisor(pid: int) -> bool:
    return _words(pid, "cmdline")[1:4] == [b"-I", b"-S", os.fsencode(supervisor.__file__)]


def _is_marked(pid: int) -> bool:
    """Whether it belongs to an attempt; a keeper that was started in one shares that mark with strangers."""
    outer = MARKER + os.environb.get(MARKER[:-1], b"")
    return any(word.startswith(MARKER) and word != outer for word in _words(pid, "environ"))


def _words(pid: int, name: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:  # it ended, or is not ours to read
        return []
