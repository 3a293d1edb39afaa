"""The agents a runner can start."""

from __future__ import annotations

import os

from delegate.config.settings import Settings
from delegate.runner.agents.acp import KNOWN_COMMANDS, Acp
from delegate.runner.agents.base import (
    Agent,
    AgentReading,
    AgentTurn,
    Ending,
    Fact,
    Invocation,
    Roots,
    agent_environment,
)
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.shell import Shell

__all__ = ["Agent", "AgentReading", "AgentTurn", "Ending", "Fact", "Invocation", "Roots", "agent_environment", "agents"]


def agents(settings: Settings) -> dict[str, Agent]:
    is_root = os.geteuid() == 0
    known: list[Agent] = [
        Claude(command=settings.claude_command, is_root=is_root),
        Codex(command=settings.codex_command),
        Shell(),
        *(Acp(command=command, is_root=is_root) for command in (*KNOWN_COMMANDS, *settings.acp_agents)),
    ]
    return {agent.name: agent for agent in known}
