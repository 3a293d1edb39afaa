from __future__ import annotations

import os
import platform
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.git import run_git
from tests.runner.agents.codex_turns import SESSION, codex_turn

from delegate.config.settings import Settings
from delegate.model import AgentName, Mode
from delegate.runner.agents import AgentTurn, Invocation, Roots, agents
from delegate.runner.agents.codex import Codex

UNATTENDED = ["--json", "--skip-git-repo-check", "-c", 'approval_policy="never"']
NATIVE = f"codex-{sys.platform}-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"


def program_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return program_at(tmp_path / "bin" / "codex")


def invocation(program: Path, turn: AgentTurn, **environ: str) -> Invocation:
    return Codex(command="codex").invocation(turn, {"PATH": str(program.parent), **environ})


def settings_of(made: Invocation) -> dict[str, Any]:
    """What codex reads from the arguments, by the rules of TOML."""
    pairs = [word for before, word in zip(made.argv, made.argv[1:], strict=False) if before == "-c"]
    return {name: tomllib.loads(f"value = {value}")["value"] for name, _, value in (p.partition("=") for p in pairs)}


def opened(made: dict[str, Any]) -> list[str]:
    files = made["permissions.delegate.filesystem"]
    return [place for place, access in files.items() if place.startswith("/") and access == "write"]


def closed(made: dict[str, Any]) -> set[str]:
    files = made["permissions.delegate.filesystem"]
    return {place for place, access in files.items() if place.startswith("/") and access == "read"}


def new_repository(place: Path) -> Path:
    place.mkdir()
    run_git("init", "-q", "-b", "main", cwd=place)
    run_git("commit", "-q", "--allow-empty", "-m", "one", cwd=place)
    return place


def test_a_turn_runs_unattended_in_the_sandbox_with_the_network(program: Path) -> None:
    made = invocation(program, codex_turn())

    assert list(made.argv[:6]) == [str(program), "exec", *UNATTENDED]
    assert made.argv[-1] == "-"
    assert settings_of(made) == {
        "approval_policy": "never",
        "sandbox_mode": "workspace-write",
        "sandbox_workspace_write.network_access": True,
        "sandbox_workspace_write.exclude_slash_tmp": True,
        "sandbox_workspace_write.writable_roots": [],
    }
    assert not made.keep_input_open


def test_the_preferences_of_a_task_become_settings(program: Path) -> None:
    made = settings_of(invocation(program, codex_turn(model="gpt-5.5", effort="high")))

    assert (made["model"], made["model_reasoning_effort"]) == ("gpt-5.5", "high")


@pytest.mark.parametrize(
    ("mode", "sandbox"),
    [
        (None, "workspace-write"),
        ("default", "workspace-write"),
        ("acceptEdits", "workspace-write"),
        ("dontAsk", "workspace-write"),
        ("plan", "read-only"),
        ("bypassPermissions", "danger-full-access"),
    ],
)
def test_the_permission_mode_chooses_the_sandbox(mode: str | None, sandbox: str, program: Path) -> None:
    made = settings_of(invocation(program, codex_turn(permission_mode=mode)))

    assert made["sandbox_mode"] == sandbox
    assert ("sandbox_workspace_write.writable_roots" in made) == (sandbox == "workspace-write")


@pytest.mark.parametrize("text", ["--help", "x" * 250_000, "zwei\nZeilen\u2028ä€😀\x00"])
def test_the_words_go_through_stdin_and_never_into_the_arguments(text: str, program: Path) -> None:
    made = invocation(program, codex_turn(text))

    assert made.initial_input == text.encode()
    assert text not in made.argv


def test_half_a_character_does_not_spoil_the_words_around_it(program: Path) -> None:
    turn = codex_turn("x")
    halved = AgentTurn(assignment=turn.assignment, text="before \ud800 after")

    assert invocation(program, halved).initial_input == b"before ? after"


def test_a_session_is_resumed(program: Path) -> None:
    made = invocation(program, codex_turn("Go on.", session=SESSION, mode=Mode.WORKTREE))

    assert list(made.argv[:4]) == [str(program), "exec", "resume", SESSION]
    assert made.initial_input == b"Go on."


@pytest.mark.parametrize("session", ["--last", "-c", "a b", "../x", "", "session_of_another_agent"])
def test_a_session_id_that_is_none_is_not_passed_on(session: str, program: Path) -> None:
    assert "resume" not in invocation(program, codex_turn(session=session)).argv


def test_a_later_attempt_in_place_learns_about_the_one_before(program: Path) -> None:
    made = invocation(program, codex_turn("Fix calc.add", number=2))

    assert made.initial_input.startswith(b"An earlier attempt at this request was interrupted")
    assert made.initial_input.endswith(b"\n\nFix calc.add")


def test_the_environment_is_the_users_without_an_outer_session(program: Path) -> None:
    made = invocation(
        program,
        codex_turn(),
        CODEX_HOME="/h/.codex",
        OPENAI_API_KEY="k",
        CODEX_THREAD_ID=SESSION,
        CODEX_SANDBOX="seatbelt",
        DELEGATE_TOKEN="s",
    )

    assert made.env == {
        "PATH": str(program.parent),
        "CODEX_HOME": "/h/.codex",
        "OPENAI_API_KEY": "k",
        "DELEGATE_TASK_ID": "task-0123456789",
        "DELEGATE_ATTEMPT_ID": "att-0123456789abcdef",
    }


# What git writes to.


def test_a_workspace_opens_its_repository_and_its_worktree_to_git(program: Path, tmp_path: Path) -> None:
    git_dir = tmp_path / 'we "quote" 😀' / "git"
    (git_dir / "worktrees" / "tree").mkdir(parents=True)
    (git_dir / "worktrees" / "astray").symlink_to("/etc")
    roots = Roots(tree=tmp_path / "tree", git_dir=git_dir)

    made = settings_of(invocation(program, codex_turn(workspace=roots, working_directory=str(tmp_path))))

    assert made["sandbox_workspace_write.writable_roots"] == [str(git_dir), str(git_dir / "worktrees" / "tree")]


def test_a_folder_of_worktrees_that_is_a_link_opens_nothing(program: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "x").mkdir(parents=True)
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "worktrees").symlink_to(tmp_path / "elsewhere")
    roots = Roots(tree=tmp_path / "tree", git_dir=tmp_path / "git")

    made = settings_of(invocation(program, codex_turn(workspace=roots)))

    assert made["sandbox_workspace_write.writable_roots"] == [str(tmp_path / "git")]


def test_in_place_the_checkouts_own_git_folder_is_opened(program: Path, tmp_path: Path) -> None:
    checkout = new_repository(tmp_path / "checkout")
    (checkout / "deep" / "down").mkdir(parents=True)

    made = settings_of(invocation(program, codex_turn(working_directory=str(checkout / "deep" / "down"))))

    git = checkout / ".git"
    assert made["sandbox_workspace_write.writable_roots"] == []
    assert opened(made) == [str(git)]
    assert closed(made) == {str(git / name) for name in ("config", "config.worktree", "hooks", "info")}


def test_in_a_linked_worktree_both_git_folders_are_opened(program: Path, tmp_path: Path) -> None:
    checkout = new_repository(tmp_path / "checkout")
    run_git("worktree", "add", "-q", tmp_path / "linked", cwd=checkout)

    made = settings_of(invocation(program, codex_turn(working_directory=str(tmp_path / "linked"))))

    git = checkout / ".git"
    assert opened(made) == [str(git), str(git / "worktrees" / "linked")]
    assert {str(git / "config"), str(git / "worktrees"), str(git / "worktrees" / "linked" / "commondir")} < closed(made)


@pytest.mark.parametrize("pointer", ["gitdir: /etc", "gitdir: ../nowhere", "", "gitdir: \x00"])
def test_a_pointer_to_something_other_than_a_repository_opens_nothing(
    pointer: str, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".git").write_text(pointer)

    made = settings_of(invocation(program, codex_turn(working_directory=str(tmp_path / "work"))))

    assert made["sandbox_workspace_write.writable_roots"] == []


def test_a_place_that_cannot_be_an_argument_is_left_out(program: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))

    made = settings_of(invocation(program, codex_turn(workspace=Roots(tree=odd, git_dir=odd))))

    assert made["sandbox_workspace_write.writable_roots"] == []


# Which program.


def test_it_is_found_by_its_setting() -> None:
    known = agents(Settings(codex_command="my-codex"))[AgentName.CODEX]

    assert isinstance(known, Codex)
    assert known.command == "my-codex"


def test_it_is_available_when_its_program_is_there(program: Path, tmp_path: Path) -> None:
    codex = Codex(command="codex")

    assert codex.is_available({"PATH": str(program.parent)})
    assert not codex.is_available({"PATH": str(tmp_path)})
    assert codex.program({"PATH": str(program.parent)}) == str(program)


@pytest.mark.parametrize(
    "place",
    [
        f"@openai/{NATIVE}",
        f"@openai/codex/node_modules/@openai/{NATIVE}",
        "@openai/codex",
    ],
)
def test_the_native_program_is_found_from_the_launcher(place: str, tmp_path: Path) -> None:
    modules = tmp_path / "lib" / "node_modules"
    launcher = program_at(modules / "@openai" / "codex" / "bin" / "codex.js")
    native = program_at(modules / place / "vendor" / "some-triple" / "bin" / "codex")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(launcher)

    assert Codex(command="codex").program({"PATH": str(tmp_path / "bin")}) == str(native)


def test_a_launcher_without_its_native_program_is_started_itself(tmp_path: Path) -> None:
    launcher = program_at(tmp_path / "@openai" / "codex" / "bin" / "codex.js")

    assert Codex(command=str(launcher)).program({}) == str(launcher)
