"""Agents that hang, and runners that die at the worst moment: nothing stays running without a living owner."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.origin import branches_of, make_origin
from tests.fakes.scripted_agent import install
from tests.fakes.world import World, living, wait_until

pytestmark = pytest.mark.slow
IMPATIENT = {"DELEGATE_NO_START_AFTER": "1", "DELEGATE_STALLED_AFTER": "1.5", "DELEGATE_LINGER_AFTER": "1"}


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[World]:
    program = install(tmp_path / "bin")
    with living(tmp_path / "home", DELEGATE_CLAUDE_COMMAND=str(program), **IMPATIENT) as world:
        yield world


def ended(world: World, *steps: dict[str, Any]) -> dict[str, Any]:
    task_id = world.submit(json.dumps({"steps": list(steps)}), agent="claude")
    return world.wait_for(task_id)


@pytest.mark.promise("P5")
@pytest.mark.promise("P11")
def test_an_agent_that_never_says_anything_is_ended(impatient: World) -> None:
    task = ended(impatient, {"spawn": 2, "pids": "pids"}, {"hang": True})

    assert (task["status"], task["reason"]) == ("failed", "no_start")
    assert _alive(impatient) == []


@pytest.mark.promise("P5")
def test_an_agent_that_stops_in_the_middle_is_stalled(impatient: World) -> None:
    task = ended(impatient, {"init": {}}, {"say": "working"}, {"ignore": "TERM"}, {"hang": True})

    assert (task["status"], task["reason"]) == ("failed", "stalled")
    assert task["sessionId"]


@pytest.mark.promise("P5")
def test_a_result_counts_although_the_agent_never_leaves(impatient: World) -> None:
    task = ended(impatient, {"init": {}}, {"result": "all done"}, {"spawn": 2, "pids": "pids"}, {"hang": True})

    assert (task["status"], task["reason"]) == ("completed", "done")
    assert _alive(impatient) == []


LEAVES_A_SERVER: tuple[dict[str, Any], ...] = (
    {"init": {}},
    {"command": "npm run dev", "background": "b1"},
    {"result": "the page is ready"},
    {"spawn": 1, "pids": "pids"},
    {"hang": True},
)


@pytest.mark.promise("P5")
@pytest.mark.parametrize("limits", [{"DELEGATE_LINGER_AFTER": "1"}, {"DELEGATE_TASK_TIMEOUT": "4000"}])
def test_a_command_left_in_the_background_is_ended_and_the_result_counts(
    limits: dict[str, str], tmp_path: Path
) -> None:
    program = install(tmp_path / "bin")
    with living(tmp_path / "home", DELEGATE_CLAUDE_COMMAND=str(program), **limits) as world:
        task = ended(world, *LEAVES_A_SERVER)

        assert (task["status"], task["reason"]) == ("completed", "done")
        assert _alive(world) == []
        assert [event["data"]["text"] for event in task["timeline"] if event["kind"] == "warning"] == [
            "waiting for a command that the agent left running: npm run dev",
            "stopping a command that the agent left running: npm run dev",
        ]


def test_a_task_that_waits_for_a_command_in_the_background_says_so(tmp_path: Path) -> None:
    program = install(tmp_path / "bin")
    with living(tmp_path / "home", DELEGATE_CLAUDE_COMMAND=str(program), DELEGATE_LINGER_AFTER="600") as world:
        task_id = world.submit(json.dumps({"steps": list(LEAVES_A_SERVER)}), agent="claude")

        why = wait_until(lambda: (task := world.task(task_id))["status"] == "running" and task["why"])

        assert why == "waiting for a command that the agent left running: npm run dev"
        assert f"why: {why}" in world.ok("status")


def test_work_whose_result_came_before_the_time_was_over_is_published(tmp_path: Path) -> None:
    program = install(tmp_path / "bin")
    with living(tmp_path / "home", DELEGATE_CLAUDE_COMMAND=str(program), DELEGATE_TASK_TIMEOUT="8000") as world:
        origin = make_origin(world.work)
        script = json.dumps({"steps": [{"touch": "page.html"}, *LEAVES_A_SERVER]})

        task = world.wait_for(world.submit(script, "--worktree", agent="claude"))

        assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
        assert task["result"]["branch"] in branches_of(origin)


@pytest.mark.promise("P5")
def test_an_agent_that_waits_for_the_end_of_its_input_gets_it(impatient: World) -> None:
    task = ended(impatient, {"init": {}}, {"result": "done"}, {"end_of_input": True}, {"exit": 0})

    assert (task["status"], task["reason"]) == ("completed", "done")


def test_an_error_result_with_exit_code_zero_is_a_failure(impatient: World) -> None:
    result = {"result": "it broke", "fields": {"is_error": True}}
    following = impatient.run("delegate", "-f", json.dumps({"steps": [{"init": {}}, result, {"exit": 0}]}))
    task = impatient.tasks()[0]

    assert (task["status"], task["exitCode"]) == ("failed", 0)
    assert following.returncode == 1


@pytest.mark.promise("P5")
@pytest.mark.parametrize("moment", ["runner.claimed", "runner.launched", "runner.spooled", "runner.finish.before"])
def test_a_runner_killed_at_any_step_leaves_no_task_running(moment: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with living(tmp_path / "home", DELEGATE_FAILPOINTS=f"{moment}=kill:{mark}") as world:
        world.ok("up", "--runners", "1")
        once = world.submit("echo hi")
        again = world.submit("echo hi", "--rerun")

        first, second = world.wait_for(once), world.wait_for(again)

        assert mark.exists()
        assert first["status"] in ("failed", "completed")
        assert first["reason"] in ("lost_runner", "done")
        assert second["status"] == "completed"


@pytest.mark.promise("P5")
def test_a_runner_that_never_comes_back_loses_its_task_to_the_next_one(tmp_path: Path) -> None:
    with living(tmp_path / "home") as world:
        world.ok("up", "--runners", "2")
        wait_until(lambda: len(world.processes()) == 2)
        task_id = world.submit("test -e began || { touch began; sleep 600; }", "--rerun")
        wait_until((world.work / "began").exists)
        holder = world.task(task_id)["attempts"][0]["slotId"]
        pid = next(runner["pid"] for runner in world.processes() if runner["id"] == holder)

        os.kill(pid, signal.SIGSTOP)  # neither dead nor alive: its keeper sees a living process
        ended_task = world.wait_for(task_id)
        os.kill(pid, signal.SIGKILL)

        assert (ended_task["status"], ended_task["attempt"]) == ("completed", 2)


def test_a_runner_that_cannot_find_claude_says_so_and_the_task_waits(tmp_path: Path) -> None:
    with living(tmp_path / "home", DELEGATE_CLAUDE_COMMAND="no-such-claude") as world:
        world.ok("up", "--runners", "1")
        task_id = world.submit("Do it.", agent="claude")

        waiting = wait_until(lambda: "has claude" in ((task := world.task(task_id))["why"] or "") and task)

        assert waiting["status"] == "queued"


def _alive(world: World) -> list[int]:
    pids = [int(line) for line in (world.work / "pids").read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_working_directory_that_goes_away_is_named(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    world.submit(f"while [ ! -e {gate} ]; do sleep 0.05; done")
    place = world.work / "short-lived"
    place.mkdir()
    task_id = world.submit("true", "-w", str(place))
    place.rmdir()
    gate.touch()

    task = world.wait_for(task_id)

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert str(place) in task["message"]
