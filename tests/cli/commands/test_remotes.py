"""Which remote a task uses when git's settings choose none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.scripted_relay import Run, ScriptedRelay, answer, body_of
from tests.fakes.world import PATIENCE
from tests.git import run_git

REMOTES = {"ours": "https://github.com/acme/shop.git", "theirs": "git@example.org:them/shop.git"}
TASK = answer({"taskId": "task-1f0c9a77e2"})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    run_git("init", "-q", "-b", "main", str(tmp_path), cwd=tmp_path)
    for name, url in REMOTES.items():
        run_git("remote", "add", name, url, cwd=tmp_path)
    return tmp_path


@pytest.mark.promise("P21")
def test_without_a_terminal_the_task_is_refused_with_the_candidates(
    run: Run, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, asked = run(TASK, "run", "--pr", "-w", str(checkout), "fix it")

    assert (code, asked) == (2, [])
    assert "has the remotes ours, theirs, and none is chosen" in capsys.readouterr().err


def test_a_task_in_place_needs_no_remote(run: Run, checkout: Path) -> None:
    code, asked = run(TASK, "run", "-w", str(checkout), "fix it")

    assert (code, body_of(asked)["workingDirectory"]) == (0, str(checkout))


@pytest.mark.parametrize("how", ["--pr", "--worktree"])
def test_a_relay_elsewhere_gets_the_remote_of_the_branch(run: Run, checkout: Path, how: str) -> None:
    run_git("config", "branch.main.remote", "theirs", cwd=checkout)

    code, asked = run(TASK, "run", how, "-w", str(checkout), "fix it")

    sent = body_of(asked)
    assert (code, sent["repository"]) == (0, REMOTES["theirs"])
    assert not {"workingDirectory", "machine"} & set(sent)


def test_a_password_in_the_remote_stays_on_the_machine(run: Run, checkout: Path) -> None:
    run_git("config", "branch.main.remote", "ours", cwd=checkout)
    run_git("remote", "set-url", "ours", "https://me:secret@github.com/acme/shop.git", cwd=checkout)

    _, asked = run(TASK, "run", "--pr", "-w", str(checkout), "fix it")

    assert body_of(asked)["repository"] == REMOTES["ours"]
    assert b"secret" not in asked[0].body


def test_a_remote_that_is_a_path_is_of_this_machine(run: Run, checkout: Path) -> None:
    run_git("config", "branch.main.remote", "ours", cwd=checkout)
    run_git("remote", "set-url", "ours", "/srv/git/shop.git", cwd=checkout)

    _, asked = run(TASK, "run", "--pr", "-w", str(checkout), "fix it")

    sent = body_of(asked)
    assert sent["workingDirectory"] == str(checkout)
    assert sent["machine"]


def test_a_task_is_pinned_to_a_runner_and_tags(run: Run) -> None:
    _, asked = run(TASK, "run", "--repository", "acme/shop", "--runner", "studio", "--tag", "gpu", "--tag", "mac", "x")

    sent = body_of(asked)
    assert (sent["runner"], sent["tags"]) == ("studio", ["gpu", "mac"])


@pytest.mark.promise("P21")
def test_on_a_terminal_the_user_chooses(checkout: Path, tmp_path: Path) -> None:
    keyboard, terminal = pty.openpty()
    with ScriptedRelay([TASK]) as relay:
        env = {
            **os.environ,
            "DELEGATE_RELAY_URL": relay.url,
            "DELEGATE_TOKEN": "x",
            "DELEGATE_HOME": str(tmp_path / "h"),
        }
        os.write(keyboard, b"nowhere\ntheirs\n")
        done = subprocess.run(
            [sys.executable, "-m", "delegate", "run", "--pr", "fix it"],
            stdin=terminal,
            capture_output=True,
            cwd=checkout,
            env=env,
            timeout=PATIENCE,
        )

    assert (done.returncode, done.stdout) == (0, b"task-1f0c9a77e2\n")
    sent = body_of(relay.asked)
    assert sent["repository"] == REMOTES["theirs"]
    assert "workingDirectory" not in sent
    for url in REMOTES.values():
        assert url.encode() in done.stderr
