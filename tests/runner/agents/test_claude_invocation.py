from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from delegate.config.settings import Settings
from delegate.model import AgentName, is_agent
from delegate.runner.agents import AgentTurn, Invocation, Roots, agents
from delegate.runner.agents.claude import Claude

NewTurn = Callable[..., AgentTurn]
STREAMING = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "claude"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def invocation(program: Path, new_turn: NewTurn) -> Callable[..., Invocation]:
    def make(*, is_root: bool = False, environ: dict[str, str] | None = None, **fields: object) -> Invocation:
        claude = Claude(command="claude", is_root=is_root)
        return claude.invocation(new_turn(**fields), {"PATH": str(program.parent), **(environ or {})})

    return make


def request_of(invocation: Invocation) -> str:
    (line,) = invocation.initial_input.splitlines()
    text: str = json.loads(line)["message"]["content"][0]["text"]
    return text


def test_it_is_found_on_path_and_spoken_to_by_stream_json(program: Path, invocation: Callable[..., Invocation]) -> None:
    made = invocation()

    assert list(made.argv) == [str(program), *STREAMING, "--dangerously-skip-permissions"]
    assert made.keep_input_open


def test_the_preferences_of_a_task_become_options(invocation: Callable[..., Invocation]) -> None:
    made = invocation(
        model="claude-sonnet-4-6",
        effort="high",
        permission_mode="acceptEdits",
        max_turns=20,
        budget_usd=1.5,
        session="5e5f3def-b7e4",
    )

    options = made.argv[1 + len(STREAMING) :]
    assert list(options) == [
        *("--permission-mode", "acceptEdits"),
        *("--model", "claude-sonnet-4-6"),
        *("--effort", "high"),
        *("--max-turns", "20"),
        *("--max-budget-usd", "1.5"),
        *("--resume", "5e5f3def-b7e4"),
    ]


@pytest.mark.parametrize("prompt", ["--help", "x" * 250_000, "zwei\nZeilen\u2028ä€😀\x00", "\ud800"])
def test_the_prompt_goes_through_stdin_as_one_line_and_never_into_the_arguments(prompt: str, new_turn: NewTurn) -> None:
    made = Claude(command="claude", is_root=False).invocation(new_turn(text=prompt), {"PATH": "/nowhere"})

    assert request_of(made) == prompt
    assert prompt not in made.argv


def test_a_resumed_attempt_reads_what_happened_and_is_asked_again(invocation: Callable[..., Invocation]) -> None:
    request = request_of(invocation(session="5e5f3def-b7e4", prompt="Fix calc.add"))

    assert request.startswith("An earlier attempt at this request was interrupted")
    assert "state of the working directory" in request
    assert request.endswith("\n\nFix calc.add")


def test_a_later_attempt_without_a_session_learns_it_as_well(invocation: Callable[..., Invocation]) -> None:
    assert request_of(invocation(number=2)).startswith("An earlier attempt")
    assert request_of(invocation(number=1)) == "Do the task."


def test_a_further_turn_is_said_as_it_is(invocation: Callable[..., Invocation]) -> None:
    assert request_of(invocation(number=2, session="5e5f3def-b7e4", text="And the tests?")) == "And the tests?"


def test_in_a_workspace_the_words_are_already_right(invocation: Callable[..., Invocation], tmp_path: Path) -> None:
    roots = Roots(tree=tmp_path / "tree", git_dir=tmp_path / "git")

    made = invocation(number=2, session="5e5f3def-b7e4", mode="worktree", workspace=roots)

    assert request_of(made) == "Do the task."


@pytest.mark.parametrize(
    ("model", "effort", "option", "tokens"),
    [
        (None, "high", "high", None),
        ("sonnet", "max", "max", None),
        ("claude-opus-4-6", "low", "low", None),
        ("claude-sonnet-4-6", "max", "max", None),
        ("claude-sonnet-4-5", "low", None, "4000"),
        ("claude-sonnet-4-5-20250929", "medium", None, "10000"),
        ("claude-opus-4-20250514", "high", None, "31999"),
        ("claude-haiku-4-5", "max", None, "31999"),
        ("claude-sonnet-4-5", None, None, None),
    ],
)
def test_effort_becomes_the_switch_that_the_model_knows(
    model: str | None,
    effort: str | None,
    option: str | None,
    tokens: str | None,
    invocation: Callable[..., Invocation],
) -> None:
    made = invocation(model=model, effort=effort)

    assert (made.argv[made.argv.index("--effort") + 1] if "--effort" in made.argv else None) == option
    assert made.env.get("MAX_THINKING_TOKENS") == tokens


@pytest.mark.parametrize("session", ["--version", "-c", "a b", "../x", ""])
def test_a_session_id_that_is_none_is_not_passed_on(session: str, invocation: Callable[..., Invocation]) -> None:
    assert "--resume" not in invocation(session=session).argv


def test_the_environment_is_the_users_without_delegates_secrets_and_outer_sessions(
    program: Path, invocation: Callable[..., Invocation]
) -> None:
    kept = {"HOME": "/home/u", "ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_OAUTH_TOKEN": "t", "CLAUDE_CODE_MAX_RETRIES": "2"}
    removed = {
        "DELEGATE_TOKEN": "s",
        "DELEGATE_DATABASE_URL": "s",
        "DELEGATE_SECRET_KEY": "s",
        "DELEGATE_FAILPOINTS": "s",
        "DELEGATE_CONTEXT": "of a task around it",
        "CLAUDECODE": "1",
        "CLAUDE_CODE_ENTRYPOINT": "cli",
        "CLAUDE_CODE_SSE_PORT": "1",
        "CLAUDE_CODE_SESSION_ID": "x",
        "CLAUDE_CODE_CHILD_SESSION": "1",
    }

    made = invocation(environ={**kept, **removed, "DELEGATE_TASK_ID": "task-outer"})

    assert made.env == {
        "PATH": str(program.parent),
        **kept,
        "DELEGATE_TASK_ID": "task-0123456789",
        "DELEGATE_ATTEMPT_ID": "att-0123456789abcdef",
    }


@pytest.mark.parametrize(
    ("is_root", "mode", "given", "expected"),
    [
        (True, None, {}, "1"),
        (True, "bypassPermissions", {}, "1"),
        (True, None, {"IS_SANDBOX": "0"}, "0"),
        (True, "acceptEdits", {}, None),
        (False, None, {}, None),
    ],
)
def test_root_may_skip_permissions_unless_the_user_objects(
    is_root: bool, mode: str | None, given: dict[str, str], expected: str | None, invocation: Callable[..., Invocation]
) -> None:
    made = invocation(is_root=is_root, permission_mode=mode, environ=given)

    assert made.env.get("IS_SANDBOX") == expected


def test_a_relative_place_on_path_means_the_runners_directory_not_the_tasks(
    program: Path, monkeypatch: pytest.MonkeyPatch, new_turn: NewTurn
) -> None:
    monkeypatch.chdir(program.parent.parent)

    made = Claude(command="claude", is_root=False).invocation(new_turn(), {"PATH": "bin"})

    assert made.argv[0] == str(program)


def test_probing_finds_a_name_on_path_or_a_path(program: Path) -> None:
    path = {"PATH": str(program.parent)}

    assert Claude(command="claude", is_root=False).is_available(path)
    assert Claude(command=str(program), is_root=False).is_available({"PATH": "/nowhere"})


def test_probing_tells_what_is_not_there_or_cannot_run(program: Path) -> None:
    program.chmod(0o644)

    for command, path in (("claude", str(program.parent)), (str(program), "/bin"), ("claude", "/nowhere")):
        assert not Claude(command=command, is_root=False).is_available({"PATH": path})


def test_every_agent_of_the_trade_is_there() -> None:
    known = agents(Settings(claude_command="my-claude", acp_agents=("~/bin/my-agent --acp",)))

    assert {name: agent.name for name, agent in known.items()} == {name: name for name in known}
    assert {*AgentName, "acp:opencode acp", "acp:~/bin/my-agent --acp"} <= set(known)
    assert all(is_agent(name) for name in known)
