"""Claude Code: the real command line program, spoken to through stream-json on stdin and stdout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from delegate.model import AgentName
from delegate.runner.agents.base import Invocation, agent_environment
from delegate.runner.agents.claude_reading import SESSION_ID, ClaudeReading, user_message
from delegate.wire import Assignment

STREAMING = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
BYPASS = "bypassPermissions"
INTERRUPTED = (
    "An earlier attempt at this request was interrupted before it had ended. Look at the state of the working "
    "directory first, keep what is good, and carry on from there. The request was:\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claude:
    command: str  # a name on PATH, or a path
    is_root: bool
    name: AgentName = AgentName.CLAUDE

    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether the program is there; whether it is logged in shows when it runs."""
        return self._program(environ) is not None

    def invocation(self, assignment: Assignment, environ: Mapping[str, str]) -> Invocation:
        env = agent_environment(environ, assignment)
        mode = assignment.permission_mode or BYPASS
        if self.is_root and mode == BYPASS:
            # Claude Code refuses to skip permissions as root unless it is told that it runs in a sandbox. A machine
            # whose daily user is root is nearly always a container, but we cannot know: what we pass on is the user's
            # decision to run agents unattended as root. IS_SANDBOX=0 in the runner's environment takes it back; other
            # spellings of yes are not understood by the program.
            env["IS_SANDBOX"] = "0" if env.get("IS_SANDBOX") == "0" else "1"
        return Invocation(
            argv=(self._program(environ) or self.command, *STREAMING, *_options(assignment, mode)),
            env=env,
            opening=user_message(_request(assignment)),
            keep_input_open=True,
        )

    def reading(self, assignment: Assignment) -> ClaudeReading:
        return ClaudeReading(assignment)

    def _program(self, environ: Mapping[str, str]) -> str | None:
        found = shutil.which(self.command, path=environ.get("PATH", os.defpath))
        # The agent starts in the task's directory, where a relative path would name another program.
        return os.path.abspath(found) if found else None


def _options(assignment: Assignment, mode: str) -> list[str]:
    options = ["--dangerously-skip-permissions"] if mode == BYPASS else ["--permission-mode", mode]
    valued = {
        "--model": assignment.model,
        "--effort": assignment.effort,
        "--max-turns": assignment.max_turns,
        "--max-budget-usd": assignment.budget_usd,
        "--resume": _session(assignment),
    }
    for option, value in valued.items():
        if value is not None:
            options += [option, str(value)]
    return options


def _session(assignment: Assignment) -> str | None:
    session = assignment.resume_session
    return session if session is not None and SESSION_ID.fullmatch(session) else None


def _request(assignment: Assignment) -> str:
    """The prompt; a later attempt is told about the one before, whose traces it will meet in the directory."""
    if assignment.resume_session is None and assignment.number <= 1:
        return assignment.prompt
    return INTERRUPTED + assignment.prompt
