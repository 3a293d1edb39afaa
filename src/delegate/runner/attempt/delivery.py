"""A task in a workspace of its own: prepared, worked on, checked, published, and cleaned up after."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeGuard

import anyio

from delegate.config.paths import Home
from delegate.errors import DelegateError, StaleFence, shown
from delegate.model import AgentName, Checkpoint, EventKind, Mode, Outcome, Result, Usage
from delegate.runner.agents.base import Roots, agent_environment
from delegate.runner.attempt import outcome as ends
from delegate.runner.attempt.commands import run_command
from delegate.runner.attempt.outcome import End
from delegate.runner.attempt.prepare import WantsAgent, first_line, prepare_ground
from delegate.runner.attempt.run import Workbench
from delegate.runner.attempt.stopping import Stopped, beside, end_of_stopped, must_stop, unless_stopped
from delegate.runner.attempt.turns import Conversation, Site
from delegate.runner.checks import CheckResult, Checks, CommandResult, run_checks
from delegate.runner.context import Equipment
from delegate.runner.disk import DiskLow, is_disk_full
from delegate.runner.forges.base import Forge, PrRejected
from delegate.runner.forges.remotes import forge_for
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.process.cgroups import OutOfMemory
from delegate.runner.prompts.answered import with_answers
from delegate.runner.prompts.prompt import anew_words, red_check_words, resumed_words
from delegate.runner.publishing import handed_in
from delegate.runner.publishing.effects import Effects
from delegate.runner.publishing.handed_in import HandedIn
from delegate.runner.publishing.publication import Draft, Publication, Story, unpublished
from delegate.runner.publishing.push import PushRejected
from delegate.runner.workspaces.carried import carry_in
from delegate.runner.workspaces.closing import close, note_pushed
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.runner.workspaces.saving import save
from delegate.runner.workspaces.worktrees import Ground, Workspace, leave
from delegate.states import AttemptState, Reason
from delegate.wire.parts import UsageView
from delegate.wire.runners import Assignment, ReleaseRequest

log = logging.getLogger(__name__)

OUTPUT_TOLD = 4_000  # characters of a failed command's end that the timeline has


async def deliver(equipment: Equipment, assignment: Assignment, around: Workbench) -> End:
    """Raises SetupProblem when there is no ground to work on."""
    try:
        git = await equipment.git.get()
        async with unless_stopped(around):
            ground = await prepare_ground(equipment, git, assignment, around.record)
    except GitFailed as problem:
        raise SetupProblem(str(problem)) from problem
    except WantsAgent as wants:
        return ends.hand_back(assignment, str(wants)).model_copy(update={"wants_agent": wants.agent})
    except Stopped:
        return ends.told(assignment, end_of_stopped(assignment, around, assignment.resume_session))
    delivery = Delivery(equipment, git, ground, around)
    try:
        return await delivery.carry_out()
    finally:
        if not delivery.is_closed:  # the next attempt continues it, or a sweep saves it
            leave(ground.workspace)


class Delivery:
    def __init__(self, equipment: Equipment, git: Git, ground: Ground, around: Workbench) -> None:
        self._equipment = equipment
        self._git = git
        self._ground = ground
        self._around = around
        self._assignment = ground.assignment
        workspace = ground.workspace
        roots = Roots(tree=workspace.tree, git_dir=workspace.git_dir)
        site = Site(directory=workspace.tree, roots=roots)
        self._conversation = Conversation(equipment, ground.assignment, around, site)
        self._publication = Publication(
            git=git, ground=ground, record=around.record, effects=self._effects(), at=datetime.now(UTC)
        )
        self._progress = Progress()
        self.is_closed = False
        self._looking = anyio.Lock()  # one look at the tree at a time

    def _effects(self) -> Effects:
        return Effects(
            link=self._equipment.link,
            lease=self._around.lease,
            assignment=self._assignment,
            journal=self._equipment.journal,
            url=self._ground.workspace.repository.url,
        )

    async def carry_out(self) -> End:
        async with beside(self._save_now_and_then):
            ended = await self._to_its_end()
        if isinstance(ended, ReleaseRequest) or ended.not_before is not None or ended.state is AttemptState.RELEASED:
            return self._handed_over(ended)
        return await self._closed(ended)

    async def _to_its_end(self) -> Outcome | ReleaseRequest:
        try:
            await self._set_up()
            return await self._work()
        except Stopped:
            return end_of_stopped(self._assignment, self._around, self._conversation.session)
        except (SetupProblem, GitFailed, DiskLow, DelegateError, OSError) as problem:
            if isinstance(problem, StaleFence):
                raise
            log.warning("attempt not carried out", extra={"task_id": self._assignment.task_id, "why": str(problem)})
            return self._failure(Reason.DISK_FULL if is_disk_full(problem) else Reason.SETUP_ERROR, str(problem))
        except OutOfMemory as problem:
            return self._failure(Reason.OUT_OF_MEMORY, str(problem))
        except PushRejected as problem:
            return self._failure(Reason.PUSH_REJECTED, str(problem))
        except PrRejected as problem:
            return self._failure(Reason.PR_REJECTED, str(problem))

    async def _set_up(self) -> None:
        """What the repository needs before anybody works in it; a failure here costs no token."""
        carried = await carry_in(self._git, self._ground.workspace, self._ground.repofile.carry)
        if carried:
            self._around.record.fact(EventKind.SETUP, {"carried": carried})
        for command in self._ground.repofile.setup:
            done = await self._run(command, self._ground.repofile.setup_timeout)
            told = {"command": command, "exitCode": done.exit_code, "seconds": round(done.seconds, 1)}
            output = {} if done.exit_code == 0 else {"output": done.output[-OUTPUT_TOLD:].decode(errors="replace")}
            self._around.record.fact(EventKind.SETUP, {**told, **output})
            if done.exit_code != 0:
                raise SetupProblem(f"the set-up command `{command}` {how(done)}")

    async def _work(self) -> Outcome | ReleaseRequest:
        """The agent's turns until its work is green, then out with it."""
        ended = await self._first_turn()
        for turns_left in range(self._ground.repofile.check_turns, -1, -1):
            if not is_good(ended):
                return ended
            self._progress.is_work_done = True
            draft = self._progress.draft or await self._draft()
            if draft is None:
                return self._unchanged(ended)
            self._note_handed_in(draft)
            if draft.verdict.denied:
                self._progress.is_work_done = False
                return self._failure(Reason.POLICY_DENIED, "; ".join(draft.verdict.denied))
            self._publication.tell(draft)
            checks = await run_checks(self._checked, self._ground.repofile.checks, tell=self._tell_check)
            self._progress.checks = checks
            if checks.is_green:
                return await self._publish(draft, checks)
            self._progress.is_work_done = False
            if turns_left == 0 or not self._conversation.can_go_on:
                break
            words = red_check_words(checks)
            ended = await self._say(words, anew=f"{self._words()[0]}\n{words}")
        return self._failure(Reason.CHECKS_FAILED, self._progress.checks.red_line if self._progress.checks else "")

    async def _first_turn(self) -> Outcome | ReleaseRequest:
        checkpoint = self._assignment.checkpoint
        if await self._find_handed_in():
            return self._done_before()
        has_news = self._assignment.context is not None or self._assignment.questions
        is_done = checkpoint is not None and checkpoint.is_work_done and not has_news
        if is_done and await self._draft() is not None:  # it may be on another machine, or have been dropped
            self._conversation.summary = checkpoint.summary if checkpoint else ""
            return self._done_before()
        anew, resumed = self._words()
        return await self._say(resumed, anew=anew)

    async def _find_handed_in(self) -> bool:
        """Whether the agent's work for this very task was done when an attempt before this one was lost."""
        candidates = handed_in.found(self._ground.workspace, self._assignment, self._publication.at)
        async with self._looking:
            found = await self._publication.draft_again(candidates)
        if found is None:
            return False
        before, self._progress.draft = found
        self._publication = replace(self._publication, at=before.at)
        self._conversation.summary = before.summary
        self._progress.spent_before = Usage(**before.usage.model_dump())
        return True

    def _done_before(self) -> Outcome:
        text = "the agent's work was done before; only what came after it is done again"
        self._around.record.fact(EventKind.WARNING, {"text": text})
        return Outcome(
            state=AttemptState.COMPLETED, reason=Reason.DONE, message="", session_id=self._conversation.session
        )

    async def _say(self, text: str, *, anew: str) -> Outcome | ReleaseRequest:
        """A turn of the agent: what was handed in before does not count any more."""
        self._progress.draft = None
        handed_in.forget(self._ground.workspace)
        ended = await self._conversation.say(self._ground.agent, text, anew=anew)
        if is_good(ended) and self._around.asking is not None:
            async with unless_stopped(self._around):
                await self._around.lease.news()  # it may have asked in its last moment, and then nothing goes out
        return ends.if_asked(ended, self._around.lease)

    def _note_handed_in(self, draft: Draft) -> None:
        """A runner that dies from here on has its successor publish the same commit, without the agent."""
        noted = HandedIn(
            task_id=self._assignment.task_id,
            commit=draft.commit,
            at=self._publication.at,
            head=draft.snapshot.head,
            summary=self._conversation.summary,
            usage=UsageView(**asdict(self._spent)),
        )
        handed_in.note(self._ground.workspace, noted)

    @property
    def _spent(self) -> Usage:
        """For the work, and not only in this attempt."""
        return self._progress.spent_before.plus(self._conversation.spent)

    def _words(self) -> tuple[str, str]:
        """What is said to an agent that knows nothing yet, and to one whose session goes on."""
        if self._assignment.agent == AgentName.SHELL:
            return self._assignment.prompt, self._assignment.prompt
        anew = anew_words(self._assignment, self._ground.repofile)
        return with_answers(self._assignment, anew, resumed_words(self._assignment))

    async def _draft(self) -> Draft | None:
        if self._ground.repofile.checks:
            await self._equipment.spares.refill()  # it gets ready while git works
        async with self._looking:
            self._progress.draft = await self._publication.draft()
        return self._progress.draft

    async def _publish(self, draft: Draft, checks: Checks) -> Outcome:
        if must_stop(self._around):
            raise Stopped
        pushed = await self._publication.push(draft)
        note_pushed(self._ground.workspace, pushed.commit)
        self._progress.is_pushed = True
        message = f"pushed to {self._ground.workspace.branch}"
        if self._assignment.mode is Mode.PULL_REQUEST:
            forge = await self._forge()
            ensured = await self._publication.open_pull_request(forge, draft, self._story(checks))
            self._progress.pull_request = ensured.pull_request.url
            message = f"pull request {'updated' if ensured.adopted else 'opened'}: {ensured.pull_request.url}"
        return Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message=message)

    async def _forge(self) -> Forge:
        url = self._ground.workspace.repository.url
        return await forge_for(self._git, url, self._equipment.environ, self._equipment.settings.gh_command)

    def _story(self, checks: Checks) -> Story:
        return Story(
            summary=self._conversation.summary,
            checks=checks,
            model=self._assignment.model or self._around.tail.model,
            usage=self._spent,
            duration=timedelta(seconds=anyio.current_time() - self._around.started_at),
        )

    def _tell_check(self, result: CheckResult) -> None:
        told = {"command": result.command, "ok": result.ok, "passed": result.passed, "total": result.total}
        output = {} if result.ok else {"output": result.tail[-OUTPUT_TOLD:]}
        self._around.record.fact(EventKind.CHECK, {**told, "line": result.line, **output})

    async def _checked(self, command: str) -> CommandResult:
        return await self._run(command, self._ground.repofile.check_timeout)

    async def _run(self, command: str, timeout: timedelta) -> CommandResult:
        done = await run_command(
            command,
            cwd=self._ground.workspace.tree,
            env=agent_environment(self._equipment.environ, self._assignment),
            timeout=timeout,
            spares=self._equipment.spares,
            around=self._around,
        )
        if done.is_broken_off:
            raise Stopped
        return done

    async def _save_now_and_then(self) -> None:
        """A tree that lives only in the file system is one lost disk away from nothing."""
        while True:
            await anyio.sleep(self._equipment.settings.save_every.total_seconds())
            try:
                async with self._looking:
                    await save(self._git, self._ground.workspace)
            except (GitFailed, OSError, DelegateError):  # the agent goes on; the next save may work
                log.exception("workspace not saved", extra={"task_id": self._assignment.task_id})

    def _failure(self, reason: Reason, message: str) -> Outcome:
        return Outcome(state=AttemptState.FAILED, reason=reason, message=message)

    def _unchanged(self, ended: Outcome) -> Outcome:
        message = first_line(self._conversation.summary) or "the agent changed nothing"
        return replace(ended, reason=Reason.NO_CHANGES, message=message)

    def _handed_over(self, ended: Outcome | ReleaseRequest) -> End:
        """The task goes on elsewhere or later: the tree stays as it is for whoever continues it here."""
        checkpoint = self._checkpoint(ended.message)
        if isinstance(ended, ReleaseRequest):
            return ended.model_copy(update={"checkpoint": ends.checkpoint_view(checkpoint)})
        return ends.finish(self._assignment, replace(ended, checkpoint=checkpoint))

    async def _closed(self, outcome: Outcome) -> End:
        self._conversation.note_unheard(outcome)
        async with self._looking:
            is_kept = await self._keep_or_remove()
        if is_kept and self._progress.is_pushed:
            self._tell_rest()
        draft, workspace = self._progress.draft, self._ground.workspace
        told = replace(
            outcome,
            usage=self._conversation.spent,
            session_id=self._conversation.session,
            result=result_of(self._progress, workspace, self._conversation.summary, is_kept=is_kept),
            change=draft.change if draft else None,
            checkpoint=self._checkpoint(None if is_good(outcome) else outcome.message),
        )
        return ends.finish(self._assignment, told)

    def _tell_rest(self) -> None:
        text = (
            "not all of the work could be published: what was done inside submodules, or git cannot hold, is kept; "
            f"`delegate workspaces restore {self._assignment.task_id}` brings it back"
        )
        self._around.record.fact(EventKind.WARNING, {"text": text})

    async def _keep_or_remove(self) -> bool:
        """Work of an attempt that failed is drafted too, so that people can look at it."""
        if self._progress.draft is None:
            with suppress(GitFailed, OSError, DelegateError):
                self._progress.draft = await self._publication.draft()
        self.is_closed = True
        draft, home = self._progress.draft, Home(self._equipment.settings.home)
        if draft is None or not self._progress.is_pushed:
            return await close(self._git, home, self._ground.workspace, pushed=None)
        return await close(self._git, home, self._ground.workspace, pushed=draft.commit, work=draft.snapshot)

    def _checkpoint(self, error: str | None) -> Checkpoint:
        tail = self._around.tail.lines()
        return checkpoint_of(self._progress, self._ground.workspace, self._conversation, tail=tail, error=error)


def is_good(ended: Outcome | ReleaseRequest) -> TypeGuard[Outcome]:
    return isinstance(ended, Outcome) and ended.state is AttemptState.COMPLETED


def how(done: CommandResult) -> str:
    if done.timed_out:
        return f"was stopped after {done.seconds:.0f} s"
    last = done.output.decode(errors="replace").strip().splitlines()[-1:]
    said = f": {shown(last[0])}" if last else ""
    return f"ended with exit code {done.exit_code}{said}"


DIRTY_MAX = 200  # names of changed files that a checkpoint tells


@dataclass(slots=True, kw_only=True)
class Progress:
    is_work_done: bool = False  # the agent has ended well, and nobody has found fault with its work
    draft: Draft | None = None
    checks: Checks | None = None
    is_pushed: bool = False
    pull_request: str | None = None
    spent_before: Usage = field(default_factory=Usage)  # on the same work, by an attempt that was lost


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
        dirty_files=_dirty(draft, is_pushed=progress.is_pushed) if draft else None,
        output_tail=tail,
        error=error,
        summary=conversation.summary,
        is_work_done=progress.is_work_done,
        usage=conversation.session_spent,
    )


def _dirty(draft: Draft, *, is_pushed: bool) -> tuple[str, ...]:
    """Whoever continues finds what was pushed committed; else the tree is as the agent left it."""
    snapshot = draft.snapshot
    return tuple(odd.path for odd in unpublished(snapshot))[:DIRTY_MAX] if is_pushed else snapshot.dirty[:DIRTY_MAX]
