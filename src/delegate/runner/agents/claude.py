"""Runs Claude Code, with stream-json on stdin and stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from delegate.model import AgentName
from delegate.preferences.models import Thinking, thinking_of
from delegate.runner.agents.ask_tool import SERVER, TOOL, AskEndpoint
from delegate.runner.agents.base import AgentTurn, Invocation, agent_environment, find_program, prompt_text
from delegate.runner.agents.claude_reading import SESSION_ID, ClaudeReading, user_message

STREAMING = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
BYPASS = "bypassPermissions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claude:
    command: str  # a name on PATH, or a path
    is_root: bool
    name: str = AgentName.CLAUDE

    def program(self, environ: Mapping[str, str]) -> str | None:
        return find_program(self.command, environ)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return self.program(environ) is not None

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        env = agent_environment(environ, turn.assignment, turn.ask_endpoint)
        thinking = thinking_of(self.name, turn.assignment.model, turn.assignment.effort)
        if thinking.tokens is not None:
            env["MAX_THINKING_TOKENS"] = str(thinking.tokens)
        mode = turn.assignment.permission_mode or BYPASS
        if self.is_root and mode == BYPASS:
            allow_root(env)
        return Invocation(
            argv=(self.program(environ) or self.command, *STREAMING, *_options(turn, mode, thinking)),
            env=env,
            initial_input=user_message(prompt_text(turn)),
            keep_input_open=True,
            files={} if turn.ask_endpoint is None else {turn.ask_endpoint.file: _servers(turn.ask_endpoint)},
        )

    def reading(self, turn: AgentTurn) -> ClaudeReading:
        return ClaudeReading(turn)


def allow_root(env: dict[str, str]) -> None:
    """Claude Code refuses to skip permissions as root unless it is told that it runs in a sandbox.

    A machine used as root is nearly always a container, but we cannot know: we pass on the user's decision to run
    agents unattended as root. IS_SANDBOX=0 in the runner's environment reverts it. The program accepts no other
    values.
    """
    env["IS_SANDBOX"] = "0" if env.get("IS_SANDBOX") == "0" else "1"


def _options(turn: AgentTurn, mode: str, thinking: Thinking) -> list[str]:
    assignment = turn.assignment
    # Before the others: these options consume all arguments up to the next option.
    options = ["--mcp-config", str(turn.ask_endpoint.file)] if turn.ask_endpoint else []
    if turn.ask_endpoint and mode != BYPASS:
        options += ["--allowedTools", f"mcp__{SERVER}__{TOOL}"]
    options += ["--dangerously-skip-permissions"] if mode == BYPASS else ["--permission-mode", mode]
    valued = {
        "--model": assignment.model,
        "--effort": thinking.effort,
        "--max-turns": assignment.max_turns,
        "--max-budget-usd": assignment.budget_usd,
        "--resume": _session(turn),
    }
    for option, value in valued.items():
        if value is not None:
            options += [option, str(value)]
    return options


def _servers(ask_endpoint: AskEndpoint) -> str:
    """Adds a server to the user's own. If it is unreachable, claude reports that in its first event and continues."""
    headers = {"Authorization": f"Bearer {ask_endpoint.token}"}
    return json.dumps({"mcpServers": {SERVER: {"type": "http", "url": ask_endpoint.url, "headers": headers}}})


def _session(turn: AgentTurn) -> str | None:
    return turn.session if turn.session is not None and SESSION_ID.fullmatch(turn.session) else None
