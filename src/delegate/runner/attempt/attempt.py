"""One attempt, from its assignment to its end."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import anyio

from delegate.checkpoint_lines import Tail
from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.errors import StaleFence, shown
from delegate.model import AgentName, Mode, Outcome
from delegate.runner.attempt import outcome as ends
from delegate.runner.attempt.delivery import deliver, is_good
from delegate.runner.attempt.directory_state import directory_state
from delegate.runner.attempt.holding import Holding
from delegate.runner.attempt.outcome import End
from delegate.runner.attempt.run import Workbench
from delegate.runner.attempt.turns import Conversation, Site
from delegate.runner.attempt.watchdog import patience_with
from delegate.runner.context import Equipment
from delegate.runner.process.agent_process import NotStarted
from delegate.runner.prompts.answered import with_answers
from delegate.runner.prompts.prompt import in_place_words
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.states import AttemptState, Reason
from delegate.wire.parts import CheckpointView
from delegate.wire.runners import Assignment, FinishRequest, ReleaseRequest

log = logging.getLogger(__name__)

# The program is not there, or is none.
NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})
SUPERVISOR_KILLED = errno.ECONNRESET


async def carry_out(equipment: Equipment, assignment: Assignment, ask_token: str | None = None) -> End | None:
    """Work on an assignment; returns the end that the relay took, or None when there is none to tell.

    With `ask_token` its agent can ask a person; a command has no use for it.
    """
    is_command = assignment.agent == AgentName.SHELL
    holding = Holding(equipment, assignment, None if is_command else ask_token)
    attempt = Attempt(equipment, assignment, holding)
    return await holding.until(attempt.work, attempt.with_checkpoint)


class DirectoryUnusable(Exception):
    """The directory that the task is to work in cannot be used."""


class Attempt:
    def __init__(self, equipment: Equipment, assignment: Assignment, holding: Holding) -> None:
        self._equipment = equipment
        self._assignment = assignment
        self._record = holding.record
        self._marks = holding.marks
        self._around = Workbench(
            record=holding.record,
            lease=holding.lease,
            shutdown=equipment.shutdown,
            patience=patience_with(assignment, equipment.settings),
            grace=equipment.settings.grace,
            disk=equipment.disk,
            started_at=anyio.current_time(),
            tail=Tail(speaks_to_people=assignment.agent == AgentName.SHELL),
            ceiling=equipment.ceilings.begin(assignment.attempt_id),
            asking=holding.asking,
        )

    async def work(self) -> End:
        """Whatever happens, there is an end that a person can read."""
        try:
            end = await self._work()
        except StaleFence:
            raise  # there is nobody left to tell an end to
        except (DirectoryUnusable, SetupProblem) as problem:
            end = self._failure(Reason.SETUP_ERROR, str(problem))
        except NotStarted as problem:
            end = self._not_started(problem)
        except OSError as problem:
            log.exception("attempt not set up", extra=self._marks)
            end = self._os_failure(problem, "set it up")
        except Exception:
            log.exception("attempt broke", extra=self._marks)
            end = self._failure(Reason.INTERNAL, "the runner broke; its log has the details")
        if self._record.failure is not None:
            end = self._without_output(end, self._record.failure)
        return end

    async def _work(self) -> End:
        self._record.open()
        if self._record.failure is not None:
            return self._os_failure(self._record.failure, "keep the output")
        if self._equipment.shutdown.is_now:
            return ends.hand_back(self._assignment, "the runner was stopped before it began")
        if self._assignment.mode is Mode.IN_PLACE:
            return await self._in_place()
        return await deliver(self._equipment, self._assignment, self._around)

    async def _in_place(self) -> End:
        agent = self._equipment.agents.get(self._assignment.agent)
        if agent is None:
            return self._failure(Reason.NOT_INSTALLED, f"this runner has no agent {self._assignment.agent}")
        site = Site(directory=usable(self._assignment.working_directory))
        conversation = Conversation(self._equipment, self._assignment, self._around, site)
        anew, goes_on = with_answers(self._assignment, *in_place_words(self._assignment))
        outcome = await conversation.say(agent, goes_on, anew=anew)
        if isinstance(outcome, Outcome):
            conversation.note_unheard(outcome)
        error = None if is_good(outcome) else outcome.message
        end = ends.told(self._assignment, outcome)
        return end.model_copy(update={"checkpoint": ends.checkpoint_view(conversation.checkpoint(error))})

    async def with_checkpoint(self, end: End) -> End:
        """With what is left behind; where the agent did nothing, what the attempt before has left still stands."""
        left = end.checkpoint
        if left is None and isinstance(end, ReleaseRequest):
            return end  # it had not begun
        if left is None:
            known = self._assignment.checkpoint or CheckpointView(session_id=self._assignment.resume_session)
            tail = list(self._around.tail.lines()) or known.output_tail
            left = known.model_copy(update={"error": end.message, "output_tail": tail})
        return end.model_copy(update={"checkpoint": await self._in_its_place(left)})

    async def _in_its_place(self, left: CheckpointView) -> CheckpointView:
        """With how the user's directory stands now. Nobody looks before the agent starts, because that would wait."""
        directory = self._assignment.working_directory
        if self._assignment.mode is not Mode.IN_PLACE or directory is None:
            return left
        scratch = self._equipment.slot.spool(self._assignment.attempt_id)
        state = await directory_state(self._equipment.git, Path(directory), scratch)
        files = ends.file_names(state.dirty)
        return left.model_copy(update={"branch": state.branch, "commit": state.commit, "dirty_files": files})

    def _not_started(self, problem: NotStarted) -> End:
        try:
            if self._assignment.mode is Mode.IN_PLACE:
                usable(self._assignment.working_directory)  # it may have gone in that very moment
        except DirectoryUnusable as gone:
            return self._failure(Reason.SETUP_ERROR, str(gone))
        if problem.errno == SUPERVISOR_KILLED:
            return ends.loss(self._assignment, problem.why)
        reason = Reason.NOT_INSTALLED if problem.errno in NO_PROGRAM else Reason.SETUP_ERROR
        return self._failure(reason, problem.why)

    def _without_output(self, end: End, failure: OSError) -> End:
        """Work that is out is out, though its timeline has an end missing; anything else may be half done."""
        told = self._os_failure(failure, "keep the output")
        left = end.checkpoint and end.checkpoint.model_copy(update={"error": told.message})
        if isinstance(end, ReleaseRequest) or end.result is None:
            return told.model_copy(update={"checkpoint": left})
        if end.outcome == "completed":
            return end
        facts = {"outcome": told.outcome, "reason": told.reason, "message": told.message, "checkpoint": left}
        return end.model_copy(update=facts)

    def _os_failure(self, failure: OSError, doing: str) -> FinishRequest:
        why = failure.strerror or str(failure)
        reason = Reason.DISK_FULL if failure.errno in DISK_FULL_ERRORS else Reason.SETUP_ERROR
        return self._failure(reason, f"the runner could not {doing}: {why}")

    def _failure(self, reason: Reason, message: str) -> FinishRequest:
        return ends.finish(self._assignment, Outcome(state=AttemptState.FAILED, reason=reason, message=message))


def usable(name: str | None) -> Path:
    """The directory, if a program can be started in it."""
    if name is None:
        raise DirectoryUnusable("the task names no directory to work in")
    try:
        mode = Path(name).stat().st_mode
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DirectoryUnusable(f"the directory {shown(Path(name))} cannot be used: {why}") from error
    if not stat.S_ISDIR(mode):
        raise DirectoryUnusable(f"{shown(Path(name))} is not a directory")
    if not os.access(name, os.X_OK):
        raise DirectoryUnusable(f"the directory {shown(Path(name))} may not be entered by the runner's user")
    return Path(name)
