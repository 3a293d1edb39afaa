"""Runs the turns of an agent in one attempt: each turn is a new process that resumes the agent's session."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from delegate.config.home_files import PRIVATE_FILE
from delegate.model import Checkpoint, EventKind, Outcome, Usage
from delegate.runner.agents.base import Agent, AgentReading, AgentTurn, Ending, Roots, prompt_text
from delegate.runner.agents.timeline_facts import repository_root
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.run import AgentRun, AttemptContext, RunEnd
from delegate.runner.context import RunnerContext
from delegate.runner.process.agent_process import Command, launch
from delegate.runner.prompts.rendering import message_prompt
from delegate.states import AttemptState, Reason

log = logging.getLogger(__name__)

TERMINATED_CODE = 128 + signal.SIGTERM  # of a program that handles TERM, and of a shell whose command it ended
SIGNALS_APART = 2.0  # seconds between the signals to all processes of a machine that shuts down
SUMMARY_MAX = 20_000  # characters that the relay accepts
NO_BUDGET = 0.0001  # dollars, when nothing is left: an agent takes a budget of 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLocation:
    """Where the agent works; `roots` is set for a workspace."""

    directory: Path
    roots: Roots | None = None


class Conversation:
    def __init__(
        self, runner_context: RunnerContext, assignment: Assignment, context: AttemptContext, location: WorkLocation
    ) -> None:
        self._runner_context = runner_context
        self._assignment = assignment
        self._context = context
        self._location = location
        self.session = assignment.resume_session
        self.spent = Usage()
        self.summary = ""
        self.has_sent_prompt = False
        self._ran_out_of_memory = False  # in the last turn
        self._session_spent = prior_session_usage(assignment)

    @property
    def session_spent(self) -> Usage:
        """Usage of the whole session, including earlier attempts."""
        return self._session_spent

    @property
    def can_continue(self) -> bool:
        """Whether a session and some of the budget are left for another turn."""
        budget = self._assignment.budget_usd
        return self.session is not None and (budget is None or budget > self.spent.cost_usd)

    def checkpoint(self, error: str | None) -> Checkpoint:
        return Checkpoint(
            session_id=self.session,
            output_tail=self._context.tail.lines(),
            error=error,
            summary=self.summary,
            usage=self._session_spent,
        )

    async def run_turns(self, agent: Agent, text: str, *, new_session_prompt: str) -> Outcome:
        """Run one turn, and further turns while messages are waiting; returns how the last one ended.

        `new_session_prompt` replaces `text` when there is no session, or when it no longer exists.
        """
        is_first = not self.has_sent_prompt
        reading, end = await self._run_turn(
            agent, self._record_prompt(text if self.session else new_session_prompt, is_first=is_first)
        )
        if reading.session_missing and self.session is not None and end.ending is Ending.EXITED:
            warning = "the session of the previous attempt no longer exists; the agent starts a new one"
            self._context.record.fact(EventKind.WARNING, {"text": warning})
            self.session, self._session_spent = None, Usage()
            reading, end = await self._run_turn(agent, self._record_prompt(new_session_prompt, is_first=is_first))
        outcome = await self._judge(reading, end)
        while self._takes_more(outcome, reading):
            messages = self._context.lease.take_messages()
            if not messages:
                break
            joined = message_prompt("\n\n".join(message.text for message in messages))
            reading, end = await self._run_turn(agent, joined)
            self._context.lease.mark_seen(messages[-1])
            outcome = await self._judge(reading, end)
        return outcomes.release_if_asked(outcome, self._context.lease)

    def _takes_more(self, outcome: Outcome, reading: AgentReading) -> bool:
        """Messages that follow a question wait for the attempt that gets the answer."""
        is_good = outcomes.is_completed(outcome) and not self._context.is_late
        return is_good and reading.takes_more_turns and self._context.lease.asked_at is None

    def _record_prompt(self, text: str, *, is_first: bool) -> str:
        """Record the first turn's prompt, unless it is the user's own unchanged prompt."""
        self.has_sent_prompt = True
        if is_first and (self._location.roots is not None or text != self._assignment.prompt):
            prompt = prompt_text(self._build_turn(text))
            self._context.record.fact(EventKind.PROMPT, {"text": prompt, "characters": len(prompt)})
        return text

    def _build_turn(self, text: str) -> AgentTurn:
        budget = self._assignment.budget_usd
        left = None if budget is None else budget - self.spent.cost_usd
        return AgentTurn(
            assignment=replace(self._assignment, budget_usd=NO_BUDGET if left is not None and left <= 0 else left),
            text=text,
            session=self.session,
            workspace=self._location.roots,
            spent=self._session_spent,
            ask_endpoint=self._context.asking,
        )

    async def _run_turn(self, agent: Agent, text: str) -> tuple[AgentReading, RunEnd]:
        turn = self._build_turn(text)
        invocation = agent.invocation(turn, self._runner_context.environ)
        write_files(invocation.files)
        reading = agent.reading(turn)
        context, kills = self._context, self._context.memory_kills()
        command = Command(argv=invocation.argv, cwd=self._location.directory, env=invocation.env, cgroup=context.cgroup)
        process = await launch(await self._runner_context.spares.take(), command)
        given = self._assignment
        log_fields = {"task_id": given.task_id, "attempt_id": given.attempt_id, "agent": given.agent}
        log.info("agent started", extra={**log_fields, "pid": process.pid})
        self._context.record.fact(EventKind.STARTED, {"pid": process.pid, "argv0": invocation.argv[0]})
        directory = self._location.directory
        root = self._location.roots.tree if self._location.roots else repository_root(directory)
        run = AgentRun(process, reading, replace(self._context, spent=self.spent, directory=directory, root=root))
        try:
            end = await run.run_to_end(invocation)
        finally:
            remove_empty(invocation.placeholders)
            for path in remove_files(invocation.forbidden):
                text = f"the agent created {path}, where git would look for settings; it was removed"
                context.record.fact(EventKind.WARNING, {"text": text})
        self._ran_out_of_memory = context.memory_kills() > kills
        self.spent = self.spent.plus(reading.usage)
        self._session_spent = self._session_spent.plus(reading.usage)
        self.session = reading.session_id or self.session
        self.summary = cut_summary(reading.summary.replace("\0", "")) or self.summary
        return reading, end

    async def _judge(self, reading: AgentReading, end: RunEnd) -> Outcome:
        if not reading.result_seen and await self._was_stopped(end):
            return outcomes.release_interrupted(self._assignment, self.session)
        if not reading.result_seen and end.ending is Ending.SUPERVISOR_LOST:
            return outcomes.release_as_lost("the agent's supervisor was killed", self.session)
        ending = Ending.LINGERED if end.ending is Ending.INTERRUPTED else end.ending
        outcome = reading.judge(end.exit, ending, datetime.now(UTC))
        if reading.parse_errors:
            warning = f"lines of the agent's output that could not be parsed: {reading.parse_errors}"
            self._context.record.fact(EventKind.WARNING, {"text": warning})
        outcome = self._apply_out_of_memory(outcome, ending)
        if outcome.state is AttemptState.CANCELLED and self._context.lease.cancel_reason:
            outcome = replace(outcome, message=self._context.lease.cancel_reason)
        return replace(outcome, usage=self.spent, session_id=self.session)

    def _apply_out_of_memory(self, outcome: Outcome, ending: Ending) -> Outcome:
        """An agent cannot report that it, or a process it started, was killed for exceeding the memory limit."""
        memory_limit = self._context.memory_limit
        is_its_own = ending in (Ending.EXITED, Ending.SUPERVISOR_LOST) and outcome.state is AttemptState.FAILED
        if memory_limit is None or not self._ran_out_of_memory or not is_its_own:
            return outcome
        return replace(outcome, reason=Reason.OUT_OF_MEMORY, message=memory_limit.message)

    async def _was_stopped(self, end: RunEnd) -> bool:
        """A machine that shuts down sends TERM to the agent too, or kills the supervisor, perhaps before the runner."""
        is_terminated = end.exit.signal == signal.SIGTERM or end.exit.code == TERMINATED_CODE
        is_cut_off = end.ending is Ending.SUPERVISOR_LOST or (end.ending is Ending.EXITED and is_terminated)
        if end.ending is Ending.INTERRUPTED or not is_cut_off:
            return end.ending is Ending.INTERRUPTED
        return await self._context.shutdown.comes_within(SIGNALS_APART)


def prior_session_usage(assignment: Assignment) -> Usage:
    """Usage of the resumed session before this attempt, by the previous attempt or the continued task."""
    continued_task = assignment.continued_task
    left = assignment.checkpoint or (None if continued_task is None else continued_task.checkpoint)
    if left is None or assignment.resume_session is None:
        return Usage()
    return left.usage


def cut_summary(text: str) -> str:
    """Pure: shorten a summary that is too long, and say so."""
    if len(text) <= SUMMARY_MAX:
        return text
    note = f"\n\n(cut here: the whole summary has {len(text):,} characters)"
    return text[: SUMMARY_MAX - len(note)] + note


def remove_empty(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # missing, or not empty
            if path.is_file() and path.stat().st_size == 0:
                path.unlink()
            else:
                path.rmdir()


def remove_files(paths: Iterable[Path]) -> list[Path]:
    """Remove the files and links that exist, and return them."""
    found = [path for path in paths if path.is_symlink() or path.is_file()]
    for path in found:
        with suppress(OSError):
            path.unlink()
    return found


def write_files(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, PRIVATE_FILE), "w", encoding="utf-8") as file:
            file.write(text)
