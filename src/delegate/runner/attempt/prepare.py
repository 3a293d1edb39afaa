"""Prepares an attempt in a workspace: finds repository and base, applies .delegate.toml, creates the worktree."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

from delegate.config.paths import Home
from delegate.errors import PreferenceConflict
from delegate.model import EventKind
from delegate.preferences.repofile import FILE_NAME, RepoFile
from delegate.preferences.resolve import apply_repository_file
from delegate.runner.assignment import Assignment, PrecedingTask
from delegate.runner.context import RunnerContext
from delegate.runner.git.program import Git
from delegate.runner.upload.record import Record
from delegate.runner.workspaces.mirrors import Mirror, base_of, fetch_mirror
from delegate.runner.workspaces.prepare import prepare
from delegate.runner.workspaces.remote_changes import refuse_changed_remote
from delegate.runner.workspaces.repositories import Base, Repository, SetupProblem, has_repository, locate
from delegate.runner.workspaces.worktrees import PreparedWorkspace


class AgentMissing(Exception):
    """The task needs an agent that is not available on this runner."""

    def __init__(self, agent: str, *, is_task_choice: bool) -> None:
        self.agent = agent
        source = "the task" if is_task_choice else f"the repository's {FILE_NAME}"
        super().__init__(f"{source} needs the agent {agent}, which is not available on this runner")


async def prepare_workspace(
    runner_context: RunnerContext, git: Git, assignment: Assignment, record: Record
) -> PreparedWorkspace:
    """Raises SetupProblem with a message for the user, or AgentMissing."""
    home = Home(runner_context.settings.home)
    repository = await locate(git, assignment.repository, assignment.working_directory)
    if assignment.repository is None and repository.source is not None:
        refuse_changed_remote(home, repository.source)
    repository = _add_checkout(runner_context, repository, record)
    mirror = await fetch_mirror(git, home, repository)
    base, repofile = await _resolve_base(runner_context, git, mirror, assignment.base)
    base = await _base_of_continued_task(git, assignment, mirror, base, record)
    decided = _apply_repofile(assignment, repofile, record)
    agent = runner_context.agents.get(decided.agent)
    if agent is None or not agent.is_available(runner_context.environ):
        raise AgentMissing(decided.agent, is_task_choice=decided.agent == assignment.agent)
    workspace = await prepare(git, home, decided, mirror, base, branch_name(decided))
    record.fact(
        EventKind.WORKSPACE,
        {
            "repository": repository.name,
            "base": workspace.base.branch,
            "baseCommit": workspace.base.commit,
            "branch": workspace.branch,
            "path": str(workspace.tree),
        },
    )
    return PreparedWorkspace(assignment=decided, repofile=repofile, agent=agent, workspace=workspace)


def _add_checkout(runner_context: RunnerContext, repository: Repository, record: Record) -> Repository:
    """Add where the policy of this machine says that a repository named by its URL is: files to carry are there."""
    policy = runner_context.policy
    place = None if policy is None or repository.source is not None else policy.checkout_of(repository.url)
    if place is None:
        return repository
    if not has_repository(place):
        text = (
            f"policy.toml names {place} for {repository.name}, which is not a checkout: no files are copied from there"
        )
        record.fact(EventKind.WARNING, {"text": text})
        return repository
    return replace(repository, source=Path(os.path.realpath(place)))


async def _resolve_base(
    runner_context: RunnerContext, git: Git, mirror: Mirror, wanted: str | None
) -> tuple[Base, RepoFile]:
    """Read the repository's file from the base commit; without a requested base, that file may name another one."""
    base = await base_of(git, mirror, wanted)
    repofile = await runner_context.repository_files.get(git, mirror, base)
    if wanted is None and repofile.base is not None and repofile.base != base.branch:
        base = await base_of(git, mirror, repofile.base)
        repofile = await runner_context.repository_files.get(git, mirror, base)
    return base, repofile


async def _base_of_continued_task(git: Git, assignment: Assignment, mirror: Mirror, base: Base, record: Record) -> Base:
    """The branch of the task that this one continues, unless a base was requested. The repository's file still
    comes from the usual base: an agent's changes must not decide what the next agent may do."""
    continued_task = assignment.continued_task
    if continued_task is None or continued_task.branch is None or assignment.base is not None:
        return base
    if not await _is_same_repository(git, mirror.repository, assignment, continued_task):
        return base
    if continued_task.branch in mirror.heads:
        return await base_of(git, mirror, continued_task.branch)
    if continued_task.branch in mirror.pushed_heads:  # a pull request from a fork needs a base on upstream
        return replace(base, commit=mirror.pushed_heads[continued_task.branch])
    text = (
        f"the branch {continued_task.branch} of {continued_task.task_id} no longer exists, perhaps because it "
        f"was merged; the work starts from {base.branch}"
    )
    record.fact(EventKind.WARNING, {"text": text})
    return base


async def _is_same_repository(
    git: Git, repository: Repository, assignment: Assignment, continued_task: PrecedingTask
) -> bool:
    location = (continued_task.repository, continued_task.working_directory)
    if location == (assignment.repository, assignment.working_directory):
        return True
    try:
        other = await locate(git, *location)
    except SetupProblem:
        return False
    return other.key == repository.key


def _apply_repofile(assignment: Assignment, repofile: RepoFile, record: Record) -> Assignment:
    try:
        wanted = apply_repository_file(assignment.choices, repofile)
    except PreferenceConflict as conflict:
        raise SetupProblem(conflict.message) from conflict
    reported = [{"field": one.field, "value": one.value, "source": one.source} for one in wanted.choices]
    record.fact(EventKind.PREFERENCES, {"choices": reported})
    for note in wanted.notes:
        record.fact(EventKind.WARNING, {"text": note})
    return replace(
        assignment,
        agent=wanted.agent,
        model=wanted.model,
        effort=wanted.effort,
        choices=tuple(wanted.choices),
        budget_usd=_smaller_budget(assignment.budget_usd, repofile.budget_usd),
    )


def _smaller_budget(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)


SLUG_MAX = 40  # characters of the title; with key and id the name fits a narrow column
SHORT_ID = 4


def branch_name(assignment: Assignment) -> str:
    """For example `per-44-rate-limit-runner-endpoints-3f2a`."""
    key = assignment.issue.key.lower() if assignment.issue else ""
    words = slug(title_of(assignment))
    return "-".join(part for part in (key, words or "task", assignment.lineage[-SHORT_ID:]) if part)


def title_of(assignment: Assignment) -> str:
    """The issue's title, the user's title, or the first line of the prompt."""
    if assignment.issue is not None:
        return assignment.issue.title
    return assignment.title or first_line(assignment.prompt)


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def slug(text: str) -> str:
    """Lower-case letters, digits and single hyphens, cut between words."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", plain)
    kept = ""
    for word in words:
        longer = f"{kept}-{word}" if kept else word[:SLUG_MAX]
        if len(longer) > SLUG_MAX:
            break
        kept = longer
    return kept
