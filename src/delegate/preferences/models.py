"""Maps model names to agents and display names, and efforts to each model's thinking options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from delegate.model import AgentName

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
AGENT_EFFORTS = {AgentName.CLAUDE: EFFORTS[1:], AgentName.CODEX: EFFORTS[:-1]}
AGENT_TITLES = {AgentName.CLAUDE: "Claude", AgentName.CODEX: "Codex"}
CLAUDE_NAMES = "opusplan|opus|sonnet|haiku|fable|mythos"
# Including the names that clouds and gateways use, as in us.anthropic.claude-opus-4-6-v1 or openai/gpt-5.5.
CLAUDE_MODEL = re.compile(rf"(?:.*[./])?claude-.+|claude|(?:{CLAUDE_NAMES})(?:[-\[].*)?", re.I)
CODEX_MODEL = re.compile(r"(?:.*/)?(?:gpt-?\d.*|gpt-.+|codex-.+|o\d+(?:-.+)?)", re.I)
SHORT_CLAUDE_NAME = re.compile(rf"(?:{CLAUDE_NAMES})-\d.*", re.I)
# A version: the first two short numbers of a name, as in claude-sonnet-4-5-20250929 or claude-3-7-sonnet.
VERSION = re.compile(r"(?<=-)(\d{1,2})(?:[-.](\d{1,2}))?(?!\w)")
# What Claude Code sends for an effort, as its requests show: models from 4.7 on get every effort, 4.6 gets high for
# xhigh, earlier models get a number of tokens, and those before 4 get nothing. Models that support efforts ignore a
# number of tokens; the others get 31,999 by default.
SUPPORTS_XHIGH = (4, 7)
SUPPORTS_EFFORT = (4, 6)
SUPPORTS_THINKING = (4, 0)
THINKING_TOKENS = {"low": 4_000, "medium": 10_000, "high": 31_999, "xhigh": 31_999, "max": 31_999}
# A name for the newest model of its kind, which may still be older than SUPPORTS_EFFORT.
AMBIGUOUS_NAMES = frozenset({"haiku"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How an agent's thinking is set: by an effort for its own option, by a number of tokens, or not at all."""

    effort: str | None = None
    tokens: int | None = None


def family(model: str) -> AgentName | None:
    """Return the agent that a model belongs to; None when the name does not say."""
    if CLAUDE_MODEL.fullmatch(model):
        return AgentName.CLAUDE
    return AgentName.CODEX if CODEX_MODEL.fullmatch(model) else None


def short_model_name(model: str) -> str:
    """Return the display name: claude-sonnet-4-5 is shown as sonnet-4-5."""
    short = model.removeprefix("claude-")
    return short if SHORT_CLAUDE_NAME.fullmatch(short) else model


def full_model_name(model: str) -> str:
    """Return the name for the agent. Accepts display names; leaves names of unknown families unchanged."""
    known = model if family(model) is None else model.lower()
    return f"claude-{known}" if SHORT_CLAUDE_NAME.fullmatch(known) else known


def effort_problem(agent: str, model: str | None, effort: str) -> str | None:
    """Return why this effort is not supported, as far as it is known in advance."""
    if agent == AgentName.SHELL:
        return f"effort {effort} is not supported for shell tasks"
    if agent not in AGENT_EFFORTS:
        return f"effort {effort} is not supported for {agent}"
    known = AGENT_EFFORTS[AgentName(agent)]
    if effort not in known:
        return f"effort {effort} is not supported by {AGENT_TITLES[AgentName(agent)]}; use one of {', '.join(known)}"
    if agent == AgentName.CLAUDE and _is_older_than(model, SUPPORTS_THINKING):
        return f"effort {effort} is not supported by model {short_model_name(model or '')}, which has no thinking mode"
    if agent == AgentName.CLAUDE and effort == "xhigh" and _is_older_than(model, SUPPORTS_XHIGH):
        name = short_model_name(model or "")
        return f"effort xhigh is not supported by model {name}; use one of low, medium, high, max"
    return None


def thinking_of(agent: str, model: str | None, effort: str | None) -> Thinking:
    """Return how to set the agent's thinking; nothing when `effort_problem` reports a problem."""
    if effort is None or effort_problem(agent, model, effort) is not None:
        return Thinking()
    if agent == AgentName.CLAUDE and _is_older_than(model, SUPPORTS_EFFORT):
        return Thinking(tokens=THINKING_TOKENS[effort])
    if agent == AgentName.CLAUDE and model in AMBIGUOUS_NAMES:
        return Thinking(effort=effort, tokens=THINKING_TOKENS[effort])
    return Thinking(effort=effort)


def _is_older_than(model: str | None, version: tuple[int, int]) -> bool:
    """Whether a Claude model's name gives an older version; a name without a number means the newest."""
    if model is None or family(model) is not AgentName.CLAUDE:
        return False
    found = VERSION.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) < version
