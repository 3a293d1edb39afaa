from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delegate.config.settings import Settings
from delegate.errors import InvalidField, PreferenceConflict, UnknownAgent
from delegate.intake.submit import Request, resolve_preferences
from delegate.intake.submit import build_task as accept
from delegate.model import PROMPT_MAX, AgentName, Choice, Field, Issue, Priority, Source, Task, TaskId
from delegate.states import TaskState

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
REQUEST = Request(prompt="true", agent="shell", working_directory="/srv", machine="desk")


def accepted(request: Request, settings: Settings, now: datetime) -> Task:
    return accept(request, resolve_preferences(request, settings), settings, now)


def test_the_settings_decide_what_the_request_leaves_out() -> None:
    settings = Settings(task_timeout_ms=90_000, max_output_buffer=4096)

    task = accepted(REQUEST, settings, NOW)

    assert (task.state, task.agent, task.priority) == (TaskState.QUEUED, AgentName.SHELL, Priority.P2)
    assert (task.limits.timeout, task.limits.max_output) == (timedelta(seconds=90), 4096)
    assert (task.limits.max_budget_usd, task.limits.max_turns) == (None, None)
    assert (task.created_at, task.lane, task.fence, task.attempts) == (NOW, "desk\tshell\t", 0, 0)


def test_every_task_gets_an_id_of_its_own() -> None:
    ids = {accepted(REQUEST, Settings(), NOW).id for _ in range(100)}

    assert len(ids) == 100
    assert all(task_id.startswith("task-") for task_id in ids)


@pytest.mark.parametrize("prompt", ["", " \n\t", "\u200b\u2060\ufeff", " \u200d \u200b\n"])
def test_a_prompt_that_says_nothing_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidField, match="prompt: is empty") as caught:
        accepted(replace(REQUEST, prompt=prompt), Settings(), NOW)

    assert caught.value.field == "prompt"


def test_a_prompt_has_at_most_a_quarter_of_a_million_characters() -> None:
    longest = "ä" * PROMPT_MAX

    assert accepted(replace(REQUEST, prompt=longest), Settings(), NOW).prompt == longest
    with pytest.raises(InvalidField, match="has 250,001 characters; the limit is 250,000"):
        accepted(replace(REQUEST, prompt=longest + "!"), Settings(), NOW)


def test_a_prompt_with_a_nul_is_refused_before_a_program_has_to() -> None:
    with pytest.raises(InvalidField, match="NUL"):
        accepted(replace(REQUEST, prompt="a\0b"), Settings(), NOW)


@pytest.mark.parametrize("prompt", ["--help", "-", "'; rm -rf /", "a\nb", "🜚", "\x1b[31m"])
def test_a_prompt_is_kept_as_it_came(prompt: str) -> None:
    assert accepted(replace(REQUEST, prompt=prompt), Settings(), NOW).prompt == prompt


@pytest.mark.parametrize("agent", ["", "codex2", "Shell", "shell ", "claude\n"])
def test_an_unknown_agent_is_refused_with_the_known_ones(agent: str) -> None:
    with pytest.raises(UnknownAgent) as caught:
        accepted(replace(REQUEST, agent=agent), Settings(), NOW)

    assert caught.value.hint == "known agents: claude, codex, shell, acp:<command>"


@pytest.mark.parametrize("directory", ["", "srv", "./srv", "~/srv", "../etc"])
def test_a_directory_must_be_absolute(directory: str) -> None:
    with pytest.raises(InvalidField, match="workingDirectory: must be an absolute path"):
        accepted(replace(REQUEST, working_directory=directory), Settings(), NOW)


@pytest.mark.parametrize("agent", ["shell", "codex", "acp:gemini --acp"])
def test_the_relays_default_agent_applies_unless_another_is_requested(agent: str) -> None:
    settings = Settings(default_agent=agent)
    plain = replace(REQUEST, agent=None)

    task = accepted(plain, settings, NOW)

    assert task.agent == agent
    assert Choice(field=Field.AGENT, value=agent, source=Source.RELAY) in task.choices
    assert accepted(replace(plain, agent="claude"), settings, NOW).agent == "claude"
    assert accepted(replace(plain, labels=("executor/claude",)), settings, NOW).agent == "claude"


def test_the_text_of_an_issue_does_not_become_a_command_by_a_default() -> None:
    asked = replace(REQUEST, agent=None, issue=Issue(key="PER-44", title="rm -rf ~"))

    assert accepted(asked, Settings(default_agent="shell"), NOW).agent == "claude"
    assert accepted(asked, Settings(default_agent="codex"), NOW).agent == "codex"


def test_an_agent_that_was_not_chosen_is_shown_as_the_default() -> None:
    task = accepted(replace(REQUEST, agent=None), Settings(), NOW)

    assert Choice(field=Field.AGENT, value="claude", source=Source.DEFAULT) in task.choices


def test_what_is_continued_is_waited_for_once() -> None:
    one, two = TaskId("task-1"), TaskId("task-2")

    task = accepted(replace(REQUEST, depends_on=(one, two, one), continue_from=one), Settings(), NOW)

    assert (task.depends_on, task.continue_from) == ((one, two), one)


def test_a_task_waits_for_at_most_a_hundred_others() -> None:
    hundred = tuple(TaskId(f"task-{number}") for number in range(100))

    assert len(accepted(replace(REQUEST, depends_on=hundred), Settings(), NOW).depends_on) == 100
    with pytest.raises(InvalidField, match="dependsOn: has 101 tasks including continueFrom; the limit is 100"):
        accepted(replace(REQUEST, depends_on=hundred, continue_from=TaskId("task-x")), Settings(), NOW)


def test_the_callers_default_agent_beats_the_relays_and_yields_to_every_request() -> None:
    settings, plain = Settings(default_agent="shell"), replace(REQUEST, agent=None, default_agent="claude")

    task = accepted(plain, settings, NOW)

    assert Choice(field=Field.AGENT, value="claude", source=Source.CALLER) in task.choices
    assert accepted(replace(plain, labels=("executor/codex",)), settings, NOW).agent == "codex"
    assert accepted(replace(plain, model="gpt-5.5"), settings, NOW).agent == "codex"
    assert accepted(replace(plain, agent="shell"), Settings(), NOW).agent == "shell"
    assert accepted(replace(plain, default_agent="shell"), Settings(), NOW).agent == "shell"
    with pytest.raises(UnknownAgent):
        accepted(replace(plain, default_agent="nobody"), settings, NOW)


def test_the_text_of_an_issue_does_not_become_a_command_by_a_default_of_the_caller() -> None:
    asked = replace(REQUEST, agent=None, default_agent="shell", issue=Issue(key="PER-44", title="rm -rf ~"))

    assert accepted(asked, Settings(default_agent="codex"), NOW).agent == "codex"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"permission_mode": "plan"}, "permission mode plan"),
        ({"max_turns": 3}, "a limit of 3 turns"),
        ({"max_budget_usd": 0.5}, "a limit of 0.5 USD"),
    ],
)
def test_what_would_hold_an_agent_back_is_refused_for_a_command(fields: dict[str, Any], problem: str) -> None:
    message = f"{problem} is not supported for shell tasks"

    with pytest.raises(PreferenceConflict, match=message):
        accepted(replace(REQUEST, **fields), Settings(), NOW)
    with pytest.raises(PreferenceConflict, match=message):
        accepted(replace(REQUEST, agent=None, **fields), Settings(default_agent="shell"), NOW)
    assert accepted(replace(REQUEST, agent="claude", **fields), Settings(), NOW).agent == "claude"
