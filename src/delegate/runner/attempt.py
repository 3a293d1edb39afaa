"""One attempt, from its assignment to its end."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio

from delegate.errors import shown
from delegate.home import DISK_FULL_ERRORS
from delegate.model import AgentName, EventKind, Outcome
from delegate.runner import ends
from delegate.runner.agents.base import Agent, Ending, Reading
from delegate.runner.ends import End
from delegate.runner.equipment import Equipment
from delegate.runner.holding import Holding
from delegate.runner.process import Command, NotStarted, launch
from delegate.runner.run import Run, RunEnd, Surroundings
from delegate.runner.watchdog import patience_with
from delegate.states import AttemptState, Reason
from delegate.wire import Assignment

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
        self._lease = holding.lease
        self._marks = holding.marks
        self._started_at = anyio.current_time()
        self._around = Surroundings(
            record=holding.record,
            lease=holding.lease,
            shutdown=equipment.shutdown,
            patience=patience_with(assignment, equipment.settings),
            grace=equipment.settings.grace,
        )

    async def work(self) -> End:
        """Whatever happens, there is an end that a person can read."""
        try:
            return await self._work()
        except DirectoryUnusable as problem:
            return self._failure(Reason.SETUP_ERROR, str(problem))
        except NotStarted as problem:
            return self._not_started(problem)
        except OSError as problem:
            log.exception("attempt not set up", extra=self._marks)
            return self._failure(Reason.SETUP_ERROR, f"the runner could not set it up: {problem}")
        except Exception:
            log.exception("attempt broke", extra=self._marks)
            return self._failure(Reason.INTERNAL, "the runner broke; its log has the details")

    async def _work(self) -> End:
        agent = self._equipment.agents.get(self._assignment.agent)
        if agent is None:
            return self._failure(Reason.NOT_INSTALLED, f"this runner has no agent {self._assignment.agent}")
        self._record.open()
        if self._record.failure is not None:
            return self._disk_failure(self._record.failure)
        if self._equipment.shutdown.is_now:
            return ends.hand_back(self._assignment, "the runner was stopped before it began")
        reading, end = await self._run(agent, self._assignment)
        if reading.session_missing and self._assignment.resume_session is not None and end.ending is Ending.EXITED:
            text = "the session of the attempt before is not there any more; the agent starts anew"
            self._record.fact(EventKind.WARNING, {"text": text})
            reading, end = await self._run(agent, self._assignment.model_copy(update={"resume_session": None}))
        return self._judged(reading, end)

    async def _run(self, agent: Agent, assignment: Assignment) -> tuple[Reading, RunEnd]:
        invocation = agent.invocation(assignment, self._equipment.environ)
        command = Command(argv=invocation.argv, cwd=usable(assignment.working_directory), env=invocation.env)
        reading = agent.reading(assignment)
        process = await launch(await self._equipment.spares.take(), command)
        log.info("agent started", extra={**self._marks, "agent": assignment.agent, "pid": process.pid})
        run = Run(process, reading, self._around, self._started_at)
        return reading, await run.to_its_end(invocation)

    def _judged(self, reading: Reading, end: RunEnd) -> End:
        if self._record.failure is not None:
            return self._disk_failure(self._record.failure)
        if not reading.result_seen and end.is_broken_off:
            return self._broken_off(reading)
        if not reading.result_seen and end.is_supervisor_lost and end.ending is Ending.EXITED:
            return ends.loss(self._assignment, "the agent's supervisor was killed", reading.session_id)
        ending = Ending.LINGERED if end.is_broken_off else end.ending
        outcome = reading.judge(end.exit, ending, datetime.now(UTC))
        self._warn(reading, outcome)
        if outcome.state is AttemptState.CANCELLED and self._lease.cancel_reason:
            outcome = replace(outcome, message=self._lease.cancel_reason)
        return ends.finish(self._assignment, outcome)

    def _warn(self, reading: Reading, outcome: Outcome) -> None:
        if reading.parse_errors:
            text = f"lines of the agent's output that could not be understood: {reading.parse_errors}"
            self._record.fact(EventKind.WARNING, {"text": text})
        if outcome.not_before is not None:
            return  # the next attempt gets the messages that this one did not take
        for message in self._lease.take_messages():
            self._record.fact(EventKind.WARNING, {"text": f"a message came too late: {shown(message.text)}"})

    def _broken_off(self, reading: Reading) -> End:
        """An agent looks at what it finds and goes on from there; a command that had begun would do it all again."""
        if self._assignment.agent == AgentName.SHELL:
            return ends.loss(self._assignment, "the runner was stopped while the command ran")
        return ends.hand_back(self._assignment, "the runner was stopped", reading.session_id)

    def _not_started(self, problem: NotStarted) -> End:
        try:
            usable(self._assignment.working_directory)  # it may have gone in that very moment
        except DirectoryUnusable as gone:
            return self._failure(Reason.SETUP_ERROR, str(gone))
        if problem.errno == SUPERVISOR_KILLED:
            return ends.loss(self._assignment, problem.why)
        reason = Reason.NOT_INSTALLED if problem.errno in NO_PROGRAM else Reason.SETUP_ERROR
        return self._failure(reason, problem.why)

    def _disk_failure(self, failure: OSError) -> End:
        why = failure.strerror or str(failure)
        if failure.errno in DISK_FULL_ERRORS:
            return self._failure(Reason.DISK_FULL, f"the runner could not keep the output: {why}")
        return self._failure(Reason.SETUP_ERROR, f"the runner could not keep the output: {why}")

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
