"""The names of models: whose they are, how they are shown, and what each can be told about how long to think."""

from __future__ import annotations

import re
from dataclasses import dataclass

from delegate.model import AgentName

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
AGENT_EFFORTS = {AgentName.CLAUDE: EFFORTS[1:], AgentName.CODEX: EFFORTS[:-1]}
AGENT_TITLES = {AgentName.CLAUDE: "Claude", AgentName.CODEX: "Codex"}
CLAUDE_NAMES = "opusplan|opus|sonnet|haiku|fable|mythos"
# With the names that clouds and gateways give them, as in us.anthropic.claude-opus-4-6-v1 or openai/gpt-5.5.
CLAUDE_MODEL = re.compile(rf"(?:.*[./])?claude-.+|claude|(?:{CLAUDE_NAMES})(?:[-\[].*)?", re.I)
CODEX_MODEL = re.compile(r"(?:.*/)?(?:gpt-?\d.*|gpt-.+|codex-.+|o\d+(?:-.+)?)", re.I)
SHORT_CLAUDE_NAME = re.compile(rf"(?:{CLAUDE_NAMES})-\d.*", re.I)
# A version: the first two short numbers of a name, as in claude-sonnet-4-5-20250929 or claude-3-7-sonnet.
VERSION = re.compile(r"(?<=-)(\d{1,2})(?:[-.](\d{1,2}))?(?!\w)")
# What Claude Code makes of an effort, as its requests show: models from 4.7 on are sent every one, those of 4.6 are
# sent high for xhigh, earlier ones get a number of tokens and those before 4 nothing at all. A number of tokens is
# passed over for models that know efforts, and 31,999 is what the others get unasked.
SUPPORTS_XHIGH = (4, 7)
SUPPORTS_EFFORT = (4, 6)
SUPPORTS_THINKING = (4, 0)
THINKING_TOKENS = {"low": 4_000, "medium": 10_000, "high": 31_999, "xhigh": 31_999, "max": 31_999}
AMBIGUOUS_NAMES = frozenset(
    {"haiku"}
)  # a name for the newest of its kind, which is older than the newest of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How an agent is told to think: by a word for its own switch, by a number of tokens, or not at all."""

    effort: str | None = None
    tokens: int | None = None


def family(model: str) -> AgentName | None:
    """The agent that a model belongs to; None: the name tells nothing."""
    if CLAUDE_MODEL.fullmatch(model):
        return AgentName.CLAUDE
    return AgentName.CODEX if CODEX_MODEL.fullmatch(model) else None


def short_model_name(model: str) -> str:
    """As people say it: claude-sonnet-4-5 is shown as sonnet-4-5."""
    short = model.removeprefix("claude-")
    return short if SHORT_CLAUDE_NAME.fullmatch(short) else model


def full_model_name(model: str) -> str:
    """As the agent takes it: what we show is understood, too. A name of no known family is passed on as it is."""
    known = model if family(model) is None else model.lower()
    return f"claude-{known}" if SHORT_CLAUDE_NAME.fullmatch(known) else known


def effort_problem(agent: str, model: str | None, effort: str) -> str | None:
    """Why this effort cannot be had, as far as it is known beforehand."""
    if agent == AgentName.SHELL:
        return f"effort {effort} cannot be had: a shell command does not think"
    if agent not in AGENT_EFFORTS:
        return f"effort {effort} cannot be had: {agent} has no switch for it that we know of"
    known = AGENT_EFFORTS[AgentName(agent)]
    if effort not in known:
        return f"effort {effort} is not known to {AGENT_TITLES[AgentName(agent)]}; it knows {', '.join(known)}"
    if agent == AgentName.CLAUDE and _is_older_than(model, SUPPORTS_THINKING):
        return f"effort {effort} cannot be had: model {short_model_name(model or '')} does not think"
    if agent == AgentName.CLAUDE and effort == "xhigh" and _is_older_than(model, SUPPORTS_XHIGH):
        return f"effort xhigh is not known to model {short_model_name(model or '')}; it knows low, medium, high, max"
    return None


def thinking_of(agent: str, model: str | None, effort: str | None) -> Thinking:
    """How to tell the agent; nothing is told that `effort_problem` has something against."""
    if effort is None or effort_problem(agent, model, effort) is not None:
        return Thinking()
    if agent == AgentName.CLAUDE and _is_older_than(model, SUPPORTS_EFFORT):
        return Thinking(tokens=THINKING_TOKENS[effort])
    if agent == AgentName.CLAUDE and model in AMBIGUOUS_NAMES:
        return Thinking(effort=effort, tokens=THINKING_TOKENS[effort])
    return Thinking(effort=effort)


def _is_older_than(model: str | None, version: tuple[int, int]) -> bool:
    """Only when its name says so: without a number it is the newest of its kind, and not only Claude has versions."""
    if model is None or family(model) is not AgentName.CLAUDE:
        return False
    found = VERSION.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) < version
