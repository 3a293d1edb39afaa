"""Runs one attempt from its assignment to its end."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import anyio

from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.config.paths import Home
from delegate.errors import DelegateError, StaleFence, excerpt
from delegate.model import AgentName, Checkpoint, EventKind, Mode, Outcome
from delegate.output_tail import CheckpointTail
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.delivery import deliver
from delegate.runner.attempt.directory_state import read_directory_state
from delegate.runner.attempt.held_attempt import HeldAttempt, hold
from delegate.runner.attempt.local_checkpoint import restore_texts
from delegate.runner.attempt.run import AttemptContext
from delegate.runner.attempt.turns import Conversation, WorkLocation
from delegate.runner.attempt.watchdog import time_limits_for
from delegate.runner.context import RunnerContext
from delegate.runner.process.agent_process import NotStarted
from delegate.runner.prompts.answers import add_answers
from delegate.runner.prompts.prompt import in_place_prompts
from delegate.runner.workspaces.remote_changes import Routes, note_changes, read_routes
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.states import Reason

log = logging.getLogger(__name__)

# The program is missing or cannot be executed.
MISSING_PROGRAM_ERRORS = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})
SUPERVISOR_KILLED = errno.ECONNRESET


async def run_attempt(
    runner_context: RunnerContext, assignment: Assignment, ask_token: str | None = None
) -> Outcome | None:
    """Run an assignment; returns the outcome that the relay accepted, or None when there was none to report.

    With `ask_token` the agent can ask the user questions and submit tasks; a shell task can only submit.
    """
    records = Home(runner_context.settings.home).records
    assignment = await anyio.to_thread.run_sync(restore_texts, assignment, records, runner_context.privacy)
    async with hold(runner_context, assignment, ask_token) as held:
        attempt = AttemptExecution(runner_context, assignment, held)
        outcome = await attempt.work()
        saved = held.save(outcome)
        try:
            saved = held.save(await attempt.with_checkpoint(outcome))
        except Exception:
            log.exception("checkpoint not added to the outcome of the attempt", extra=held.log_fields)
        await held.report(saved)
    return held.reported


class DirectoryUnusable(Exception):
    """The task's working directory cannot be used."""


class AttemptExecution:
    def __init__(self, runner_context: RunnerContext, assignment: Assignment, held: HeldAttempt) -> None:
        self._runner_context = runner_context
        self._assignment = assignment
        self._record = held.record
        self._log_fields = held.log_fields
        self._context = AttemptContext(
            record=held.record,
            lease=held.lease,
            shutdown=runner_context.shutdown,
            time_limits=time_limits_for(assignment, runner_context.settings),
            grace=runner_context.settings.grace,
            disk=runner_context.disk,
            started_at=anyio.current_time(),
            tail=CheckpointTail(is_plain_text=assignment.agent == AgentName.SHELL),
            memory_limit=runner_context.memory_limits.begin(assignment.attempt_id),
            asking=held.asking,
        )

    async def work(self) -> Outcome:
        """Returns an outcome with a readable message, whatever happens; raises only StaleFence."""
        try:
            outcome = await self._work()
        except StaleFence:
            raise  # another runner holds the attempt: there is no outcome to report
        except (DirectoryUnusable, SetupProblem) as problem:
            outcome = outcomes.failure(Reason.SETUP_ERROR, str(problem))
        except NotStarted as problem:
            outcome = self._start_failure(problem)
        except OSError as problem:
            log.exception("attempt could not be set up", extra=self._log_fields)
            outcome = os_failure(problem, "set up the attempt")
        except Exception:
            log.exception("attempt failed with an internal error", extra=self._log_fields)
            outcome = outcomes.failure(Reason.INTERNAL, "the runner hit an internal error; see its log for details")
        if self._record.failure is not None:
            outcome = apply_output_failure(outcome, self._record.failure)
        return outcome

    async def _work(self) -> Outcome:
        self._record.open()
        if self._record.failure is not None:
            return os_failure(self._record.failure, "store the output")
        if self._runner_context.shutdown.is_now:
            return outcomes.hand_back("the runner was stopped before the attempt started")
        if self._assignment.mode is Mode.IN_PLACE:
            return await self._run_in_place()
        return await deliver(self._runner_context, self._assignment, self._context)

    async def _run_in_place(self) -> Outcome:
        agent = self._runner_context.agents.get(self._assignment.agent)
        if agent is None:
            return outcomes.failure(
                Reason.NOT_INSTALLED, f"the agent {self._assignment.agent} is not available on this runner"
            )
        location = WorkLocation(directory=require_directory(self._assignment.working_directory))
        conversation = Conversation(self._runner_context, self._assignment, self._context, location)
        new_session_prompt, resume_prompt = add_answers(self._assignment, *in_place_prompts(self._assignment))
        routes = read_routes(location.directory)
        outcome = await conversation.run_turns(agent, resume_prompt, new_session_prompt=new_session_prompt)
        self._note_changed_remote(location.directory, routes)
        error = None if outcomes.is_completed(outcome) else outcome.message
        return replace(outcome, checkpoint=conversation.checkpoint(error))

    def _note_changed_remote(self, directory: Path, routes: Routes) -> None:
        home = Home(self._runner_context.settings.home)
        try:
            changes = note_changes(home, directory, routes, self._assignment.task_id)
        except (SetupProblem, DelegateError) as problem:  # no repository is left, or no space for the note
            log.warning("remote of the repository not compared", extra={**self._log_fields, "why": str(problem)})
            return
        if changes is not None:
            text = f"the remote of the repository was changed meanwhile: {changes}; a later `--pr` there asks you first"
            self._record.fact(EventKind.WARNING, {"text": text})

    async def with_checkpoint(self, outcome: Outcome) -> Outcome:
        """Add the checkpoint; if the agent did nothing, it is the previous attempt's."""
        left = outcome.checkpoint
        if left is None and outcomes.is_returned(outcome):
            return outcome  # the attempt did not start
        if left is None:
            known = self._assignment.checkpoint or Checkpoint(session_id=self._assignment.resume_session)
            left = replace(known, error=outcome.message, output_tail=self._context.tail.lines() or known.output_tail)
        return replace(outcome, checkpoint=await self._add_directory_state(left))

    async def _add_directory_state(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add the git state of the user's directory. It is not read earlier, to start the agent without delay."""
        directory = self._assignment.working_directory
        if self._assignment.mode is not Mode.IN_PLACE or directory is None:
            return checkpoint
        scratch = self._runner_context.slot.spool(self._assignment.attempt_id)
        state = await read_directory_state(self._runner_context.git, Path(directory), scratch)
        return replace(checkpoint, branch=state.branch, commit=state.commit, dirty_files=state.dirty)

    def _start_failure(self, problem: NotStarted) -> Outcome:
        try:
            if self._assignment.mode is Mode.IN_PLACE:
                require_directory(self._assignment.working_directory)  # it may have been removed just now
        except DirectoryUnusable as gone:
            return outcomes.failure(Reason.SETUP_ERROR, str(gone))
        if problem.errno == SUPERVISOR_KILLED:
            return outcomes.release_as_lost(problem.why)
        reason = Reason.NOT_INSTALLED if problem.errno in MISSING_PROGRAM_ERRORS else Reason.SETUP_ERROR
        return outcomes.failure(reason, problem.why)


def apply_output_failure(outcome: Outcome, failure: OSError) -> Outcome:
    """Published work stays completed although its timeline is cut off; anything else may be incomplete: fail."""
    failed = os_failure(failure, "store the output")
    left = outcome.checkpoint and replace(outcome.checkpoint, error=failed.message)
    if outcome.result is None:
        return replace(failed, checkpoint=left)
    if outcomes.is_completed(outcome):
        return outcome
    return replace(outcome, state=failed.state, reason=failed.reason, message=failed.message, checkpoint=left)


def os_failure(failure: OSError, action: str) -> Outcome:
    why = failure.strerror or str(failure)
    reason = Reason.DISK_FULL if failure.errno in DISK_FULL_ERRORS else Reason.SETUP_ERROR
    return outcomes.failure(reason, f"the runner could not {action}: {why}")


def require_directory(name: str | None) -> Path:
    """Returns the directory if a program can be started in it; raises DirectoryUnusable otherwise."""
    if name is None:
        raise DirectoryUnusable("the task has no working directory")
    try:
        mode = Path(name).stat().st_mode
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DirectoryUnusable(f"the directory {excerpt(Path(name))} cannot be used: {why}") from error
    if not stat.S_ISDIR(mode):
        raise DirectoryUnusable(f"{excerpt(Path(name))} is not a directory")
    if not os.access(name, os.X_OK):
        raise DirectoryUnusable(f"the directory {excerpt(Path(name))} is not accessible to the runner's user")
    return Path(name)
