"""Performs an attempt's external effects (push, pull request): announced to the relay, journaled, then done.

The relay's fence keeps a stale runner from announcing; compare-and-swap keeps it from overwriting. Neither
covers a machine that is suspended between its last check and the effect. The journal does: it is settled when the
runner resumes, loses an attempt or restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from delegate.config.home_files import make_directory, write_private
from delegate.errors import NotFound, Refused
from delegate.failpoints import failpoint
from delegate.model import EffectKind, EffectState
from delegate.runner.assignment import Assignment
from delegate.runner.lease import Lease
from delegate.runner.upload.relay import RelayLink
from delegate.runner.workspaces.repositories import Repository
from delegate.wire.basics import BranchName, CommitId
from delegate.wire.runners import EffectRequest, EffectsResponse

log = logging.getLogger(__name__)

UNDO_PAUSE, UNDO_PAUSE_MAX = timedelta(minutes=5), timedelta(hours=6)  # doubles; a hanging try takes three minutes
UNDO_TIME, UNDO_TRIES = timedelta(days=7), 10  # both must be exceeded: a machine that was off has not tried
ENDED_STATUSES = frozenset({"completed", "failed", "cancelled"})
ActionResult = TypeVar("ActionResult")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectEntry:
    """An effect that this runner has started and not settled."""

    task_id: str
    attempt_id: str
    kind: EffectKind
    target: BranchName
    commit: CommitId
    url: str  # the remote
    fork: str | None = None  # the remote that is pushed to, if it is another one
    pull_request: str | None = None
    failures: int = 0  # failed tries to undo it
    failing_since: datetime | None = None
    not_before: datetime | None = None  # the next try to undo it


STORED_ENTRY = TypeAdapter(EffectEntry)


class EffectJournal:
    """One small file per effect in the runner's own directory, written before the effect."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, entry: EffectEntry) -> None:
        make_directory(self._directory)
        write_private(self._path(entry), STORED_ENTRY.dump_json(entry).decode())

    def forget(self, entry: EffectEntry) -> None:
        self._path(entry).unlink(missing_ok=True)

    def entries(self) -> list[EffectEntry]:
        found = sorted(self._directory.glob("*.json")) if self._directory.is_dir() else []
        return [entry for entry in map(_read, found) if entry is not None]

    def _path(self, entry: EffectEntry) -> Path:
        return self._directory / f"{entry.attempt_id}-{entry.kind.value}.json"


def _read(path: Path) -> EffectEntry | None:
    try:
        return STORED_ENTRY.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        log.warning("journal entry cannot be read", extra={"path": path})
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectAction(Generic[ActionResult]):
    """An external effect, and how to name its result."""

    kind: EffectKind
    branch: str
    commit: str
    act: Callable[[], Awaitable[ActionResult]]
    name: Callable[[ActionResult], str]  # what the relay stores: the commit, or the pull request's URL
    may_be_done: Callable[[Exception], bool] = lambda _: False  # after a failure with an unknown outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    link: RelayLink
    lease: Lease
    assignment: Assignment
    journal: EffectJournal
    repository: Repository

    async def perform(self, action: EffectAction[ActionResult]) -> ActionResult:
        """Announces the action, performs it and reports the result."""
        entry = EffectEntry(
            task_id=self.assignment.task_id,
            attempt_id=self.assignment.attempt_id,
            kind=action.kind,
            target=action.branch,
            commit=action.commit,
            url=self.repository.url,
            fork=self.repository.fork,
        )
        await self._report(entry, EffectState.INTENT)
        self.journal.note(entry)
        failpoint(f"runner.{action.kind.value}.before")
        try:
            done = await action.act()
        except Exception as problem:
            if not action.may_be_done(problem):
                await self._report(entry, EffectState.ABANDONED)
            self.journal.forget(entry)  # this runner holds the task; its next holder checks the remote
            raise
        failpoint(f"runner.{action.kind.value}.after")
        name = action.name(done)
        if action.kind is EffectKind.PULL_REQUEST:
            self.journal.note(replace(entry, pull_request=name))
        await self._report(entry, EffectState.DONE, name)
        self.journal.forget(entry)
        return done

    async def _report(self, entry: EffectEntry, state: EffectState, external_id: str | None = None) -> None:
        control = await self.link.effect(
            self.assignment,
            EffectRequest(
                fence=self.assignment.fence,
                kind=entry.kind,
                state=state,
                target=entry.target,
                expected=entry.commit,
                external_id=external_id,
            ),
        )
        self.lease.apply_control(control)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """An effect to undo because the task ended without it."""

    entry: EffectEntry
    recorded: str | None  # the pull request in the task's result


async def find_unsettled(link: RelayLink, journal: EffectJournal) -> list[Undo]:
    """Finds effects to undo: those of ended tasks. A continuing task leaves its effects to its next holder."""
    found: list[Undo] = []
    for entry in journal.entries():
        try:
            response = await link.effects(entry.task_id)
        except (Refused, NotFound) as gone:
            log.warning("journal entry of an unknown task", extra={"task_id": entry.task_id, "why": gone.message})
            journal.forget(entry)
            continue
        if response.status not in ENDED_STATUSES:
            continue
        if is_settled(entry, response):
            journal.forget(entry)
        else:
            found.append(Undo(entry=entry, recorded=recorded_of(response, EffectKind.PULL_REQUEST)))
    return found


def postpone(entry: EffectEntry, now: datetime) -> EffectEntry | None:
    """The entry with the time of its next try; None after the last try. Pure."""
    failures, since = entry.failures + 1, entry.failing_since or now
    if failures >= UNDO_TRIES and now - since >= UNDO_TIME:
        return None
    pause = min(UNDO_PAUSE * 2 ** min(entry.failures, UNDO_TRIES), UNDO_PAUSE_MAX)
    return replace(entry, failures=failures, failing_since=since, not_before=now + pause)


def recorded_of(response: EffectsResponse, kind: EffectKind) -> str | None:
    done = [effect for effect in response.effects if effect.kind is kind and effect.state is EffectState.DONE]
    return done[-1].external_id if done else None


def is_settled(entry: EffectEntry, response: EffectsResponse) -> bool:
    """Whether the effect is part of the task's result. Pure."""
    recorded = recorded_of(response, entry.kind)
    mine = entry.commit if entry.kind is EffectKind.PUSH else entry.pull_request
    return recorded is not None and recorded == mine
