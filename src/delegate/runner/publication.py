"""How a workspace's work goes out: one commit that is checked, one branch, one pull request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.errors import shown
from delegate.model import Change, EffectKind, EventKind, Issue, Usage
from delegate.runner.checks import Checks
from delegate.runner.effects import Deed, Effects
from delegate.runner.forges.base import Ensured, Forge, PrRejected, Wish, ensure
from delegate.runner.forges.body import BodyFacts, pull_request_body, pull_request_title
from delegate.runner.forges.harmless import one_line
from delegate.runner.git import Git
from delegate.runner.ground import Ground
from delegate.runner.handed_in import HandedIn
from delegate.runner.publishing.change import Stats, change_of
from delegate.runner.publishing.clean import clean_repository
from delegate.runner.publishing.commits import commit_to_push
from delegate.runner.publishing.policy import Verdict, judge
from delegate.runner.publishing.push import Pushed, push
from delegate.runner.publishing.snapshot import Snapshot, take
from delegate.runner.record import Record
from delegate.wire import Assignment

SUBJECT_MAX = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Work that could be published."""

    commit: str
    snapshot: Snapshot
    change: Change
    stats: Stats
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the reviewer should know of how the work came about."""

    summary: str
    checks: Checks
    model: str | None
    usage: Usage
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    git: Git
    ground: Ground
    record: Record
    effects: Effects
    at: datetime  # of the commit that is made for this attempt

    async def draft(self) -> Draft | None:
        """The commit that would be pushed now; None when nothing has changed."""
        snapshot = await take(self.git, self.ground.workspace)
        commit = await self._commit(snapshot, self.at)
        return None if commit is None else await self._drafted(commit, snapshot)

    async def draft_again(self, candidates: Sequence[HandedIn]) -> tuple[HandedIn, Draft] | None:
        """What an earlier attempt was handed in and this tree still holds."""
        if not candidates:
            return None
        snapshot = await take(self.git, self.ground.workspace)
        for one in candidates:
            if await self._is_held(one, snapshot):
                return one, await self._drafted(one.commit, snapshot)
        return None

    async def _is_held(self, handed_in: HandedIn, snapshot: Snapshot) -> bool:
        if await self._commit(snapshot, handed_in.at) == handed_in.commit:
            return True
        if handed_in.head is None or handed_in.head != snapshot.head:
            return False
        # The agent has not worked on, but checks may have left something: its commit is still among what was kept.
        async with clean_repository(self.git, self.ground.workspace) as clean:
            return await clean.is_ancestor(handed_in.head, handed_in.commit) is True

    async def _commit(self, snapshot: Snapshot, at: datetime) -> str | None:
        message = commit_message(self.ground.assignment)
        return await commit_to_push(self.git, self.ground.workspace, snapshot, message, at)

    async def _drafted(self, commit: str, snapshot: Snapshot) -> Draft:
        change, stats = await change_of(self.git, self.ground.workspace, commit)
        verdict = self._without_secrets(stats, judge(stats, protected=self.ground.repofile.protected, odd=snapshot.odd))
        return Draft(commit=commit, snapshot=snapshot, change=change, stats=stats, verdict=verdict)

    def _without_secrets(self, stats: Stats, verdict: Verdict) -> Verdict:
        """Secrets of this machine are known by their value; those the policy finds, by their looks."""
        found = [
            f"{shown(file.path)} has a secret of this machine in it ({name})"
            for file in stats.changed
            for name in self.record.secrets_in(file.added)
        ]
        return replace(verdict, denied=(*verdict.denied, *found))

    def tell(self, draft: Draft) -> None:
        """What is about to be checked, for the timeline."""
        numbers = {"files": draft.stats.files, "additions": draft.stats.additions, "deletions": draft.stats.deletions}
        self.record.fact(EventKind.COMMIT, {"commit": draft.commit, **numbers})
        if draft.snapshot.problem:
            self.record.fact(EventKind.WARNING, {"text": draft.snapshot.problem})
        if draft.snapshot.skipped:
            names = ", ".join(draft.snapshot.skipped[:10])
            self.record.fact(EventKind.WARNING, {"text": f"not published, because git cannot hold it: {names}"})

    async def push(self, draft: Draft) -> Pushed:
        workspace = self.ground.workspace
        known = earlier_commits(self.ground.assignment)
        guard = self.effects.lease.fresh_for_effect
        pushed = await self.effects.once(
            Deed(
                kind=EffectKind.PUSH,
                branch=workspace.branch,
                commit=draft.commit,
                act=lambda: push(self.git, workspace, draft.commit, known=known, guard=guard),
                name=lambda pushed: pushed.commit,
            )
        )
        self.record.fact(EventKind.PUSH, {"branch": workspace.branch, "commit": pushed.commit})
        return pushed

    async def open_pull_request(self, forge: Forge, draft: Draft, story: Story) -> Ensured:
        assignment, workspace = self.ground.assignment, self.ground.workspace
        wish = Wish(
            task_id=assignment.task_id,
            title=pull_request_title(issue_of(assignment), assignment.title, assignment.prompt),
            body=pull_request_body(body_facts(assignment, draft, story)),
            branch=workspace.branch,
            base=workspace.base.branch,
            commit=draft.commit,
            is_draft=self.ground.repofile.draft or bool(draft.verdict.protected),
        )
        ensured = await self.effects.once(
            Deed(
                kind=EffectKind.PULL_REQUEST,
                branch=workspace.branch,
                commit=draft.commit,
                act=lambda: ensure(forge, wish, self.effects.lease.fresh_for_effect),
                name=lambda ensured: ensured.pull_request.url,
                may_be_done=lambda problem: isinstance(problem, PrRejected) and problem.may_exist,
            )
        )
        pull = ensured.pull_request
        told = {"url": pull.url, "number": pull.number, "draft": pull.is_draft, "adopted": ensured.adopted}
        self.record.fact(EventKind.PULL_REQUEST, {**told, "title": wish.title})
        if ensured.warning:
            self.record.fact(EventKind.WARNING, {"text": ensured.warning})
        return ensured


def earlier_commits(assignment: Assignment) -> frozenset[str]:
    """What earlier attempts of the lineage have pushed, or were about to."""
    pushes = [effect for effect in assignment.effects if effect.kind is EffectKind.PUSH]
    named = (commit for effect in pushes for commit in (effect.expected, effect.external_id))
    return frozenset(commit for commit in named if commit is not None)


def body_facts(assignment: Assignment, draft: Draft, story: Story) -> BodyFacts:
    return BodyFacts(
        task_id=assignment.task_id,
        summary=story.summary,
        agent=assignment.agent,
        model=story.model,
        duration=story.duration,
        commit=draft.commit,
        files=draft.stats.files,
        additions=draft.stats.additions,
        deletions=draft.stats.deletions,
        issue=issue_of(assignment),
        checks=story.checks.results,
        usage=story.usage,
        protected=draft.verdict.protected,
    )


def issue_of(assignment: Assignment) -> Issue | None:
    view = assignment.issue
    return None if view is None else Issue(key=view.key, title=view.title, url=view.url)


def commit_message(assignment: Assignment) -> str:
    """For what the agent left uncommitted. A forge reads meaning into a commit's words, too."""
    title = assignment.issue.title if assignment.issue else assignment.title
    subject = one_line(pull_request_title(None, title, assignment.prompt), SUBJECT_MAX)
    key = f"\n\nFor {assignment.issue.key}." if assignment.issue else ""
    return f"{subject}{key}\n\nDelegate-Task: {assignment.task_id}\n"
