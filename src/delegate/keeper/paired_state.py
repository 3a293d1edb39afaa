"""The state file of a paired runner: what `delegate runner status` shows without asking the relay."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from delegate.config.home_files import write_private
from delegate.config.paths import Home
from delegate.errors import DelegateError
from delegate.keeper.runners import RunnerScaler

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerState:
    """As the keeper wrote it last; valid only while that keeper runs, except for the problem that ended it."""

    pid: int = 0
    since: str = ""
    slots: int = 0
    tasks: tuple[Mapping[str, str], ...] = ()  # taskId and agent of each
    problem: str = ""
    hint: str = ""
    code: str = ""  # of the error that ended the runner
    is_draining: bool = False


def read_state(home: Home) -> RunnerState:
    try:
        found = json.loads(home.runner_state.read_text())
        return RunnerState(
            pid=int(found["pid"]),
            since=str(found["since"]),
            slots=int(found["slots"]),
            tasks=tuple({"taskId": str(one["taskId"]), "agent": str(one["agent"])} for one in found["tasks"]),
            problem=str(found["problem"]),
            hint=str(found["hint"]),
            code=str(found["code"]),
            is_draining=bool(found["draining"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return RunnerState()


class PairedState:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._since = datetime.now(UTC).isoformat()
        self._written: dict[str, Any] = {}

    def write(self, scaling: RunnerScaler, *, is_stopping: bool) -> None:
        """Write the file if something has changed. An error that ended the runner stays until the next start."""
        error = {} if scaling.fatal_report is None else scaling.fatal_report["error"]
        away = "" if scaling.relay_problem is None else f"the relay does not answer: {scaling.relay_problem}"
        busy = [child for child in scaling.children if child.attempt is not None]
        state = {
            "pid": os.getpid(),
            "since": self._since,
            "slots": max(scaling.shape.base, len(scaling.children)),
            "tasks": [{"taskId": child.task_id, "agent": child.agent} for child in busy],
            "problem": error.get("message") or away or scaling.shortage or "",
            "hint": error.get("hint") or "",
            "code": error.get("code") or "",
            "draining": is_stopping or scaling.is_draining,
        }
        if state == self._written:
            return
        try:
            write_private(self._home.runner_state, json.dumps(state))
        except DelegateError as problem:  # a full disk; the next change tries again
            log.warning("state not written", extra={"why": problem.message})
        self._written = state
