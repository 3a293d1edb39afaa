"""The interface of an agent program: how to start it, read its output and judge its end."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from delegate.config.values import REPOSITORY_VARIABLES
from delegate.errors import EXCERPT_MAX, excerpt
from delegate.model import EventKind, Mode, Outcome, Stream, Usage
from delegate.runner.agents.ask_tool import ASK_INSTRUCTIONS, TOKEN_VARIABLE, AskEndpoint
from delegate.runner.assignment import Assignment
from delegate.runner.process.agent_process import Exit
from delegate.runner.process.strays import ATTEMPT_VARIABLE
from delegate.states import AttemptState, Reason

# Delegate's own secrets and switches: no agent needs them, and an agent may print anything it sees.
OWN_SECRETS = frozenset({TOKEN_VARIABLE, "DELEGATE_DATABASE_URL", "DELEGATE_SECRET_KEY", "DELEGATE_FAILPOINTS"})
# Set by Claude Code for the commands of a session. A relay started from such a session must not pass them on: the agent
# would consider itself part of that session, keep no transcript, and could not be resumed.
OUTER_SESSION = frozenset(
    {
        "AI_AGENT",
        "CLAUDECODE",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_EXECPATH",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_EFFORT",
    }
)
# Set for the command of a task. If that command starts a relay, the tasks of the relay must not see it.
OUTER_TASK = frozenset({"DELEGATE_CONTEXT"})
NOT_FOUND = 127  # the exit code of a shell or `env` when the program or its interpreter is missing
SIGNAL_EXIT_BASE = 128  # plus the signal: a shell's exit code for a killed program
INTERRUPTED = (
    "An earlier attempt at this request was interrupted before it ended. Check the state of the working "
    "directory first, keep what is good, and continue from there. The request was:\n\n"
)


class Ending(StrEnum):
    """Why the runner stopped the agent; EXITED: it ended by itself, SUPERVISOR_LOST: with its supervisor."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    STALLED = "stalled"
    NO_START = "no_start"
    LINGERED = "lingered"
    DISK_FULL = "disk_full"
    ASKED = "asked"
    INTERRUPTED = "interrupted"  # the runner is stopping, or cannot store the output
    SUPERVISOR_LOST = "supervisor_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The directories of a workspace that an agent must be able to write to."""

    tree: Path
    git_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One prompt to an agent and its work on it; an attempt has one or more turns, each with its own process."""

    assignment: Assignment
    text: str  # the prompt
    session: str | None = None  # to be continued
    workspace: Roots | None = None  # None: in place
    spent: Usage = Usage()  # by this session, before this turn
    ask_endpoint: AskEndpoint | None = None  # None: the agent cannot ask questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    argv: tuple[str, ...]
    env: dict[str, str]  # the whole environment
    initial_input: bytes  # written to its stdin first
    keep_input_open: bool  # for messages; otherwise stdin is closed after the initial input
    files: Mapping[Path, str] = field(default_factory=dict)  # written before the start, readable only by the user
    placeholders: tuple[Path, ...] = ()  # a killed program may leave these; removed if they are empty
    forbidden: tuple[Path, ...] = ()  # files that must not exist afterwards, because git would read settings there


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """An event from the agent's output, for the task's timeline."""

    kind: EventKind
    data: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    state: AttemptState
    reason: Reason
    message: str
    not_before: datetime | None = None


# TIMEOUT names the task's time limit; EXITED and LINGERED are judged by the agent's output.
AFTER_RESULT = frozenset({Ending.LINGERED, Ending.STALLED, Ending.TIMEOUT})  # a good result counts all the same
STOPS = {
    Ending.CANCELLED: RunVerdict(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message="it was cancelled"),
    Ending.STALLED: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.STALLED,
        message="it was stopped because the agent was silent for too long",
    ),
    Ending.NO_START: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.NO_START,
        message="it was stopped because the agent printed nothing after its start",
    ),
    Ending.DISK_FULL: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.DISK_FULL,
        message="it was stopped because the runner's disk was nearly full",
    ),
    Ending.ASKED: RunVerdict(
        state=AttemptState.RELEASED,
        reason=Reason.QUESTION,
        message="it was stopped because the agent asked a question and kept working",
    ),
}


class AgentReading(Protocol):
    """Reads the output of one run incrementally."""

    @property
    def result_seen(self) -> bool:
        """The agent has sent its result, so its input may be closed. A message or a new turn resets this."""
        ...

    @property
    def left_running(self) -> str:
        """The commands that run in the background although the agent has sent a good result; empty for none."""
        ...

    @property
    def session_missing(self) -> bool:
        """The session to resume does not exist: start again without it."""
        ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def parse_errors(self) -> int:
        """The number of unreadable lines; 0 for a program without a protocol."""
        ...

    @property
    def summary(self) -> str:
        """The agent's last message, up to the storage limit; empty when there is none."""
        ...

    @property
    def takes_more_turns(self) -> bool:
        """Whether a further turn can continue the session."""
        ...

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        """Accepts bytes in any pieces; skips what it cannot parse."""
        ...

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome: ...

    def message(self, text: str) -> bytes | None:
        """The bytes to write to stdin for a message; None when the agent takes no messages while it works."""
        ...

    def replies(self) -> bytes:
        """The bytes to write to stdin after each `feed`; each reply is returned once."""
        ...


class NoProtocol:
    """Defaults for a program without a protocol."""

    result_seen: bool = False
    left_running: str = ""
    session_missing: bool = False
    session_id: str | None = None
    usage: Usage = Usage()
    parse_errors: int = 0
    summary: str = ""
    takes_more_turns: bool = False

    def message(self, text: str) -> bytes | None:  # noqa: ARG002
        return None

    def replies(self) -> bytes:
        return b""


class Agent(Protocol):
    @property
    def name(self) -> str: ...

    def program(self, environ: Mapping[str, str]) -> str | None:
        """The file to start; None when it is missing, or when every system has it."""
        ...

    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether the program exists; `Trials` checks that it runs, which takes longer."""
        ...

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation: ...

    def reading(self, turn: AgentTurn) -> AgentReading: ...


def users_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment and logins, without variables of Delegate, an outer session or another repository."""
    unwanted = OWN_SECRETS | OUTER_SESSION | OUTER_TASK | REPOSITORY_VARIABLES
    return {name: value for name, value in environ.items() if name not in unwanted}


def agent_environment(
    environ: Mapping[str, str], assignment: Assignment, ask_endpoint: AskEndpoint | None = None
) -> dict[str, str]:
    """The user's environment, and the attempt's: its ids and, for an agent, its token and how it reaches the relay."""
    ids = {"DELEGATE_TASK_ID": assignment.task_id, ATTEMPT_VARIABLE: assignment.attempt_id}
    own = {**users_environment(environ), **ids}
    if ask_endpoint is None:
        return own
    return {**own, **ask_endpoint.variables(own), TOKEN_VARIABLE: ask_endpoint.token}


def find_program(command: str, environ: Mapping[str, str]) -> str | None:
    """The path of a program: searches PATH for a name, and uses a path as it is."""
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    # Absolute, because the agent starts in the task's directory.
    return os.path.abspath(found) if found else None


def prompt_text(turn: AgentTurn) -> str:
    """The prompt. In place, a later attempt is told about the earlier one. In a workspace the turn's text already
    does that, and a new session gets the instructions for the ask tool."""
    assignment = turn.assignment
    if turn.ask_endpoint is not None and turn.workspace is not None and turn.session is None:
        return turn.text + ASK_INSTRUCTIONS
    is_first = turn.session is None and assignment.number <= 1
    if is_first or assignment.mode is not Mode.IN_PLACE or turn.text != assignment.prompt:
        return turn.text
    return INTERRUPTED + turn.text


def exit_code(exit: Exit) -> int | None:
    """The exit code as a shell reports it."""
    return SIGNAL_EXIT_BASE + exit.signal if exit.signal is not None else exit.code


def describe_exit(exit: Exit) -> str:
    if exit.signal is None:
        return f"ended with exit code {exit.code}"
    try:
        return f"was killed by {signal.Signals(exit.signal).name}"
    except ValueError:
        return f"was killed by signal {exit.signal}"


def verdict_if_stopped(ending: Ending, timeout: timedelta, *, has_good_result: bool = False) -> RunVerdict | None:
    """The verdict when the runner stopped the agent; None when its output decides."""
    if has_good_result and ending in AFTER_RESULT:
        return None
    if ending is Ending.TIMEOUT:
        message = f"it was stopped because it reached its time limit of {_format_duration(timeout)}"
        return RunVerdict(state=AttemptState.FAILED, reason=Reason.TIMEOUT, message=message)
    return STOPS.get(ending)


def session_of(opened: str | None, resumed: str | None, *, is_missing: bool) -> str | None:
    """The session of a run: the opened one, else the one to resume unless that is missing."""
    return opened or (None if is_missing else resumed)


def failure_verdict(reason: Reason, message: str) -> RunVerdict:
    return RunVerdict(state=AttemptState.FAILED, reason=reason, message=message)


def no_result_verdict(agent: str, exit: Exit, last_line: str) -> RunVerdict:
    reason = Reason.NOT_INSTALLED if exit.code == NOT_FOUND else Reason.CRASHED
    return failure_verdict(reason, with_detail(f"{agent} {describe_exit(exit)}, without a result", last_line))


def with_detail(sentence: str, detail: str, limit: int = EXCERPT_MAX) -> str:
    return f"{sentence}: {excerpt(detail, limit)}" if detail.strip() else sentence


def outcome_of(reading: AgentReading, verdict: RunVerdict, exit: Exit) -> Outcome:
    return Outcome(
        state=verdict.state,
        reason=verdict.reason,
        message=verdict.message,
        # After success, ignore the signal with which the runner stopped a lingering process.
        exit_code=0 if verdict.state is AttemptState.COMPLETED else exit_code(exit),
        session_id=reading.session_id,
        usage=reading.usage,
        not_before=verdict.not_before,
    )


def _format_duration(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    name, size = next(
        (unit for unit in (("hour", 3600), ("minute", 60)) if seconds >= unit[1] and seconds % unit[1] == 0),
        ("second", 1),
    )
    return f"{seconds / size:g} {name}" + ("" if seconds == size else "s")
