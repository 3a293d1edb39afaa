"""What a runner puts in order between attempts: effects that nobody settled, and workspaces that nobody uses."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from delegate.config import Home
from delegate.errors import NotFound, Refused
from delegate.model import EffectKind
from delegate.runner.effects import ENDED, Entry, Undo, unsettled
from delegate.runner.equipment import Equipment
from delegate.runner.forges.base import ForgeFailed, PullRequest, PullState
from delegate.runner.forges.body import marker
from delegate.runner.forges.remotes import forge_for
from delegate.runner.git import Git, GitFailed
from delegate.runner.publishing.push import PushRejected, delete_branch_if
from delegate.runner.workspaces.journal import read_journal
from delegate.runner.workspaces.locks import locked
from delegate.runner.workspaces.mirrors import lock_of, mirror_of
from delegate.runner.workspaces.problems import SetupProblem
from delegate.runner.workspaces.repositories import repository
from delegate.runner.workspaces.sweep import Limits, sweep

log = logging.getLogger(__name__)

MIRROR_PATIENCE = 60.0  # seconds; somebody may just fetch
SUPERSEDED = (
    "Closed by Delegate: the machine that opened this was asleep while another one finished the same task ({recorded})."
)
UNWANTED = "Closed by Delegate: the task that this was opened for ended without it."


async def tidy_up(equipment: Equipment) -> bool:
    """Quick when there is nothing to do. False: something is not settled yet, and must be looked at again."""
    try:
        git = await equipment.git.get()
    except GitFailed as problem:
        log.warning("no git on this machine", extra={"why": problem.why})
        return True
    for undo in await unsettled(equipment.link, equipment.journal):
        await _undo(equipment, git, undo)
    home = Home(equipment.settings.home)
    settings = equipment.settings
    limits = Limits(age=timedelta(days=settings.salvage_days), size=settings.salvage_bytes)
    live = await _live(equipment, home)
    await sweep(git, home, lambda lineage: lineage in live, limits=limits, now=datetime.now(UTC))
    return not equipment.journal.entries()


async def _undo(equipment: Equipment, git: Git, undo: Undo) -> None:
    """The task ended without what this runner did for it: a pull request nobody asked for, a branch nobody needs."""
    entry = undo.entry
    try:
        if entry.kind is EffectKind.PULL_REQUEST:
            await _close_pull_requests(equipment, git, undo)
        else:
            await _delete_branch(git, Home(equipment.settings.home), entry)
    except (ForgeFailed, GitFailed, PushRejected, SetupProblem) as problem:
        log.warning("effect not undone", extra={"task_id": entry.task_id, "kind": entry.kind, "why": str(problem)})
        return
    log.info("effect undone", extra={"task_id": entry.task_id, "kind": entry.kind, "branch": entry.target})
    equipment.journal.forget(entry)


async def _close_pull_requests(equipment: Equipment, git: Git, undo: Undo) -> None:
    forge = await forge_for(git, undo.entry.url, equipment.environ, equipment.settings.gh_command)
    comment = SUPERSEDED.format(recorded=undo.recorded) if undo.recorded else UNWANTED
    for pull in await forge.find(undo.entry.target):
        if must_close(pull, undo):
            await forge.close(pull, comment)


def must_close(pull: PullRequest, undo: Undo) -> bool:
    """Pure: open, not what the task ended with, and opened for it: what a person opened has their own words first."""
    is_made_for_it = pull.body.lstrip().startswith(marker(undo.entry.task_id))
    return is_made_for_it and pull.state is PullState.OPEN and pull.url != undo.recorded


async def _delete_branch(git: Git, home: Home, entry: Entry) -> None:
    """At the remote, if it is still what this runner pushed.

    The mirror must not know it any longer, either: what the remote is believed to have is not saved by a sweep.
    """
    mirror = mirror_of(home, repository(entry.url).key)
    async with locked(lock_of(mirror), MIRROR_PATIENCE, "its mirror is in use"):
        if mirror.is_dir():
            await git.run(f"--git-dir={mirror}", "update-ref", "-d", f"refs/heads/{entry.target}", cwd=mirror)
        await delete_branch_if(git, entry.url, entry.target, entry.commit)


async def _live(equipment: Equipment, home: Home) -> set[str]:
    """Lineages of workspaces that somebody will come back to."""
    live: set[str] = set()
    for root in sorted(home.workspaces.iterdir()) if home.workspaces.is_dir() else []:
        journal = read_journal(root)
        for task_id in journal.tasks if journal else ():
            if not await _has_ended(equipment, task_id):
                live.add(journal.lineage if journal else root.name)
    return live


async def _has_ended(equipment: Equipment, task_id: str) -> bool:
    try:
        answer = await equipment.link.effects(task_id)
    except NotFound:
        return True  # the relay has forgotten it: it ended long ago
    except Refused:
        return False  # another machine's: not ours to judge
    return answer.status in ENDED
