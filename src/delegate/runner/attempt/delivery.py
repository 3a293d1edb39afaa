"""Runs a task in its own workspace: prepares it, runs the agent and the checks, publishes the work and cleans up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import anyio

from delegate.config.paths import Home
from delegate.errors import DelegateError, StaleFence, escape, excerpt
from delegate.model import AgentName, Checkpoint, EventKind, Mode, Outcome, Result, Usage
from delegate.runner.agents.base import Roots, agent_environment
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.commands import run_command
from delegate.runner.attempt.directory_state import CheckoutMarks, read_checkout_marks
from delegate.runner.attempt.prepare import AgentMissing, first_line, prepare_workspace
from delegate.runner.attempt.run import AttemptContext
from delegate.runner.attempt.stopping import Stopped, cancel_when_stopped, must_stop, run_in_background, stopped_outcome
from delegate.runner.attempt.turns import Conversation, WorkLocation
from delegate.runner.checks import CheckResult, Checks, CommandResult, run_checks
from delegate.runner.context import RunnerContext
from delegate.runner.disk import DiskLow, is_disk_full
from delegate.runner.forges.base import Forge, PrRejected
from delegate.runner.forges.remotes import forge_for
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.process.cgroups import OutOfMemory
from delegate.runner.prompts.answers import add_answers
from delegate.runner.prompts.prompt import failed_checks_prompt, fresh_prompt, resumed_prompt
from delegate.runner.publishing import finished_work
from delegate.runner.publishing.effects import Effects
from delegate.runner.publishing.finished_work import FinishedWork
from delegate.runner.publishing.publication import (
    Publication,
    PublicationDraft,
    ReviewFacts,
    describe_work_on_base,
    find_unpublished,
)
from delegate.runner.publishing.push import PushRejected
from delegate.runner.publishing.unfinished import find_unfinished
from delegate.runner.workspaces.closing import close, record_pushed
from delegate.runner.workspaces.journal import WorkspaceJournal
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.runner.workspaces.saving import save
from delegate.runner.workspaces.untracked_files import carry_in
from delegate.runner.workspaces.worktrees import PreparedWorkspace, Workspace, release_workspace
from delegate.states import AttemptState, Reason

log = logging.getLogger(__name__)

REPORTED_NAMES_MAX = 10
REPORTED_OUTPUT_MAX = 4_000  # characters from the end of a failed command's output that the timeline shows


async def deliver(runner_context: RunnerContext, assignment: Assignment, context: AttemptContext) -> Outcome:
    """Raises SetupProblem when the workspace cannot be prepared."""
    try:
        git = await runner_context.git.get()
        async with cancel_when_stopped(context):
            prepared = await prepare_workspace(runner_context, git, assignment, context.record)
    except GitFailed as problem:
        raise SetupProblem(str(problem)) from problem
    except AgentMissing as missing:
        return outcomes.hand_back(str(missing), wants_agent=missing.agent)
    except Stopped:
        return stopped_outcome(context, assignment.resume_session)
    delivery = Delivery(runner_context, git, prepared, context)
    try:
        return await delivery.carry_out()
    finally:
        if not delivery.is_closed:  # the next attempt continues in it, or a sweep saves it
            release_workspace(prepared.workspace)


class Delivery:
    def __init__(
        self, runner_context: RunnerContext, git: Git, prepared: PreparedWorkspace, context: AttemptContext
    ) -> None:
        self._runner_context = runner_context
        self._git = git
        self._prepared = prepared
        self._context = context
        self._started_at = context.started_at
        self._assignment = prepared.assignment
        workspace = prepared.workspace
        roots = Roots(tree=workspace.tree, git_dir=workspace.git_dir)
        location = WorkLocation(directory=workspace.tree, roots=roots)
        self._conversation = Conversation(runner_context, prepared.assignment, context, location)
        self._publication = Publication(
            git=git, prepared=prepared, record=context.record, effects=self._effects(), at=datetime.now(UTC)
        )
        self._progress = Progress(spent_before=prepared.assignment.usage_before)
        self._on_base: tuple[str, ...] = ()  # commits that the agent pushed to the base, newest first
        self.is_closed = False
        self._tree_lock = anyio.Lock()  # only one operation reads the tree at a time

    def _effects(self) -> Effects:
        return Effects(
            link=self._runner_context.link,
            lease=self._context.lease,
            assignment=self._assignment,
            journal=self._runner_context.journal,
            repository=self._prepared.workspace.repository,
        )

    async def carry_out(self) -> Outcome:
        marks = await self._checkout_marks()
        async with run_in_background(self._save_periodically):
            outcome = await self._run_to_end()
        await self._report_checkout_changes(marks)
        if outcomes.continues_later(outcome):
            # The tree stays as it is for the next attempt on this machine.
            return replace(outcome, checkpoint=self._checkpoint(outcome.message))
        return await self._close(outcome)

    async def _checkout_marks(self) -> CheckoutMarks | None:
        """None also when the attempt must stop: nothing waits for a look at the checkout then."""
        source = self._prepared.workspace.repository.source
        with suppress(Stopped):
            async with cancel_when_stopped(self._context):
                return await read_checkout_marks(self._git, source) if source is not None else None
        return None

    async def _report_checkout_changes(self, before: CheckoutMarks | None) -> None:
        """An agent should work in its own tree only, but nothing keeps it there."""
        after = await self._checkout_marks() if before is not None else None
        changed = after.changed_since(before) if before is not None and after is not None else []
        if changed:
            source, names = self._prepared.workspace.repository.source, list_some(changed)
            text = (
                f"your checkout {source} changed while the task ran: {names}; if you did not change it, the agent did"
            )
            self._context.record.fact(EventKind.WARNING, {"text": text})

    async def _run_to_end(self) -> Outcome:
        try:
            await self._set_up()
            return await self._work()
        except Stopped:
            return stopped_outcome(self._context, self._conversation.session)
        except (SetupProblem, GitFailed, DiskLow, DelegateError, OSError) as problem:
            if isinstance(problem, StaleFence):
                raise
            log.warning("attempt failed", extra={"task_id": self._assignment.task_id, "why": str(problem)})
            return outcomes.failure(Reason.DISK_FULL if is_disk_full(problem) else Reason.SETUP_ERROR, str(problem))
        except OutOfMemory as problem:
            return outcomes.failure(Reason.OUT_OF_MEMORY, str(problem))
        except PushRejected as problem:
            return outcomes.failure(Reason.PUSH_REJECTED, str(problem))
        except PrRejected as problem:
            return outcomes.failure(Reason.PR_REJECTED, str(problem))

    async def _set_up(self) -> None:
        """Copy files in and run the setup commands before the agent starts; a failure here costs no tokens."""
        carried = await carry_in(self._git, self._prepared.workspace, self._prepared.repofile.carry)
        if carried:
            self._context.record.fact(EventKind.SETUP, {"carried": carried})
        for command in self._prepared.repofile.setup:
            done = await self._run(command, self._prepared.repofile.setup_timeout)
            event = {"command": command, "exitCode": done.exit_code, "seconds": round(done.seconds, 1)}
            output = (
                {} if done.exit_code == 0 else {"output": done.output[-REPORTED_OUTPUT_MAX:].decode(errors="replace")}
            )
            self._context.record.fact(EventKind.SETUP, {**event, **output})
            if done.exit_code != 0:
                raise SetupProblem(f"the setup command `{command}` {describe_failure(done)}")

    async def _work(self) -> Outcome:
        """Run agent turns until the checks pass, then publish."""
        ended = await self._run_first_turn()
        for turns_left in range(self._prepared.repofile.check_turns, -1, -1):
            if not outcomes.is_completed(ended):
                return ended
            self._progress.is_work_done = True
            draft = self._progress.draft or await self._draft()
            unfinished = await find_unfinished(self._git, self._prepared.workspace, draft.stats if draft else None)
            if unfinished is not None:
                self._record_check(unfinished)
                checks = Checks(results=(unfinished,))
            elif draft is None:
                return await self._no_changes_outcome(ended)
            elif draft.verdict.denied:
                self._progress.is_work_done = False
                return outcomes.failure(Reason.POLICY_DENIED, "; ".join(draft.verdict.denied))
            else:
                checks = await self._check(draft)
                if checks.is_green:
                    return await self._publish(draft, checks)
            self._progress.checks = checks
            self._progress.is_work_done = False
            if turns_left == 0 or not self._conversation.can_continue:
                break
            text = failed_checks_prompt(checks)
            ended = await self._run_turns(text, new_session_prompt=f"{self._prompts()[0]}\n{text}")
        return outcomes.failure(
            Reason.CHECKS_FAILED, self._progress.checks.failure_summary if self._progress.checks else ""
        )

    async def _check(self, draft: PublicationDraft) -> Checks:
        self._note_finished_work(draft)
        self._publication.record_draft(draft)
        self._progress.checks = await run_checks(
            self._run_check, self._prepared.repofile.checks, report=self._record_check
        )
        return self._progress.checks

    async def _run_first_turn(self) -> Outcome:
        checkpoint = self._assignment.checkpoint
        if await self._find_finished_work():
            return self._skip_agent_turn()
        has_news = self._assignment.context is not None or self._assignment.questions
        is_done = checkpoint is not None and checkpoint.is_work_done and not has_news
        if is_done and await self._draft() is not None:  # its work may be on another machine, or deleted
            self._conversation.summary = checkpoint.summary if checkpoint else ""
            return self._skip_agent_turn()
        new_session_prompt, resume_prompt = self._prompts()
        return await self._run_turns(resume_prompt, new_session_prompt=new_session_prompt)

    async def _find_finished_work(self) -> bool:
        """Whether the agent had already finished this task when an earlier attempt was lost."""
        candidates = finished_work.find_candidates(self._prepared.workspace, self._assignment, self._publication.at)
        async with self._tree_lock, cancel_when_stopped(self._context):
            found = await self._publication.draft_finished_work(candidates)
        if found is None:
            return False
        before, self._progress.draft = found
        self._publication = replace(self._publication, at=before.at)
        self._conversation.summary = before.summary
        # The relay may not have received the usage of the attempt that was lost.
        self._progress.spent_before = max(before.usage, self._assignment.usage_before, key=count_tokens)
        return True

    def _skip_agent_turn(self) -> Outcome:
        text = "the agent had already finished its work; only the steps after it are repeated"
        self._context.record.fact(EventKind.WARNING, {"text": text})
        return Outcome(
            state=AttemptState.COMPLETED, reason=Reason.DONE, message="", session_id=self._conversation.session
        )

    async def _run_turns(self, text: str, *, new_session_prompt: str) -> Outcome:
        """Run the agent again; this discards work that was finished before."""
        self._progress.draft = None
        finished_work.forget(self._prepared.workspace)
        ended = await self._conversation.run_turns(self._prepared.agent, text, new_session_prompt=new_session_prompt)
        if outcomes.is_completed(ended) and self._context.is_late:
            # Its result counts, so the steps after it get the time limit once more.
            self._context = replace(self._context, started_at=anyio.current_time())
        can_ask = self._context.asking is not None and self._assignment.agent != AgentName.SHELL
        if outcomes.is_completed(ended) and can_ask:
            async with cancel_when_stopped(self._context):
                await self._context.lease.refresh()  # it may have asked at the last moment; then nothing is published
        return outcomes.release_if_asked(ended, self._context.lease)

    def _note_finished_work(self, draft: PublicationDraft) -> None:
        """If the runner dies from here on, the next attempt publishes the same commit without running the agent."""
        noted = FinishedWork(
            task_id=self._assignment.task_id,
            commit=draft.commit,
            at=self._publication.at,
            head=draft.snapshot.head,
            summary=self._conversation.summary,
            usage=self._spent,
        )
        finished_work.save_note(self._prepared.workspace, noted)

    @property
    def _spent(self) -> Usage:
        """Usage for this work, by all attempts of the lineage."""
        return self._progress.spent_before.plus(self._conversation.spent)

    def _prompts(self) -> tuple[str, str]:
        """The prompts for a new session and for a resumed one."""
        if self._assignment.agent == AgentName.SHELL:
            return self._assignment.prompt, self._assignment.prompt
        folder = self._prepared.workspace.repository.folder(self._assignment.working_directory)
        new_session_prompt = fresh_prompt(self._assignment, self._prepared.repofile, folder)
        return add_answers(self._assignment, new_session_prompt, resumed_prompt(self._assignment))

    async def _draft(self) -> PublicationDraft | None:
        if self._prepared.repofile.checks:
            await self._runner_context.spares.refill()  # it starts while git runs
        async with self._tree_lock, cancel_when_stopped(self._context):
            self._progress.draft = await self._publication.draft()
        return self._progress.draft

    async def _publish(self, draft: PublicationDraft, checks: Checks) -> Outcome:
        if must_stop(self._context):
            raise Stopped
        pushed = await self._publication.push(draft)
        record_pushed(self._prepared.workspace, pushed.commit)
        self._progress.is_pushed = True
        message = f"pushed to {self._prepared.workspace.branch}"
        if self._assignment.mode is Mode.PULL_REQUEST:
            if self._context.lease.cancel_reason is not None:
                return self._cancelled_after_push()
            forge = await self._forge()
            ensured = await self._publication.open_pull_request(forge, draft, self._review_facts(checks))
            self._progress.pull_request = ensured.pull_request.url
            message = f"pull request {'updated' if ensured.adopted else 'opened'}: {ensured.pull_request.url}"
        if self._context.lease.cancel_reason is not None:
            message += "; the request to cancel came too late"
        return Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message=message)

    def _cancelled_after_push(self) -> Outcome:
        branch = self._prepared.workspace.branch
        message = f"{self._context.lease.cancel_reason}; {branch} was pushed, and no pull request was opened"
        return Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message=message)

    async def _forge(self) -> Forge:
        repository, settings = self._prepared.workspace.repository, self._runner_context.settings
        return await forge_for(self._git, repository, self._runner_context.environ, settings.gh_command)

    def _review_facts(self, checks: Checks) -> ReviewFacts:
        return ReviewFacts(
            summary=join_summaries([*self._assignment.summaries, self._conversation.summary]),
            checks=checks,
            model=self._assignment.model or self._context.tail.model,
            usage=self._spent,
            duration=timedelta(seconds=anyio.current_time() - self._started_at),
        )

    def _record_check(self, result: CheckResult) -> None:
        event = {"command": result.command, "ok": result.ok, "passed": result.passed, "total": result.total}
        event["seconds"] = round(result.seconds, 1)
        output = {} if result.ok else {"output": result.tail[-REPORTED_OUTPUT_MAX:]}
        self._context.record.fact(EventKind.CHECK, {**event, "line": result.line, **output})

    async def _run_check(self, command: str) -> CommandResult:
        return await self._run(command, self._prepared.repofile.check_timeout)

    async def _run(self, command: str, timeout: timedelta) -> CommandResult:
        done = await run_command(
            command,
            cwd=self._prepared.workspace.tree,
            env=agent_environment(self._runner_context.environ, self._assignment),
            timeout=timeout,
            spares=self._runner_context.spares,
            context=self._context,
        )
        if done.is_interrupted:
            raise Stopped
        return done

    async def _save_periodically(self) -> None:
        """Commit the tree to the kept repository at intervals, so that a damaged worktree loses little work."""
        while True:
            await anyio.sleep(self._runner_context.settings.save_every.total_seconds())
            try:
                async with self._tree_lock:
                    await save(self._git, self._prepared.workspace)
            except (GitFailed, OSError, DelegateError):  # the agent keeps running; the next save may succeed
                log.exception("workspace not saved", extra={"task_id": self._assignment.task_id})

    async def _no_changes_outcome(self, ended: Outcome) -> Outcome:
        on_base = await self._report_work_on_base()
        message = on_base or first_line(self._conversation.summary) or "the agent made no changes"
        return replace(ended, reason=Reason.NO_CHANGES, message=message)

    async def _report_work_on_base(self) -> str | None:
        async with self._tree_lock, cancel_when_stopped(self._context):
            self._on_base = await self._publication.find_work_on_base()
        if not self._on_base:
            return None
        text = describe_work_on_base(self._on_base, self._prepared.workspace.base.branch)
        self._context.record.fact(EventKind.WARNING, {"text": text})
        return text

    async def _close(self, outcome: Outcome) -> Outcome:
        if not outcomes.is_completed(outcome) and self._progress.draft is None:
            with suppress(Stopped, GitFailed, OSError, DelegateError):
                await self._report_work_on_base()
        async with self._tree_lock:
            kept = await self._keep_or_remove()
        outcome = self._report_kept(outcome, kept)
        draft, workspace = self._progress.draft, self._prepared.workspace
        return replace(
            outcome,
            usage=self._conversation.spent,
            session_id=self._conversation.session,
            result=result_of(self._progress, workspace, self._conversation.summary, is_kept=kept is not None),
            change=draft.change if draft else None,
            checkpoint=self._checkpoint(None if outcomes.is_completed(outcome) else outcome.message),
        )

    def _report_kept(self, outcome: Outcome, kept: WorkspaceJournal | None) -> Outcome:
        """Says which work was not published although the task completed, and what was never on the branch."""
        if kept is None or not (kept.elsewhere or outcomes.is_completed(outcome)):
            return outcome
        found = list_some(kept.elsewhere) or "work that is not part of the change"
        text = self._context.record.without_secrets(f"not published, but kept: {found}")
        advice = f"`delegate workspaces restore {self._assignment.task_id}` restores it"
        self._context.record.fact(EventKind.WARNING, {"text": f"{text}; {advice}"})
        return replace(outcome, message="; ".join(filter(None, (outcome.message, text))))

    async def _keep_or_remove(self) -> WorkspaceJournal | None:
        """What is kept of the workspace. A failed attempt's work is drafted too, so that the user can inspect it."""
        if self._progress.draft is None:
            with suppress(GitFailed, OSError, DelegateError):
                can_fetch = not must_stop(self._context)
                self._progress.draft = await self._publication.draft(can_fetch=can_fetch)
        self.is_closed = True
        draft, home = self._progress.draft, Home(self._runner_context.settings.home)
        if draft is None or not self._progress.is_pushed:
            pushed = self._on_base[0] if draft is None and self._on_base else None
            return await close(self._git, home, self._prepared.workspace, pushed=pushed)
        return await close(self._git, home, self._prepared.workspace, pushed=draft.commit, work=draft.snapshot)

    def _checkpoint(self, error: str | None) -> Checkpoint:
        tail = self._context.tail.lines()
        return checkpoint_of(self._progress, self._prepared.workspace, self._conversation, tail=tail, error=error)


def list_some(names: Sequence[str]) -> str:
    """Pure: the first names, and how many there are besides."""
    more = len(names) - REPORTED_NAMES_MAX
    shown = [escape(name) for name in names[:REPORTED_NAMES_MAX]]
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown)


def join_summaries(summaries: Sequence[str]) -> str:
    """Pure: describe the whole work; an attempt that only publishes repeats the summary of the previous one."""
    distinct = list(dict.fromkeys(summary.strip() for summary in summaries if summary.strip()))
    return "\n\n**Later:**\n\n".join(distinct)


def count_tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens + usage.output_tokens


def describe_failure(result: CommandResult) -> str:
    if result.timed_out:
        return f"timed out after {result.seconds:.0f} s"
    last = result.output.decode(errors="replace").strip().splitlines()[-1:]
    detail = f": {excerpt(last[0])}" if last else ""
    return f"ended with exit code {result.exit_code}{detail}"


@dataclass(slots=True, kw_only=True)
class Progress:
    is_work_done: bool = False  # the agent succeeded, and no policy or check rejected its work
    draft: PublicationDraft | None = None
    checks: Checks | None = None
    is_pushed: bool = False
    pull_request: str | None = None
    spent_before: Usage = field(default_factory=Usage)  # on the same work, by earlier attempts


def result_of(progress: Progress, workspace: Workspace, summary: str, *, is_kept: bool) -> Result:
    draft, checks = progress.draft, progress.checks
    result = Result(
        summary=summary,
        base=workspace.base.branch,
        base_commit=workspace.base.commit,
        pull_request=progress.pull_request,
        checks_passed=checks.passed if checks else 0,
        checks_total=checks.total if checks else 0,
        is_kept=is_kept,
    )
    if draft is None:
        return result
    return replace(
        result,
        base_commit=draft.change.base_commit,
        branch=workspace.branch,
        commit=draft.commit,
        files=draft.stats.files,
        additions=draft.stats.additions,
        deletions=draft.stats.deletions,
    )


def checkpoint_of(
    progress: Progress, workspace: Workspace, conversation: Conversation, *, tail: tuple[str, ...], error: str | None
) -> Checkpoint:
    draft = progress.draft
    return Checkpoint(
        session_id=conversation.session,
        branch=workspace.branch,
        base_commit=workspace.base.commit,
        commit=draft.commit if draft else None,
        dirty_files=_dirty_files(draft, is_pushed=progress.is_pushed) if draft else None,
        output_tail=tail,
        error=error,
        summary=conversation.summary,
        is_work_done=progress.is_work_done,
        usage=conversation.session_spent,
    )


def _dirty_files(draft: PublicationDraft, *, is_pushed: bool) -> tuple[str, ...]:
    """The uncommitted files that the next attempt will find; after a push, only those that could not be published."""
    snapshot = draft.snapshot
    return (
        tuple(skipped.path for skipped in find_unpublished(snapshot))[: outcomes.DIRTY_MAX]
        if is_pushed
        else snapshot.dirty[: outcomes.DIRTY_MAX]
    )
