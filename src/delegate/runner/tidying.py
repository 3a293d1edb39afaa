"""Cleans up between attempts: undoes unwanted effects and closes unused workspaces."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import anyio

from delegate.config.paths import Home
from delegate.config.values import mask_login
from delegate.errors import NotFound, Refused
from delegate.model import EffectKind
from delegate.runner.context import RunnerContext
from delegate.runner.forges.base import ForgeFailed, PullRequest, PullState
from delegate.runner.forges.body import marker
from delegate.runner.forges.remotes import forge_for
from delegate.runner.git.bare import read_refs, write_refs
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.publishing.effects import (
    ENDED_STATUSES,
    EffectEntry,
    EffectJournal,
    Undo,
    find_unsettled,
    postpone,
)
from delegate.runner.publishing.push import PushRejected, delete_branch_if_unchanged
from delegate.runner.upload.local_record import remove_old_records
from delegate.runner.workspaces.journal import read_journal
from delegate.runner.workspaces.locks import hold_lock
from delegate.runner.workspaces.mirrors import lock_of, mirror_of, pushed_ref
from delegate.runner.workspaces.repositories import Repository, SetupProblem, repository
from delegate.runner.workspaces.sweep import SalvageLimits, sweep

log = logging.getLogger(__name__)

MIRROR_LOCK_TIMEOUT = 60.0  # seconds; another runner may be fetching
SUPERSEDED = (
    "Closed by Delegate: another machine finished the same task while the one that opened this was asleep ({recorded})."
)
UNWANTED = "Closed by Delegate: the task that opened this ended without needing it."


async def tidy_up(runner_context: RunnerContext, now: datetime) -> datetime | None:
    """Returns when to check unsettled effects again; None when there are none."""
    try:
        git = await runner_context.git.get()
    except GitFailed as problem:
        log.warning("git is not available", extra={"why": problem.why})
        return None
    await _undo_due(runner_context, git, now)
    home = Home(runner_context.settings.home)
    settings = runner_context.settings
    limits = SalvageLimits(age=timedelta(days=settings.salvage_days), size=settings.salvage_bytes)
    live = await _live_lineages(runner_context, home)
    confirmed = await anyio.to_thread.run_sync(runner_context.clock.confirm, now)
    await sweep(git, home, lambda lineage: lineage in live, limits=limits, now=confirmed)
    await anyio.to_thread.run_sync(remove_old_records, home.records, confirmed)
    return min((entry.not_before or now for entry in runner_context.journal.entries()), default=None)


async def _undo_due(runner_context: RunnerContext, git: Git, now: datetime) -> None:
    """Stops at the first failure: a hanging remote takes minutes, and the next claim must not wait for several."""
    undos = await find_unsettled(runner_context.link, runner_context.journal)
    may_try = True
    for undo in sorted(undos, key=lambda undo: undo.entry.not_before or now):
        if may_try and (undo.entry.not_before or now) <= now:
            may_try = await _undo(runner_context, git, undo, now)
        elif undo.entry.kind is EffectKind.PUSH:
            await _forget_branch(Home(runner_context.settings.home), undo.entry)


async def _undo(runner_context: RunnerContext, git: Git, undo: Undo, now: datetime) -> bool:
    """Close the pull request or delete the branch that the task no longer needs; False when that failed."""
    entry = undo.entry
    what = {"task_id": entry.task_id, "kind": entry.kind, "branch": entry.target}
    try:
        if entry.kind is EffectKind.PULL_REQUEST:
            await _close_pull_requests(runner_context, git, undo)
        else:
            await _delete_branch(git, Home(runner_context.settings.home), entry)
    except (ForgeFailed, GitFailed, PushRejected, SetupProblem) as problem:
        _postpone_or_drop(runner_context.journal, entry, now, {**what, "why": str(problem)})
        return False
    log.info("effect undone", extra=what)
    runner_context.journal.forget(entry)
    return True


def _postpone_or_drop(journal: EffectJournal, entry: EffectEntry, now: datetime, what: dict[str, str]) -> None:
    later = postpone(entry, now)
    if later is not None:
        journal.note(later)
        log.warning("effect not undone: will retry", extra={**what, "next_try": later.not_before})
        return
    pull_request = {"pull_request": entry.pull_request} if entry.pull_request else {}
    log.warning("effect not undone: giving up", extra={**what, **pull_request, "remote": mask_login(entry.url)})
    journal.forget(entry)


async def _close_pull_requests(runner_context: RunnerContext, git: Git, undo: Undo) -> None:
    forge = await forge_for(git, _repository_of(undo.entry), runner_context.environ, runner_context.settings.gh_command)
    comment = SUPERSEDED.format(recorded=undo.recorded) if undo.recorded else UNWANTED
    for pull in await forge.find(undo.entry.target):
        if must_close(pull, undo):
            await forge.close(pull, comment)


def must_close(pull: PullRequest, undo: Undo) -> bool:
    """Pure: open, not the recorded result, and opened for this task: its body starts with the task's marker."""
    is_made_for_it = pull.body.lstrip().startswith(marker(undo.entry.task_id))
    return is_made_for_it and pull.state is PullState.OPEN and pull.url != undo.recorded


def _repository_of(entry: EffectEntry) -> Repository:
    return repository(entry.url, push_url=entry.fork)


async def _delete_branch(git: Git, home: Home, entry: EffectEntry) -> None:
    """Delete it at the remote if it is unchanged; the lock keeps a fetch from restoring it in the mirror."""
    async with _mirror_without_branch(home, entry):
        await delete_branch_if_unchanged(git, _repository_of(entry).push_url, entry.target, entry.commit)


async def _forget_branch(home: Home, entry: EffectEntry) -> None:
    try:
        async with _mirror_without_branch(home, entry):
            pass
    except (GitFailed, SetupProblem) as problem:
        log.warning("branch not removed from the mirror", extra={"branch": entry.target, "why": str(problem)})


@asynccontextmanager
async def _mirror_without_branch(home: Home, entry: EffectEntry) -> AsyncIterator[None]:
    """Remove the branch from the mirror: a sweep does not save commits that the mirror says the remote has."""
    found = _repository_of(entry)
    mirror, ref = mirror_of(home, found.key), pushed_ref(found, entry.target)
    async with hold_lock(lock_of(mirror), MIRROR_LOCK_TIMEOUT, "the repository's mirror is in use"):
        refs = read_refs(mirror)
        if refs.pop(ref, None):
            write_refs(mirror, refs)
        yield


async def _live_lineages(runner_context: RunnerContext, home: Home) -> set[str]:
    """Lineages of workspaces that an unfinished task still needs. They are in this home, so they are ours, even if the
    machine had another id when they were made."""
    live: set[str] = set()
    for root in sorted(home.workspaces.iterdir()) if home.workspaces.is_dir() else []:
        journal = read_journal(root)
        for task_id in journal.tasks if journal else ():
            if not await _has_ended(runner_context, task_id):
                live.add(journal.lineage if journal else root.name)
    return live


async def _has_ended(runner_context: RunnerContext, task_id: str) -> bool:
    try:
        response = await runner_context.link.effects(task_id)
    except NotFound:
        return True  # the relay has deleted it: it ended long ago
    except Refused:
        return await _has_ended_elsewhere(runner_context, task_id)
    return response.status in ENDED_STATUSES


async def _has_ended_elsewhere(runner_context: RunnerContext, task_id: str) -> bool:
    try:
        return await runner_context.link.task_status(task_id) in ENDED_STATUSES
    except (NotFound, Refused):
        return True  # of another relay, or not of this paired runner: what was not pushed is kept
