"""Publishes the work in a workspace: one checked commit, one branch, one pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import anyio

from delegate.model import Change, EffectKind, EventKind, Usage
from delegate.runner.assignment import Assignment
from delegate.runner.checks import Checks
from delegate.runner.forges.base import EnsuredPullRequest, Forge, PrRejected, WantedPullRequest, ensure
from delegate.runner.forges.body import (
    SHORT_COMMIT,
    BodyFacts,
    closed_issues,
    first_title,
    own_references,
    pull_request_body,
    pull_request_title,
)
from delegate.runner.git.program import Git
from delegate.runner.publishing.change import Stats, change_of
from delegate.runner.publishing.commits import commit_to_push, find_signing_problem, squash
from delegate.runner.publishing.effects import EffectAction, Effects
from delegate.runner.publishing.finished_work import FinishedWork
from delegate.runner.publishing.history_policy import HistoryRules, carried_names, find_history_problem
from delegate.runner.publishing.lfs import find_lfs_problems, may_have_pointers, upload_lfs_objects
from delegate.runner.publishing.messages import Writer
from delegate.runner.publishing.newer_base import compare_with_newest_base
from delegate.runner.publishing.policy import PolicyVerdict, PublishRules, judge
from delegate.runner.publishing.push import PushRejected, PushResult, push
from delegate.runner.upload.record import Record
from delegate.runner.workspaces.classify import SkippedPath, SkipReason
from delegate.runner.workspaces.history import read_made_commits
from delegate.runner.workspaces.scratch import scratch_repository
from delegate.runner.workspaces.snapshot import Snapshot, take_snapshot
from delegate.runner.workspaces.worktrees import PreparedWorkspace, Workspace

SUBJECT_MAX = 72
REPORTED_SKIPPED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationDraft:
    """Work that could be published."""

    commit: str
    snapshot: Snapshot
    change: Change
    stats: Stats
    verdict: PolicyVerdict
    warnings: tuple[str, ...] = ()  # Delegate's own sentences, for the reviewer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFacts:
    """What a reviewer should know about the run."""

    summary: str
    checks: Checks
    model: str | None
    usage: Usage
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    git: Git
    prepared: PreparedWorkspace
    record: Record
    effects: Effects
    at: datetime  # of the commit made for this attempt

    async def draft(self, *, can_fetch: bool = True) -> PublicationDraft | None:
        """The commit that would be pushed now; None when nothing has changed."""
        snapshot = await self._snapshot(can_fetch=can_fetch)
        commit = await self._commit(snapshot, self.at)
        return None if commit is None else await self._build_draft(commit, snapshot, self.at)

    async def find_work_on_base(self) -> tuple[str, ...]:
        """Commits of the agent that the base branch has at the remote, newest first."""
        if not await anyio.to_thread.run_sync(read_made_commits, self.prepared.workspace):
            return ()
        return (await self._snapshot()).on_base

    async def draft_finished_work(
        self, candidates: Sequence[FinishedWork]
    ) -> tuple[FinishedWork, PublicationDraft] | None:
        """Finished work of an earlier attempt that this tree still contains."""
        if not candidates:
            return None
        snapshot = await self._snapshot()
        for one in candidates:
            if await self._is_still_present(one, snapshot):
                return one, await self._build_draft(one.commit, snapshot, one.at)
        return None

    async def _is_still_present(self, finished_work: FinishedWork, snapshot: Snapshot) -> bool:
        commit = await self._commit(snapshot, finished_work.at)
        if commit == finished_work.commit:
            return True
        if finished_work.head is None or finished_work.head != snapshot.head:
            if commit is None or not self._has_commits(snapshot):
                return False
            return await self._squash(commit, snapshot, finished_work.at) == finished_work.commit
        # The agent has not continued, but checks may have left files: its commit is still in the kept repository.
        async with scratch_repository(self.git, self.prepared.workspace) as clean:
            return await clean.is_ancestor(snapshot.base, finished_work.commit) is True

    async def _snapshot(self, *, can_fetch: bool = True) -> Snapshot:
        workspace = self.prepared.workspace
        snapshot = await take_snapshot(self.git, workspace)
        return await compare_with_newest_base(self.git, workspace, snapshot) if can_fetch else snapshot

    def _workspace_on(self, base: str) -> Workspace:
        """The workspace with the base that the work is compared with."""
        workspace = self.prepared.workspace
        return replace(workspace, base=replace(workspace.base, commit=base))

    async def _commit(self, snapshot: Snapshot, at: datetime) -> str | None:
        return await commit_to_push(self.git, self._workspace_on(snapshot.base), snapshot, self._message, at)

    async def _squash(self, commit: str, snapshot: Snapshot, at: datetime) -> str:
        return await squash(self.git, self._workspace_on(snapshot.base), commit, self._message, at)

    @property
    def _message(self) -> str:
        return self.record.without_secrets(commit_message(self.prepared.assignment))

    async def _build_draft(self, commit: str, snapshot: Snapshot, at: datetime) -> PublicationDraft:
        change, stats = await change_of(self.git, self._workspace_on(snapshot.base), commit)
        rules = PublishRules(
            protected=self.prepared.repofile.protected,
            skipped=snapshot.skipped,
            carried=carried_names(self.prepared.workspace),
            known_secrets=self.record.secrets_in,
        )
        verdict = await anyio.to_thread.run_sync(judge, stats, rules)
        lfs_problems = await find_lfs_problems(self.git, self.prepared.workspace, commit, stats, rules)
        verdict = replace(verdict, denied=(*verdict.denied, *lfs_problems))
        signing_problem = await find_signing_problem(self.git, self.prepared.workspace, commit)
        draft = PublicationDraft(
            commit=commit,
            snapshot=snapshot,
            change=change,
            stats=stats,
            verdict=verdict,
            warnings=(
                *warnings_of(snapshot, self.prepared.workspace.base.branch),
                *([signing_problem] if signing_problem else []),
            ),
        )
        return draft if verdict.denied or not self._has_commits(snapshot) else await self._with_clean_history(draft, at)

    def _has_commits(self, snapshot: Snapshot) -> bool:
        """Whether commits of the agent would be published."""
        return snapshot.descends and snapshot.head != snapshot.base

    async def _with_clean_history(self, draft: PublicationDraft, at: datetime) -> PublicationDraft:
        """Squashes the agent's commits into one of ours if they may not be published as they are."""
        task = self.prepared.assignment
        look = HistoryRules(
            known_secrets=self.record.secrets_in,
            carried=carried_names(self.prepared.workspace),
            writer=Writer(
                issue=task.issue.key if task.issue else None,
                email=self.git.user_email,
                references=references_of(task),
            ),
        )
        against = await find_history_problem(self.git, self._workspace_on(draft.snapshot.base), draft.commit, look)
        if against is None:
            return draft
        commit = await self._squash(draft.commit, draft.snapshot, at)
        warning = f"the agent's commits were squashed into one: {against}"
        change = replace(draft.change, commit=commit)
        return replace(draft, commit=commit, change=change, warnings=(*draft.warnings, warning))

    def record_draft(self, draft: PublicationDraft) -> None:
        """Records the commit to be checked in the timeline."""
        self.record.fact(EventKind.COMMIT, {"commit": draft.commit, **_size_of(draft)})
        for warning in draft.warnings:
            self.record.fact(EventKind.WARNING, {"text": warning})

    async def push(self, draft: PublicationDraft) -> PushResult:
        workspace = self.prepared.workspace
        known = earlier_commits(self.prepared.assignment)
        guard = self.effects.lease.ensure_fresh_for_effect

        async def push_with_objects() -> PushResult:
            if may_have_pointers(workspace, draft.stats):
                await upload_lfs_objects(self.git, workspace, draft.commit)
            return await push(self.git, workspace, draft.commit, known=known, guard=guard)

        pushed = await self.effects.perform(
            EffectAction(
                kind=EffectKind.PUSH,
                branch=workspace.branch,
                commit=draft.commit,
                act=push_with_objects,
                name=lambda pushed: pushed.commit,
                may_be_done=lambda problem: isinstance(problem, PushRejected) and problem.may_exist,
            )
        )
        # The subject of an agent's own commit is not known here.
        own = {} if draft.commit == draft.snapshot.head else {"subject": self._message.partition("\n")[0]}
        named = {"branch": workspace.branch, "commit": pushed.commit}
        self.record.fact(EventKind.PUSH, {**named, **own, **_size_of(draft)})
        if pushed.replaced:
            text = f"commit {pushed.replaced[:SHORT_COMMIT]}, which the agent had pushed itself, was replaced"
            self.record.fact(EventKind.WARNING, {"text": text})
        return pushed

    async def open_pull_request(
        self, forge: Forge, draft: PublicationDraft, review_facts: ReviewFacts
    ) -> EnsuredPullRequest:
        assignment, workspace = self.prepared.assignment, self.prepared.workspace
        wanted = WantedPullRequest(
            task_id=assignment.task_id,
            title=self.record.without_secrets(title_of(assignment)),
            body=self.record.without_secrets(pull_request_body(body_facts(assignment, draft, review_facts))),
            branch=workspace.branch,
            base=workspace.base.branch,
            commit=draft.commit,
            is_draft=self.prepared.repofile.draft or bool(draft.verdict.protected),
        )
        ensured = await self.effects.perform(
            EffectAction(
                kind=EffectKind.PULL_REQUEST,
                branch=workspace.branch,
                commit=draft.commit,
                act=lambda: ensure(forge, wanted, self.effects.lease.ensure_fresh_for_effect),
                name=lambda ensured: ensured.pull_request.url,
                may_be_done=lambda problem: isinstance(problem, PrRejected) and problem.may_exist,
            )
        )
        pull = ensured.pull_request
        reported = {"url": pull.url, "number": pull.number, "draft": pull.is_draft, "adopted": ensured.adopted}
        self.record.fact(EventKind.PULL_REQUEST, {**reported, "title": wanted.title})
        if ensured.warning:
            self.record.fact(EventKind.WARNING, {"text": ensured.warning})
        return ensured


def _size_of(draft: PublicationDraft) -> dict[str, int]:
    return {"files": draft.stats.files, "additions": draft.stats.additions, "deletions": draft.stats.deletions}


def earlier_commits(assignment: Assignment) -> frozenset[str]:
    """Commits that earlier attempts of the lineage pushed, or were about to push."""
    pushes = [effect for effect in assignment.effects if effect.kind is EffectKind.PUSH]
    named = (commit for effect in pushes for commit in (effect.expected, effect.external_id))
    return frozenset(commit for commit in named if commit is not None)


def body_facts(assignment: Assignment, draft: PublicationDraft, review_facts: ReviewFacts) -> BodyFacts:
    return BodyFacts(
        task_id=assignment.task_id,
        summary=review_facts.summary,
        agent=assignment.agent,
        model=review_facts.model,
        duration=review_facts.duration,
        commit=draft.commit,
        files=draft.stats.files,
        additions=draft.stats.additions,
        deletions=draft.stats.deletions,
        issue=assignment.issue,
        checks=review_facts.checks.results,
        usage=review_facts.usage,
        protected=draft.verdict.protected,
        warnings=draft.warnings,
        closes=() if assignment.submitted_by else closed_issues(assignment.issue, assignment.title, assignment.prompt),
    )


def find_unpublished(snapshot: Snapshot) -> list[SkippedPath]:
    """Paths in the tree that are not in our commit."""
    return [odd for odd in snapshot.skipped if odd.kind is not SkipReason.SHARED and not odd.is_submodule]


def describe_work_on_base(commits: Sequence[str], base: str) -> str:
    names = ", ".join(commit[:SHORT_COMMIT] for commit in commits[:REPORTED_SKIPPED_MAX])
    return f"{base} at the remote has commits of the agent that were neither checked nor reviewed: {names}"


def warnings_of(snapshot: Snapshot, base: str) -> Iterator[str]:
    if snapshot.problem:
        yield snapshot.problem
    if snapshot.on_base:
        yield describe_work_on_base(snapshot.on_base, base)
    left = find_unpublished(snapshot)
    if left:
        yield f"not published: {', '.join(f'{odd.path} {odd.kind}' for odd in left[:REPORTED_SKIPPED_MAX])}"
    if snapshot.unfiltered:
        names = ", ".join(snapshot.unfiltered[:REPORTED_SKIPPED_MAX])
        yield f"published as in the worktree, because git's clean filters are not run: {names}"


def references_of(assignment: Assignment) -> frozenset[str]:
    """What the task may close: nothing if an agent submitted it."""
    if assignment.submitted_by:
        return frozenset()
    return own_references(assignment.issue, assignment.title, assignment.prompt, assignment.context)


def title_of(assignment: Assignment) -> str:
    issue, title, prompt = assignment.issue, assignment.title, assignment.prompt
    return pull_request_title(issue, title, prompt, is_agents=assignment.submitted_by is not None)


def commit_message(assignment: Assignment) -> str:
    """For uncommitted changes. Sanitized, because a forge acts on commit messages too."""
    issue, prompt = assignment.issue, assignment.prompt
    title = issue.title if issue else assignment.title
    # The commit of a resumed task follows that of the first.
    subject = first_title(assignment.context or title, prompt, SUBJECT_MAX, references_of(assignment))
    key = f"\n\nFor {issue.key}." if issue else ""
    return f"{subject}{key}\n\nDelegate-Task: {assignment.task_id}\n"
