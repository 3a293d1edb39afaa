"""The real Claude Code program against a scripted model, through the whole product."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.anthropic_standin import AnthropicStandin
from tests.fakes.world import World, children_of, command_of, living, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.real]
CLAUDE = shutil.which("claude")


@pytest.fixture
def model() -> Iterator[AnthropicStandin]:
    with AnthropicStandin({}) as standin:
        yield standin


@pytest.fixture
def claude(tmp_path: Path, model: AnthropicStandin) -> Iterator[World]:
    if CLAUDE is None:
        pytest.skip("claude is not installed")
    with living(tmp_path / "home", **model.environment(tmp_path), DELEGATE_CLAUDE_COMMAND=CLAUDE) as world:
        world.ok("up", "--runners", "1")
        yield world


def plays(model: AnthropicStandin, *steps: dict[str, Any], **more: Any) -> None:
    model.define("default", {"steps": list(steps), **more})


def test_claude_edits_a_file_runs_a_command_and_everything_is_reported(claude: World, model: AnthropicStandin) -> None:
    plays(
        model,
        {"tool": "Write", "input": {"file_path": "{{cwd}}/made.txt", "content": "made by claude\n"}},
        {"tool": "Bash", "input": {"command": "cp made.txt copied.txt", "description": "copy"}},
        {"text": "Wrote made.txt and copied it."},
    )

    done = claude.run("delegate", "-a", "claude", "-m", "claude-sonnet-4-5", "-f", "Make made.txt and copy it")

    task = claude.task(claude.tasks()[0]["taskId"])
    assert done.returncode == 0, done.stderr
    assert (claude.work / "copied.txt").read_text() == "made by claude\n"
    assert "Wrote made.txt and copied it." in done.stdout
    assert (task["status"], task["reason"], task["exitCode"]) == ("completed", "done", 0)
    assert task["usage"]["costUsd"] > 0
    assert task["usage"]["outputTokens"] == 60
    assert task["sessionId"]
    kinds = [entry["kind"] for entry in task["timeline"]]
    assert [kind for kind in kinds if kind in ("session", "tool", "message")] == ["session", "tool", "tool", "message"]
    prompts = [request for request in model.requests if request.get("kind") == "main"]
    assert "Make made.txt and copy it" in str(prompts[0]["body"]["messages"])


def test_a_prompt_of_140_kilobytes_that_starts_with_a_dash_reaches_claude_whole(
    claude: World, model: AnthropicStandin
) -> None:
    plays(model, {"text": "Read."})
    prompt = "--help " + "y" * 140_000 + " the end"
    (claude.work / "prompt.txt").write_text(prompt)

    done = claude.run("delegate", "-a", "claude", "-f", "--prompt-file", "prompt.txt")

    assert done.returncode == 0, done.stderr
    assert prompt in str(next(r for r in model.requests if r.get("kind") == "main")["body"]["messages"])


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ({"steps": [], "models": ["other"]}, ("-m", "no-such-model"), "unknown_model"),
        ({"steps": [], "api_keys": ["another"]}, (), "not_logged_in"),
        ({"steps": [{"error": {"status": 529, "type": "overloaded_error"}, "repeat": -1}]}, (), "overloaded"),
        (
            {"steps": [{"tool": "Bash", "input": {"command": "true", "description": "x"}, "repeat": -1}]},
            ("--max-turns", "2"),
            "max_turns",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_of_the_real_program_gets_its_class(
    claude: World, model: AnthropicStandin, script: dict[str, Any], options: tuple[str, ...], reason: str
) -> None:
    model.define("default", script)

    task_id = claude.submit("Do the task.", *options, agent="claude")
    task = claude.wait_for(task_id)

    assert (task["status"], task["reason"]) == ("failed", reason)
    assert task["message"]
    assert task["advice"]


def test_a_rate_limit_parks_the_task_and_the_agent_until_it_is_over(claude: World, model: AnthropicStandin) -> None:
    plays(model, {"error": {"status": 429, "type": "rate_limit_error", "message": "slow down"}, "repeat": -1})

    task_id = claude.submit("Do the task.", agent="claude")
    parked = wait_until(lambda: (task := claude.task(task_id))["notBefore"] and task)
    other = claude.submit("Another one.", agent="claude")
    shell = claude.submit("true")

    assert (parked["status"], parked["attempt"]) == ("queued", 0)
    assert "parked until" in parked["why"]
    assert claude.wait_for(shell)["status"] == "completed"
    waiting = wait_until(lambda: "parked" in ((task := claude.task(other))["why"] or "") and task)
    assert waiting["status"] == "queued"


@pytest.mark.promise("P11")
def test_cancelling_claude_ends_the_command_it_runs(claude: World, model: AnthropicStandin) -> None:
    command = "echo $$ > pid; sleep 600"
    plays(model, {"tool": "Bash", "input": {"command": command, "description": "wait"}}, {"text": "never"})
    task_id = claude.submit("Wait.", agent="claude")
    wait_until(lambda: (claude.work / "pid").exists() and (claude.work / "pid").read_text().strip())
    sleeper = int((claude.work / "pid").read_text())

    claude.ok("cancel", task_id)

    assert claude.wait_for(task_id)["status"] == "cancelled"
    assert not Path(f"/proc/{sleeper}").exists()


@pytest.mark.promise("P5")
def test_a_claude_task_lost_with_its_runner_continues_in_the_same_session(
    claude: World, model: AnthropicStandin
) -> None:
    plays(
        model,
        {"tool": "Bash", "input": {"command": "touch began; sleep 600", "description": "begin"}},
        {"expect": "interrupted", "text": "Went on and finished."},
    )
    task_id = claude.submit("Begin, then finish.", agent="claude")
    wait_until((claude.work / "began").exists)
    before = wait_until(lambda: claude.task(task_id)["attempts"][0]["sessionId"])

    runner = next(pid for pid in children_of(claude.keeper_pid()) if "delegate.runner" in command_of(pid))
    os.kill(runner, signal.SIGKILL)

    ended = claude.wait_for(task_id)
    assert (ended["status"], ended["attempt"], ended["sessionId"]) == ("completed", 2, before)


def test_a_command_that_claude_leaves_in_the_background_is_ended(tmp_path: Path, model: AnthropicStandin) -> None:
    command = {"command": "echo $$ > pid; sleep 600", "description": "serve", "run_in_background": True}
    waits = {"command": "until [ -s pid ]; do sleep 0.05; done", "description": "wait"}
    plays(model, {"tool": "Bash", "input": command}, {"tool": "Bash", "input": waits}, {"text": "It is served."})
    if CLAUDE is None:
        pytest.skip("claude is not installed")
    environment = {**model.environment(tmp_path), "DELEGATE_CLAUDE_COMMAND": CLAUDE, "DELEGATE_LINGER_AFTER": "1"}
    with living(tmp_path / "home", **environment) as world:
        task = world.wait_for(world.submit("Serve it.", agent="claude"))

        assert (task["status"], task["reason"]) == ("completed", "done")
        assert not Path(f"/proc/{(world.work / 'pid').read_text().strip()}").exists()
        warnings = [event["data"]["text"] for event in task["timeline"] if event["kind"] == "warning"]
        assert warnings[0] == f"waiting for a command that the agent left running: {command['command']}"


def test_a_message_reaches_the_running_session(claude: World, model: AnthropicStandin) -> None:
    gate = "while [ ! -e go ]; do sleep 0.05; done"
    plays(
        model,
        {"tool": "Bash", "input": {"command": f"touch began; {gate}", "description": "wait"}},
        {"text": "Heard you."},
        {"text": "Heard you again."},
    )
    task_id = claude.submit("Wait for word.", agent="claude")
    wait_until((claude.work / "began").exists)

    claude.post(f"/api/tasks/{task_id}/messages", {"text": "mind the gap"})
    (claude.work / "go").touch()

    assert claude.wait_for(task_id)["status"] == "completed"
    assert "mind the gap" in str([request["body"] for request in model.requests if request.get("kind") == "main"])
