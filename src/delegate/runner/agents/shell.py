"""The agent without a model: the prompt is a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.model import AgentName, Outcome, Stream
from delegate.runner.agents.base import (
    AgentTurn,
    Ending,
    Fact,
    Invocation,
    NoProtocol,
    RunVerdict,
    agent_environment,
    describe_exit,
    exit_code,
    verdict_if_stopped,
)
from delegate.runner.assignment import Assignment
from delegate.runner.process.agent_process import Exit
from delegate.runner.prompts.records import render_context
from delegate.states import AttemptState, Reason

SHELL = "/bin/sh"
# The command line comes through stdin: an argument holds at most 128 KiB, may be taken for an option and is visible to
# every user of the machine. It is read completely before it runs, so the command finds stdin empty. It must end with
# the attempt's id, so that a command truncated by a dying runner (`rm -rf /tmp/x` cut to `rm -rf /`) never runs.
# This prefix is one line, as is anything added before the command, so that the line numbers in shell errors are right.
BOOTSTRAP = (
    'delegate_command=$(command -p cat); case $delegate_command in *"#$DELEGATE_ATTEMPT_ID") '
    'eval "unset delegate_command; ${delegate_command%"#$DELEGATE_ATTEMPT_ID"}" ;; '
    '*) echo "delegate: the command arrived incomplete and was not run" >&2; exit 125 ;; esac'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    name: str = AgentName.SHELL

    def program(self, environ: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return None

    def is_available(self, environ: Mapping[str, str]) -> bool:  # noqa: ARG002 - every POSIX system has a shell there
        return True

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        return Invocation(
            argv=(SHELL, "-c", BOOTSTRAP, "sh"),
            env={**agent_environment(environ, turn.assignment, turn.ask_endpoint), **_context(turn.assignment)},
            initial_input=f"{turn.text}#{turn.assignment.attempt_id}".encode("utf-8", "surrogatepass"),
            keep_input_open=False,
        )

    def reading(self, turn: AgentTurn) -> ShellReading:
        return ShellReading(timeout=turn.assignment.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellReading(NoProtocol):
    """Ignores the command's output; only its exit counts."""

    timeout: timedelta

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:  # noqa: ARG002
        return []

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:  # noqa: ARG002
        verdict = verdict_if_stopped(ending, self.timeout) or _verdict(exit)
        return Outcome(state=verdict.state, reason=verdict.reason, message=verdict.message, exit_code=exit_code(exit))


def _context(assignment: Assignment) -> dict[str, str]:
    """A shell task gets its context in the environment: text before the command line would be run."""
    text = render_context(assignment)
    return {} if text is None else {"DELEGATE_CONTEXT": text}


def _verdict(exit: Exit) -> RunVerdict:
    message = f"the command {describe_exit(exit)}"
    if exit.signal is not None:
        return RunVerdict(state=AttemptState.FAILED, reason=Reason.CRASHED, message=message)
    if exit.code == 0:
        return RunVerdict(state=AttemptState.COMPLETED, reason=Reason.DONE, message=message)
    return RunVerdict(state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message=message)
