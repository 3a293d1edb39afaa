from __future__ import annotations

import pytest

from delegate.preferences.models import (
    EFFORTS,
    Thinking,
    effort_problem,
    full_model_name,
    short_model_name,
    thinking_of,
)


@pytest.mark.parametrize("model", [None, "opus", "sonnet[1m]", "claude-opus-4-7", "claude-fable-5", "my-proxy-2"])
@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
def test_a_newer_claude_gets_the_effort_by_its_own_option(model: str | None, effort: str) -> None:
    assert thinking_of("claude", model, effort) == Thinking(effort=effort)


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-sonnet-4-6", "us.anthropic.claude-opus-4-6-v1:0"])
def test_what_claude_code_would_quietly_lower_is_a_problem(model: str) -> None:
    assert thinking_of("claude", model, "max") == Thinking(effort="max")
    assert "use one of low, medium, high, max" in str(effort_problem("claude", model, "xhigh"))


@pytest.mark.parametrize(
    "model", ["claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "claude-opus-4-20250514", "claude-haiku-4-5"]
)
def test_an_older_claude_gets_the_effort_as_a_number_of_tokens(model: str) -> None:
    settings = [thinking_of("claude", model, effort) for effort in ("low", "medium", "high", "max")]

    assert settings == [Thinking(tokens=tokens) for tokens in (4_000, 10_000, 31_999, 31_999)]


def test_a_name_that_may_mean_an_older_model_gets_both_settings() -> None:
    assert thinking_of("claude", "haiku", "low") == Thinking(effort="low", tokens=4_000)


def test_codex_gets_the_effort_by_its_own_option() -> None:
    assert [thinking_of("codex", "gpt-5.5", effort).effort for effort in EFFORTS] == [*EFFORTS[:-1], None]


def test_without_an_effort_nothing_is_set() -> None:
    assert thinking_of("claude", "claude-sonnet-4-5", None) == Thinking()


@pytest.mark.parametrize(
    ("agent", "model", "effort"),
    [
        ("claude", None, "minimal"),
        ("claude", "claude-3-7-sonnet-latest", "low"),
        ("codex", None, "max"),
        ("shell", None, "low"),
        ("acp:opencode acp", None, "low"),
    ],
)
def test_what_cannot_be_had_is_said_beforehand(agent: str, model: str | None, effort: str) -> None:
    problem = effort_problem(agent, model, effort)

    assert problem is not None
    assert problem.startswith(f"effort {effort} ")
    assert thinking_of(agent, model, effort) == Thinking()


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("claude-sonnet-4-5", "sonnet-4-5"),
        ("claude-fable-5", "fable-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-latest"),
        ("gpt-5.5", "gpt-5.5"),
        ("opus", "opus"),
    ],
)
def test_what_is_shown_is_understood_again(full: str, short: str) -> None:
    assert short_model_name(full) == short
    assert full_model_name(short) == full
