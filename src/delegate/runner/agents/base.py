"""What every agent program is to the runner: how it is started, what its output means, how its run ended."""

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

from delegate.errors import excerpt
from delegate.model import EventKind, Mode, Outcome, Stream, Usage
from delegate.runner.agents.ask_tool import ASK_INSTRUCTIONS, TOKEN_VARIABLE, AskEndpoint
from delegate.runner.process.agent_process import Exit
from delegate.runner.process.strays import ATTEMPT_VARIABLE
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment

# Delegate's own secrets and switches: no agent needs them, and everything an agent sees it may print.
OWN_SECRETS = frozenset(
    {"DELEGATE_TOKEN", "DELEGATE_DATABASE_URL", "DELEGATE_SECRET_KEY", "DELEGATE_FAILPOINTS", TOKEN_VARIABLE}
)
# What Claude Code tells the commands of a session. A relay started from inside such a session must not pass it on: the
# agent would take itself for a part of that session (and keep no transcript, so that it could not be resumed).
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
# Told by a task to its command, which may have started a relay: it is of no concern to the tasks of that one.
OUTER_TASK = frozenset({"DELEGATE_CONTEXT"})
NOT_FOUND = 127  # what a shell or `env` answers when the program, or its interpreter, is not there
SIGNAL_EXIT_BASE = 128  # a shell's exit code for a program that a signal ended is this plus the signal
INTERRUPTED = (
    "An earlier attempt at this request was interrupted before it had ended. Look at the state of the working "
    "directory first, keep what is good, and carry on from there. The request was:\n\n"
)


class Ending(StrEnum):
    """Why the runner ended the agent; EXITED: it ended by itself."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    STALLED = "stalled"
    NO_START = "no_start"
    LINGERED = "lingered"
    DISK_FULL = "disk_full"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The places of a workspace that an agent must be able to write to."""

    tree: Path
    git_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One thing said to an agent and all it does about it; an attempt has one or more, each with its own process."""

    assignment: Assignment
    text: str  # what to say
    session: str | None = None  # to be continued
    workspace: Roots | None = None  # None: in place
    spent: Usage = Usage()  # by this session, before this turn
    ask_endpoint: AskEndpoint | None = None  # None: nobody can be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    argv: tuple[str, ...]
    env: dict[str, str]  # the whole environment
    initial_input: bytes  # written to its stdin first
    keep_input_open: bool  # so that messages can reach it; otherwise stdin is closed after the opening
    files: Mapping[Path, str] = field(default_factory=dict)  # to be there before it starts, for no other user to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something the agent's output told, as it will stand in the task's timeline."""

    kind: EventKind
    data: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    state: AttemptState
    reason: Reason
    message: str
    not_before: datetime | None = None


# Of the others, TIMEOUT tells the task's own time; what exited or lingered is judged by what it said.
STOPS = {
    Ending.CANCELLED: RunVerdict(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message="it was cancelled"),
    Ending.STALLED: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.STALLED,
        message="it was stopped because the agent had been silent for too long",
    ),
    Ending.NO_START: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.NO_START,
        message="it was stopped because the agent had printed nothing since its start",
    ),
    Ending.DISK_FULL: RunVerdict(
        state=AttemptState.FAILED,
        reason=Reason.DISK_FULL,
        message="it was stopped because the runner's disk was nearly full",
    ),
    Ending.ASKED: RunVerdict(
        state=AttemptState.RELEASED,
        reason=Reason.QUESTION,
        message="it was stopped because the agent had asked a question and worked on",
    ),
}


class AgentReading(Protocol):
    """One run's output, read as it comes."""

    @property
    def result_seen(self) -> bool:
        """The agent has said its last word, so its input may be closed. A message or a new turn takes it back."""
        ...

    @property
    def session_missing(self) -> bool:
        """The session to resume is not there: start again without it."""
        ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def parse_errors(self) -> int:
        """How many lines could not be understood; none of a program that has no protocol."""
        ...

    @property
    def summary(self) -> str:
        """The agent's last message, whole as far as it may be stored; empty when there is none."""
        ...

    @property
    def takes_more_turns(self) -> bool:
        """There is a session that a further turn can continue."""
        ...

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        """Takes any bytes in any pieces; what cannot be understood is passed over."""
        ...

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome: ...

    def message(self, text: str) -> bytes | None:
        """What to write to its stdin to hand it a message; None when it takes none while it works."""
        ...

    def replies(self) -> bytes:
        """What must be written to its stdin after what was fed; asked after each feed, and each reply given once."""
        ...


class NoProtocol:
    """What there is to read of a program that only prints and ends."""

    result_seen: bool = False
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
        """The file that is started; None when it is not there, or when every system has it."""
        ...

    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether the program is there; that it runs is found out apart, because that takes time."""
        ...

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation: ...

    def reading(self, turn: AgentTurn) -> AgentReading: ...


def users_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own environment and logins, without what belongs to Delegate or to a session around it."""
    return {name: value for name, value in environ.items() if name not in OWN_SECRETS | OUTER_SESSION | OUTER_TASK}


def agent_environment(environ: Mapping[str, str], assignment: Assignment) -> dict[str, str]:
    kept = users_environment(environ)
    return {**kept, "DELEGATE_TASK_ID": assignment.task_id, ATTEMPT_VARIABLE: assignment.attempt_id}


def find_program(command: str, environ: Mapping[str, str]) -> str | None:
    """Where a program is: a name is looked for on PATH, a path is taken as it is."""
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    # The agent starts in the task's directory, where a relative path would name another program.
    return os.path.abspath(found) if found else None


def prompt_text(turn: AgentTurn) -> str:
    """What to say. In place, a later attempt is told about the one before, whose traces it meets in the directory; in
    a workspace the words of the turn tell that by themselves, and a new session hears whom it can ask."""
    assignment = turn.assignment
    if turn.ask_endpoint is not None and turn.workspace is not None and turn.session is None:
        return turn.text + ASK_INSTRUCTIONS
    is_first = turn.session is None and assignment.number <= 1
    if is_first or assignment.mode is not Mode.IN_PLACE or turn.text != assignment.prompt:
        return turn.text
    return INTERRUPTED + turn.text


def exit_code(exit: Exit) -> int | None:
    """The exit code as a shell would tell it."""
    return SIGNAL_EXIT_BASE + exit.signal if exit.signal is not None else exit.code


def describe_exit(exit: Exit) -> str:
    if exit.signal is None:
        return f"ended with exit code {exit.code}"
    try:
        return f"was killed by {signal.Signals(exit.signal).name}"
    except ValueError:
        return f"was killed by signal {exit.signal}"


def verdict_if_stopped(ending: Ending, timeout: timedelta) -> RunVerdict | None:
    """The verdict when the runner ended the agent for a reason that no result can outweigh."""
    if ending is Ending.TIMEOUT:
        message = f"it was stopped because its time of {_format_duration(timeout)} was over"
        return RunVerdict(state=AttemptState.FAILED, reason=Reason.TIMEOUT, message=message)
    return STOPS.get(ending)


def session_of(opened: str | None, resumed: str | None, *, is_missing: bool) -> str | None:
    """The session of a run: until it has opened one, the one that it is to resume, if that is there."""
    return opened or (None if is_missing else resumed)


def failure_verdict(reason: Reason, message: str) -> RunVerdict:
    return RunVerdict(state=AttemptState.FAILED, reason=reason, message=message)


def no_result_verdict(agent: str, exit: Exit, last_line: str) -> RunVerdict:
    reason = Reason.NOT_INSTALLED if exit.code == NOT_FOUND else Reason.CRASHED
    return failure_verdict(reason, with_detail(f"{agent} {describe_exit(exit)}, without a result", last_line))


def with_detail(sentence: str, detail: str) -> str:
    return f"{sentence}: {excerpt(detail)}" if detail.strip() else sentence


def outcome_of(reading: AgentReading, verdict: RunVerdict, exit: Exit) -> Outcome:
    return Outcome(
        state=verdict.state,
        reason=verdict.reason,
        message=verdict.message,
        # The runner's own signal that ended a lingering process is no part of a good end.
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
