"""Agents that speak the Agent Client Protocol on stdin and stdout: `acp:<command>`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from delegate.runner.agents.base import AgentTurn, Invocation, agent_environment, find_program
from delegate.runner.agents.claude import allow_root

if TYPE_CHECKING:
    from delegate.runner.agents.acp_reading import AcpReading

# Commands that every runner searches for; DELEGATE_ACP_AGENTS adds others.
KNOWN_COMMANDS = ("claude-agent-acp", "codex-acp", "opencode acp", "gemini --experimental-acp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acp:
    command: str  # a program and its arguments, separated by spaces
    is_root: bool

    @property
    def name(self) -> str:
        return f"acp:{self.command}"

    @property
    def short_name(self) -> str:
        return Path(self.command.split()[0]).name

    @property
    def is_known(self) -> bool:
        return self.command in KNOWN_COMMANDS

    def program(self, environ: Mapping[str, str]) -> str | None:
        return find_program(str(Path(self.command.split()[0]).expanduser()), environ)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return self.program(environ) is not None

    def argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        first, *rest = self.command.split()
        return (self.program(environ) or first, *rest)

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        import delegate.runner.agents.acp_messages as acp_words  # noqa: PLC0415
        import delegate.runner.agents.acp_reading as acp_reading  # noqa: PLC0415 - a third of a second

        env = agent_environment(environ, turn.assignment, turn.ask_endpoint)
        if self.is_root:
            allow_root(env)  # an adapter for claude allows every mode, and would not start otherwise
        initial_input = acp_words.initialize(acp_reading.FIRST_REQUEST_ID)
        return Invocation(argv=self.argv(environ), env=env, initial_input=initial_input, keep_input_open=True)

    def reading(self, turn: AgentTurn) -> AcpReading:
        from delegate.runner.agents.acp_reading import AcpReading  # noqa: PLC0415 - a third of a second

        directory = turn.workspace.tree if turn.workspace is not None else turn.assignment.working_directory
        return AcpReading(turn, self.short_name, str(directory or Path.cwd()))
