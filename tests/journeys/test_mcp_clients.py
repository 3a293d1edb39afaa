"""Claude Code itself, with a scripted model, delegates through `.mcp.json`."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.fakes.anthropic_standin import AnthropicStandin
from tests.fakes.world import living

pytestmark = [pytest.mark.slow, pytest.mark.real]
CLAUDE = shutil.which("claude")
TOOLS = "mcp__delegate__DelegateTask,mcp__delegate__TaskStatus,mcp__delegate__TaskLogs"
STEPS = [
    {"tool": "WaitForMcpServers", "input": {}, "repeat": 3},  # on a busy machine it gives up before the server is up
    {"tool": "mcp__delegate__DelegateTask", "input": {"prompt": "echo it was done | tee made.txt", "agent": "shell"}},
    {"tool": "mcp__delegate__TaskStatus", "input": {"taskId": "{{task}}"}, "expect": r"task-\w+"},
    {"tool": "mcp__delegate__TaskLogs", "input": {"taskId": "{{task}}", "tail": 5}},
    {"text": "All of it was delegated."},
]


def environment_of(place: Path, model: AnthropicStandin) -> dict[str, str]:
    """A Claude Code of its own that trusts the .mcp.json of a project."""
    (place / ".claude").mkdir()
    (place / ".claude" / "settings.json").write_text(json.dumps({"enableAllProjectMcpServers": True}))
    return model.environment(place)


def results(model: AnthropicStandin) -> list[str]:
    """What the tools answered, as the model was shown it."""
    last = [request for request in model.requests if request.get("kind") == "main"][-1]
    blocks: list[dict[str, Any]] = [
        block for message in last["body"]["messages"] for block in message["content"] if isinstance(block, dict)
    ]
    return [json.dumps(block["content"]) for block in blocks if block["type"] == "tool_result"]


@pytest.mark.skipif(CLAUDE is None, reason="claude is not installed")
def test_claude_code_delegates_looks_and_reads_the_output_through_mcp_json(tmp_path: Path) -> None:
    scenario = {"steps": STEPS, "finds": {"task": r"task-\w+"}}
    with (
        AnthropicStandin({"default": scenario}) as model,
        living(tmp_path / "home", **environment_of(tmp_path, model)) as world,
    ):
        world.ok("mcp", "config", "--write")
        world.ok("up", "--runners", "1")
        with suppress(HTTPError):  # refused, but what it needs for MCP is loaded then
            world.post("/mcp", {})
        done = subprocess.run(
            [str(CLAUDE), "-p", "Delegate it.", "--allowedTools", TOOLS, "--model", "claude-sonnet-4-5"],
            env=world.environment,
            cwd=world.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        (task,) = world.tasks()

        assert (done.stdout.strip(), done.returncode) == ("All of it was delegated.", 0), done.stderr
        *_, delegated, status, logs = results(model)
        assert task["taskId"] in delegated
        assert task["taskId"] in status
        assert "error" not in logs
        assert world.wait_for(task["taskId"])["status"] == "completed"
        assert (world.work / "made.txt").read_text() == "it was done\n"
