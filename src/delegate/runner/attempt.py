"""One attempt, from its assignment to its end."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import anyio

from delegate.errors import StaleFence, shown
from delegate.home import DISK_FULL_ERRORS
from delegate.model import AgentName, Mode, Outcome
from delegate.runner import ends
from delegate.runner.conversation import Conversation, Place
from delegate.runner.delivery import deliver
from delegate.runner.ends import End
from delegate.runner.equipment import Equipment
from delegate.runner.holding import Holding
from delegate.runner.process import NotStarted
from delegate.runner.prompts.prompt import in_place_words
from delegate.runner.run import Surroundings
from delegate.runner.tail import Tail
from delegate.runner.watchdog import patience_with
from delegate.runner.workspaces.problems import SetupProblem
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment, FinishRequest

log = logging.getLogger(__name__)

# The program is not there, or is none.
NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})
SUPERVISOR_KILLED = errno.ECONNRESET


async def carry_out(equipment: Equipment, assignment: Assignment) -> End | None:
    """Work on an assignment; returns the end that the relay took, or None when there is none to tell."""
    holding = Holding(equipment, assignment)
    attempt = Attempt(equipment, assignment, holding)
    return await holding.until(attempt.work)


class DirectoryUnusable(Exception):
    """The directory that the task is to work in cannot be used."""


class Attempt:
    def __init__(self, equipment: Equipment, assignment: Assignment, holding: Holding) -> None:
        self._equipment = equipment
        self._assignment = assignment
        self._record = holding.record
        self._marks = holding.marks
        self._around = Surroundings(
            record=holding.record,
            lease=holding.lease,
            shutdown=equipment.shutdown,
            patience=patience_with(assignment, equipment.settings),
            grace=equipment.settings.grace,
            disk=equipment.disk,
            started_at=anyio.current_time(),
            tail=Tail(speaks_to_people=assignment.agent == AgentName.SHELL),
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
        return end if self._record.failure is None else self._without_output(end, self._record.failure)

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
        place = Place(directory=usable(self._assignment.working_directory))
        conversation = Conversation(self._equipment, self._assignment, self._around, place)
        anew, goes_on = in_place_words(self._assignment)
        outcome = await conversation.say(agent, goes_on, anew=anew)
        if not isinstance(outcome, Outcome):
            return outcome
        conversation.note_unheard(outcome)
        return ends.finish(self._assignment, replace(outcome, checkpoint=conversation.checkpoint(outcome)))

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
        if not isinstance(end, FinishRequest) or not isinstance(told, FinishRequest) or end.result is None:
            return told
        if end.outcome == "completed":
            return end
        return end.model_copy(update={"outcome": told.outcome, "reason": told.reason, "message": told.message})

    def _os_failure(self, failure: OSError, doing: str) -> End:
        why = failure.strerror or str(failure)
        reason = Reason.DISK_FULL if failure.errno in DISK_FULL_ERRORS else Reason.SETUP_ERROR
        return self._failure(reason, f"the runner could not {doing}: {why}")

    def _failure(self, reason: Reason, message: str) -> End:
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
