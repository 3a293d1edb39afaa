"""Rewrites hints that name shell commands into hints that name MCP tools and their parameters."""

from __future__ import annotations

import re
from typing import TypeVar

from delegate.wire.basics import Wire

# Replaced in this order: a longer command comes before its prefix.
TOOLS = {
    "`delegate status --tree`": "`TaskStatus` of each task in `dependsOn`",
    "`delegate status": "`TaskStatus",
    "`delegate logs --raw": "`TaskLogs",
    "`delegate logs": "`TaskLogs",
    "`delegate cancel": "`CancelTask",
    "`delegate retry": "`RetryTask",
    "`delegate resume": "`ResumeTask",
    "`delegate answer": "`AnswerTask",
    "`delegate schedule list": "`ListSchedules",
    "`delegate schedule get": "`GetSchedule",
    "`delegate schedule cancel --cancel-tasks ": "`CancelSchedule` with `cancelTasks` for `",
    "`--on-dependency-failure run`": '`"onDependencyFailure": "run"`',
    "`--context`": "`additionalContext`",
    "`--agent`": "`agent`",
    "`--model`": "`model`",
    "`--timeout`": "`timeout`",
    "`--max-budget-usd`": "`maxBudgetUsd`",
    "`--repository": "`repository",
    "`--worktree`": "`worktree`",
    "`--pr`": "`pr`",
}
NO_TOOL = re.compile(r"`(?:delegate (?!mcp )|--)[^`]+`")
REWRITTEN_FIELDS = ("why", "advice", "message")  # our own texts; all other fields stay unchanged
W = TypeVar("W", bound=Wire)


def rewrite_for_agents(text: str) -> str:
    for command, tool in TOOLS.items():
        text = text.replace(command, tool)
    return NO_TOOL.sub(r"\g<0> (in a shell)", text)


def rewrite_view(view: W) -> W:
    """Rewrite the texts of a view that was written for the command line."""
    texts = {name: getattr(view, name) for name in REWRITTEN_FIELDS if name in type(view).model_fields}
    return view.model_copy(update={name: rewrite_for_agents(text) for name, text in texts.items() if text})
