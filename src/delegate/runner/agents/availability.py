"""Tries out agents' programs: a runner offers only agents whose program has run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio

from delegate.config.home_files import acquire_lock, write_private
from delegate.errors import DelegateError
from delegate.runner.agents.base import Agent
from delegate.runner.agents.lines import as_object, as_text
from delegate.runner.agents.probes import can_start

log = logging.getLogger(__name__)

# Seconds; what a program needs (its interpreter, a shared disk) may appear later.
RETRY_INTERVAL = timedelta(minutes=1).total_seconds()
# Seconds between two checks while another runner tries programs; most take less to print their version.
POLL_INTERVAL = 0.25


class Trials:
    """A program that ran once is good until its file changes. The runners of a home share the results, and try one
    program at a time. A program that did not run is tried again later."""

    def __init__(self, state_file: Path) -> None:
        self._state_file = state_file
        self._passed = _read(state_file)  # fingerprint of the program's file when it ran, by agent name
        self._failed: dict[str, tuple[str, float]] = {}  # fingerprint when it did not run, and the time

    def has_passed(self, agent: Agent, environ: Mapping[str, str]) -> bool:
        """Cheap enough for every claim."""
        file = _file_fingerprint(agent, environ)
        return self._passed.get(agent.name) == file if file else agent.is_available(environ)

    def next_due(self, agents: Iterable[Agent], environ: Mapping[str, str]) -> Agent | None:
        """The next agent whose program should be tried, if there is one."""
        return next((agent for agent in agents if self._is_due(agent, environ)), None)

    async def try_out(self, agent: Agent, environ: Mapping[str, str]) -> None:
        with _try_lock(self._state_file.with_suffix(".lock")) as is_locked:
            if not is_locked:
                await anyio.sleep(POLL_INTERVAL)
                self._passed |= _read(self._state_file)
                return
            self._passed |= _read(self._state_file)
            if self._is_due(agent, environ):
                await self._try(agent, environ)

    def mark_failed(self, agent_name: str) -> None:
        """The program could not be started after all: this runner does not offer it for a while."""
        file = self._passed.pop(agent_name, None)
        if file is not None:
            self._failed[agent_name] = (file, anyio.current_time())
            self._store({name: kept for name, kept in _read(self._state_file).items() if name != agent_name})

    def _is_due(self, agent: Agent, environ: Mapping[str, str]) -> bool:
        file = _file_fingerprint(agent, environ)
        if not file or self._passed.get(agent.name) == file:
            return False
        failed, at = self._failed.get(agent.name, ("", 0.0))
        return failed != file or anyio.current_time() >= at + RETRY_INTERVAL

    async def _try(self, agent: Agent, environ: Mapping[str, str]) -> None:
        file = _file_fingerprint(agent, environ)
        if await can_start(agent, environ):
            self._failed.pop(agent.name, None)
            self._passed[agent.name] = file
            self._store(self._passed)
            return
        if self._failed.get(agent.name, ("", 0.0))[0] != file:
            log.warning("agent does not run", extra={"agent": agent.name, "program": agent.program(environ)})
        self._failed[agent.name] = (file, anyio.current_time())

    def _store(self, passed: Mapping[str, str]) -> None:
        try:
            write_private(self._state_file, json.dumps(passed))
        except DelegateError as problem:  # the next runner tries it again
            log.warning("trial results not saved", extra={"why": problem.message})


def _file_fingerprint(agent: Agent, environ: Mapping[str, str]) -> str:
    """Identifies the current version of the program's file; empty when there is none."""
    program = agent.program(environ)
    if program is None:
        return ""
    try:
        found = Path(program).stat()
    except OSError:
        return ""
    return f"{program} {found.st_ino} {found.st_mtime_ns} {found.st_size}"


def _read(state_file: Path) -> dict[str, str]:
    try:
        kept = as_object(json.loads(state_file.read_bytes()))
    except (OSError, ValueError):
        return {}
    return {name: as_text(file) for name, file in kept.items()}


@contextmanager
def _try_lock(lock: Path) -> Iterator[bool]:
    descriptor = acquire_lock(lock, 0.0)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)
