"""The agents a runner can start."""

from __future__ import annotations

import os

from delegate.config import Settings
from delegate.model import AgentName
from delegate.runner.agents.base import Agent, Ending, Fact, Invocation, Reading, agent_environment
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.shell import Shell

__all__ = ["Agent", "Ending", "Fact", "Invocation", "Reading", "agent_environment", "agents"]


def agents(settings: Settings) -> dict[str, Agent]:
    return {
        AgentName.CLAUDE: Claude(command=settings.claude_command, is_root=os.geteuid() == 0),
        AgentName.SHELL: Shell(),
    }
