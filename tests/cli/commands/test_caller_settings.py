"""What is set where a command is run, while a relay runs that was started with other settings."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.mcp_client import mcp_session
from tests.fakes.world import World, living

OF_THE_RELAY = {"DELEGATE_DEFAULT_AGENT": "shell"}
OF_THE_CALLER = {"DELEGATE_DEFAULT_AGENT": "claude", "TASK_TIMEOUT": "2s", "MAX_OUTPUT_BUFFER": "4096"}


@pytest.fixture(scope="module")
def relay() -> Iterator[World]:
    """Its commands run as the caller; another user has started it."""
    root = Path(tempfile.mkdtemp(prefix="delegate-test-"))
    try:
        with living(root / "home", COLUMNS="300", TZ="UTC") as world:
            world.environment.update(OF_THE_RELAY)
            world.ok("up", "--runners", "0")
            world.environment.update(OF_THE_CALLER)
            yield world
    finally:
        shutil.rmtree(root)


def made(world: World, *words: str) -> dict[str, Any]:
    return dict(json.loads(world.ok(*words, "--json")))


def test_the_callers_settings_count_for_the_callers_task(relay: World) -> None:
    task = made(relay, "run", "touch a file")

    assert (task["agent"], task["timeout"], task["maxOutputBuffer"]) == ("claude", 2_000, 4_096)
    assert {"field": "agent", "value": "claude", "source": "caller's settings"} in task["choices"]


def test_an_option_and_a_label_beat_the_callers_settings(relay: World) -> None:
    by_options = made(relay, "run", "-a", "codex", "-t", "5s", "-b", "2048", "x")
    by_label = made(relay, "run", "--label", "delegate:codex", "x")

    assert (by_options["agent"], by_options["timeout"], by_options["maxOutputBuffer"]) == ("codex", 5_000, 2_048)
    assert (by_label["agent"], by_label["timeout"]) == ("codex", 2_000)


def test_they_count_for_schedules_and_pipelines_alike(relay: World) -> None:
    created = made(relay, "schedule", "create", "x", "--at", "+1h")
    steps = made(relay, "pipeline", "one", "two")["steps"]

    wanted = {"defaultAgent": "claude", "timeout": 2_000, "maxOutputBuffer": 4_096}
    assert [{key: one["task"].get(key) for key in wanted} for one in (created, *steps)] == [wanted] * 3


@pytest.mark.anyio
async def test_the_agent_that_an_mcp_client_is_set_to_counts_for_its_tasks_and_schedules(relay: World) -> None:
    async with mcp_session(relay) as outer:
        task = await outer.call("DelegateTask", prompt="touch a file")
        named = await outer.call("DelegateTask", prompt="x", agent="codex")
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        schedule = await outer.call("ScheduleTask", prompt="x", scheduleType="one_time", scheduledAt=soon)

    assert [relay.task(one["taskId"])["agent"] for one in (task, named)] == ["claude", "codex"]
    assert made(relay, "schedule", "get", schedule["scheduleId"])["task"]["defaultAgent"] == "claude"


def test_a_setting_that_only_the_relay_reads_is_said_to_apply_from_its_next_start(relay: World) -> None:
    relay.ok("config", "set", "retention_days", "7")
    relay.environment["DELEGATE_CPU_THRESHOLD"] = "50"

    shown = {line["key"]: line for line in map(json.loads, relay.ok("config", "show", "--json").splitlines())}

    late = {key: (line["value"], line["running"]) for key, line in shown.items() if line["counts"] != "now"}
    assert late == {"retention_days": (7, 90), "cpu_threshold": (50, 100)}
    assert {line["counts"] for line in shown.values()} == {"now", "next_start"}
    table = relay.ok("config", "show", "cpu_threshold").splitlines()
    assert table[2:] == ["  takes effect when the relay restarts; the running relay uses 100"]


def test_of_a_relay_elsewhere_no_setting_of_this_home_is_said_to_count(relay: World) -> None:
    relay.environment["DELEGATE_RELAY_URL"] = "https://relay.example"
    try:
        done = relay.run("config", "show", "--json")
        table = relay.run("config", "show")
    finally:
        del relay.environment["DELEGATE_RELAY_URL"]

    counting = {line["key"] for line in map(json.loads, done.stdout.splitlines()) if line["counts"] == "now"}
    sent = {"default_agent", "task_timeout_ms", "max_output_buffer"}
    assert counting == {"home", "relay_url", "token", "ca_file"} | sent
    assert table.stderr.startswith("delegate: https://relay.example has its own settings")


@pytest.mark.parametrize("command", [["run"], ["schedule", "create", "--at", "+1h"], ["pipeline", "one"]])
def test_a_command_is_not_believed_to_be_held_back(relay: World, command: list[str]) -> None:
    done = relay.run(*command, "-a", "shell", "--permission-mode", "plan", "--max-turns", "2", "touch x")

    assert (done.returncode, done.stdout) == (2, "")
    assert "permission mode plan is not supported for shell tasks; " in done.stderr
    assert "a limit of 2 turns is not supported for shell tasks" in done.stderr
    assert ("delegate: step 1: permission mode" in done.stderr) == (command[0] == "pipeline")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--depends-on", "task-0", "x"], "--depends-on: no task task-0"),
        (
            ["run", "--depends-on", "a b", "x"],
            "--depends-on: is not a valid id: use only letters, digits, dots, - and _",
        ),
        (["run", "-m", "", "x"], "--model: is empty; give it a value, or leave it out"),
        (["run", "-m", "a b", "x"], "--model: is not a valid model name: use up to 100 letters, digits and ._:/@[]-"),
        (["run", "--repository", "o/n", "-w", ".", "x"], "--repository: cannot be combined with --working-directory"),
        (["pipeline", "one", "two", "-m", "a b"], "step 1: --model: is not a valid model name"),
        (["schedule", "create", "x", "--cron", "60 * * * *"], "--cron: "),
        (["schedule", "create", "x", "--at", "2020-01-01T00:00Z"], "--at: "),
        (["schedule", "create", "x", "--after", "schedule-0"], "--after: no schedule schedule-0"),
    ],
)
def test_a_refusal_names_the_option(relay: World, words: list[str], said: str) -> None:
    done = relay.run(*words)

    assert done.returncode in {2, 5}
    assert done.stderr.startswith(f"delegate: {said}")


def test_a_step_of_a_pipeline_is_read_from_standard_input(relay: World) -> None:
    steps = json.loads(relay.ok("pipeline", "echo 1", "-", "--json", stdin="echo 2\n"))["steps"]

    assert [step["prompt"] for step in steps] == ["echo 1", "echo 2"]
