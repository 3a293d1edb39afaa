"""What is said to an agent in one attempt: each turn is a process of its own, continued by the agent's session."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from delegate.config.home_files import PRIVATE_FILE
from delegate.errors import shown
from delegate.model import AgentName, Checkpoint, EventKind, Outcome, Usage
from delegate.runner.agents.base import Agent, Ending, Reading, Roots, Turn, request
from delegate.runner.attempt import outcome as ends
from delegate.runner.attempt.run import Run, RunEnd, Workbench
from delegate.runner.context import Equipment
from delegate.runner.process.agent_process import Command, launch
from delegate.runner.prompts.rendering import message_words
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment, ReleaseRequest

log = logging.getLogger(__name__)

SUMMARY_MAX = 20_000  # characters, as the relay takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the agent works; `roots` when that is a workspace of its own."""

    directory: Path
    roots: Roots | None = None


class Conversation:
    def __init__(self, equipment: Equipment, assignment: Assignment, around: Workbench, site: Site) -> None:
        self._equipment = equipment
        self._assignment = assignment
        self._around = around
        self._site = site
        self.session = assignment.resume_session
        self.spent = Usage()
        self.summary = ""
        self.has_spoken = False
        self._ran_out_of_memory = False  # in the last turn
        self._session_spent = spent_by_session(assignment)

    @property
    def session_spent(self) -> Usage:
        """By the session as a whole, with what it spent before this attempt."""
        return self._session_spent

    @property
    def can_go_on(self) -> bool:
        """There is a session, and money, for another turn."""
        budget = self._assignment.budget_usd
        return self.session is not None and (budget is None or budget > self.spent.cost_usd)

    def checkpoint(self, error: str | None) -> Checkpoint:
        return Checkpoint(
            session_id=self.session,
            output_tail=self._around.tail.lines(),
            error=error,
            summary=self.summary,
            usage=self._session_spent,
        )

    async def say(self, agent: Agent, text: str, *, anew: str) -> Outcome | ReleaseRequest:
        """One turn, and one more for each message that came while it took none; how it ended.

        `anew` is said instead of `text` when there is no session to continue, or it is not there any more.
        """
        is_first = not self.has_spoken
        reading, end = await self._turn(agent, self._told(text if self.session else anew, is_first=is_first))
        if reading.session_missing and self.session is not None and end.ending is Ending.EXITED:
            told = "the session of the attempt before is not there any more; the agent starts anew"
            self._around.record.fact(EventKind.WARNING, {"text": told})
            self.session, self._session_spent = None, Usage()
            reading, end = await self._turn(agent, self._told(anew, is_first=is_first))
        outcome = self._judged(reading, end)
        while self._takes_more(outcome, reading):
            messages = self._around.lease.take_messages()
            if not messages:
                break
            words = message_words("\n\n".join(message.text for message in messages))
            reading, end = await self._turn(agent, words)
            self._around.lease.mark_seen(messages[-1])
            outcome = self._judged(reading, end)
        return ends.if_asked(outcome, self._around.lease)

    def _takes_more(self, outcome: Outcome | ReleaseRequest, reading: Reading) -> bool:
        """What comes after a question is for the attempt that has the answer."""
        is_good = isinstance(outcome, Outcome) and outcome.state is AttemptState.COMPLETED
        return is_good and reading.takes_more_turns and self._around.lease.asked_at is None

    def _told(self, text: str, *, is_first: bool) -> str:
        """The words of the first turn, for people who want to know what the agent was asked; in place they do."""
        self.has_spoken = True
        if is_first and (self._site.roots is not None or text != self._assignment.prompt):
            self._around.record.fact(EventKind.PROMPT, {"text": request(self._as_turn(text))})
        return text

    def _as_turn(self, text: str) -> Turn:
        left = self._assignment.budget_usd
        within = (
            self._assignment
            if left is None
            else self._assignment.model_copy(update={"budget_usd": max(left - self.spent.cost_usd, 0.01)})
        )
        return Turn(
            assignment=within,
            text=text,
            session=self.session,
            workspace=self._site.roots,
            spent=self._session_spent,
            asking=self._around.asking,
        )

    async def _turn(self, agent: Agent, text: str) -> tuple[Reading, RunEnd]:
        turn = self._as_turn(text)
        invocation = agent.invocation(turn, self._equipment.environ)
        write_files(invocation.files)
        reading = agent.reading(turn)
        around, kills = self._around, self._around.memory_kills()
        command = Command(argv=invocation.argv, cwd=self._site.directory, env=invocation.env, cgroup=around.cgroup)
        process = await launch(await self._equipment.spares.take(), command)
        given = self._assignment
        marks = {"task_id": given.task_id, "attempt_id": given.attempt_id, "agent": given.agent}
        log.info("agent started", extra={**marks, "pid": process.pid})
        self._around.record.fact(EventKind.STARTED, {"pid": process.pid, "argv0": invocation.argv[0]})
        end = await Run(process, reading, replace(self._around, spent=self.spent)).to_its_end(invocation)
        self._ran_out_of_memory = around.memory_kills() > kills
        self.spent = self.spent.plus(reading.usage)
        self._session_spent = self._session_spent.plus(reading.usage)
        self.session = reading.session_id or self.session
        self.summary = reading.summary.replace("\0", "")[:SUMMARY_MAX] or self.summary
        return reading, end

    def _judged(self, reading: Reading, end: RunEnd) -> Outcome | ReleaseRequest:
        if not reading.result_seen and end.is_broken_off:
            return self._broken_off()
        if not reading.result_seen and end.is_supervisor_lost and end.ending is Ending.EXITED:
            return ends.loss(self._assignment, "the agent's supervisor was killed", self.session)
        ending = Ending.LINGERED if end.is_broken_off else end.ending
        outcome = reading.judge(end.exit, ending, datetime.now(UTC))
        if reading.parse_errors:
            told = f"lines of the agent's output that could not be understood: {reading.parse_errors}"
            self._around.record.fact(EventKind.WARNING, {"text": told})
        outcome = self._by_memory(outcome, end)
        if outcome.state is AttemptState.CANCELLED and self._around.lease.cancel_reason:
            outcome = replace(outcome, message=self._around.lease.cancel_reason)
        return replace(outcome, usage=self.spent, session_id=self.session)

    def _by_memory(self, outcome: Outcome, end: RunEnd) -> Outcome:
        """An agent cannot tell that it, or something it started, was killed for want of memory."""
        ceiling = self._around.ceiling
        is_its_own = end.ending is Ending.EXITED and outcome.state is AttemptState.FAILED
        if ceiling is None or not self._ran_out_of_memory or not is_its_own:
            return outcome
        return replace(outcome, reason=Reason.OUT_OF_MEMORY, message=ceiling.sentence)

    def note_unheard(self, outcome: Outcome) -> None:
        """Messages that nobody will read any more; those of a parked or waiting task wait for its next attempt."""
        if outcome.not_before is not None or outcome.state is AttemptState.RELEASED:
            return
        for message in self._around.lease.take_messages():
            self._around.record.fact(EventKind.WARNING, {"text": f"a message came too late: {shown(message.text)}"})

    def _broken_off(self) -> ReleaseRequest:
        """An agent looks at what it finds and goes on from there; a command that had begun would do it all again."""
        if self._assignment.agent == AgentName.SHELL:
            return ends.loss(self._assignment, "the runner was stopped while the command ran")
        return ends.hand_back(self._assignment, "the runner was stopped", self.session)


def spent_by_session(assignment: Assignment) -> Usage:
    """Before this attempt, which continues it: by the attempt before, or by the task before."""
    forerunner = assignment.forerunner
    left = assignment.checkpoint or (None if forerunner is None else forerunner.checkpoint)
    if left is None or assignment.resume_session is None:
        return Usage()
    return Usage(**left.usage.model_dump())


def write_files(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, PRIVATE_FILE), "w", encoding="utf-8") as file:
            file.write(text)
