"""What other tools of this kind were seen to lose, to start twice, or to lie about."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fakes.mcp_client import mcp_session
from tests.fakes.world import World, children_of, command_of, is_alive, living, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("others")
    with living(place / "home", DELEGATE_DEFAULT_AGENT="shell", DELEGATE_MAX_RUNNERS="auto") as world:
        yield world


def bridges() -> list[int]:
    return [pid for pid in children_of(os.getpid()) if "mcp start" in command_of(pid)]


def until_it_says(world: World, gate: str, word: str) -> str:
    """A command that says something, waits for a file, and leaves one mark each time it runs."""
    path = world.work / gate
    return f"echo x >> {path}.runs; echo {word}; while [ ! -e {path} ]; do sleep 0.05; done; echo end"


def runs(world: World, gate: str) -> int:
    return len((world.work / f"{gate}.runs").read_text().split())


async def test_an_unknown_dependency_is_refused_at_once_and_nothing_is_made(shop: World) -> None:
    before = len(shop.tasks())

    done = shop.run("run", "true", "--depends-on", "task-0000000000")
    async with mcp_session(shop) as agent:
        refusal = await agent.refused("DelegateTask", prompt="true", dependsOn=["task-0000000000"])

    assert done.returncode == 2
    assert "--depends-on: no task task-0000000000" in done.stderr
    assert "dependsOn: no task task-0000000000" in refusal
    assert len(shop.tasks()) == before


def test_depending_on_a_task_that_has_completed_runs(shop: World) -> None:
    first = shop.submit("true")
    shop.wait_for(first, "completed")

    second = shop.submit("true", "--depends-on", first)

    assert shop.wait_for(second)["status"] == "completed"


async def test_a_task_survives_the_death_of_the_bridge_that_gave_it(shop: World) -> None:
    async with mcp_session(shop) as agent:
        task = (await agent.call("DelegateTask", prompt=until_it_says(shop, "bridge", "begun")))["taskId"]
        shop.wait_for(task, "running")
        for pid in bridges():
            os.kill(pid, signal.SIGKILL)

    (shop.work / "bridge").touch()

    assert shop.wait_for(task)["status"] == "completed"
    assert runs(shop, "bridge") == 1


async def test_a_client_does_not_notice_that_the_relay_was_killed_in_mid_task(shop: World) -> None:
    async with mcp_session(shop) as agent:
        task = (await agent.call("DelegateTask", prompt=until_it_says(shop, "relay", "begun")))["taskId"]
        shop.wait_for(task, "running")
        killed = shop.relay_pid()
        os.kill(killed, signal.SIGKILL)
        status = await agent.call("TaskStatus", taskId=task)
        (shop.work / "relay").touch()
        ended = shop.wait_for(task)
        logs = await agent.call("TaskLogs", taskId=task)

    assert status["task"]["status"] == "running"
    assert (ended["status"], ended["attempt"]) == ("completed", 1)
    assert [line["text"] for line in logs["lines"]] == ["begun", "end"]
    assert (runs(shop, "relay"), shop.relay_pid() != killed) == (1, True)


def test_a_stop_in_mid_task_waits_for_it_and_leaves_nothing_running(tmp_path_factory: pytest.TempPathFactory) -> None:
    with living(tmp_path_factory.mktemp("stop") / "home", DELEGATE_DEFAULT_AGENT="shell") as world:
        task = world.submit(until_it_says(world, "stop", "begun"))
        world.wait_for(task, "running")
        keeper = world.keeper_pid()
        os.kill(keeper, signal.SIGTERM)
        (world.work / "stop").touch()
        wait_until(lambda: not is_alive(keeper))

        assert world.task(task)["status"] == "completed"
        assert runs(world, "stop") == 1


async def test_cancelling_from_another_process_stops_the_command(shop: World) -> None:
    async with mcp_session(shop) as agent:
        task = (await agent.call("DelegateTask", prompt="echo $$ > pid; sleep 600"))["taskId"]
        pid = wait_until(lambda: (shop.work / "pid").exists() and (shop.work / "pid").read_text().strip())
        shop.ok("cancel", task)
        status = await agent.call("TaskStatus", taskId=task)

    assert status["task"]["status"] == "cancelled"
    assert not is_alive(int(pid))


async def test_submitting_beside_a_live_client_starts_nothing_twice(shop: World) -> None:
    async with mcp_session(shop) as agent:
        tasks = []
        for number in range(4):
            prompt = f"echo {number} >> twice"
            tasks.append((await agent.call("DelegateTask", prompt=prompt))["taskId"])
            tasks.append(shop.submit(prompt))

    for task in tasks:
        shop.wait_for(task, "completed")
    assert sorted((shop.work / "twice").read_text().split()) == sorted([*"0123", *"0123"])


async def test_a_schedule_fires_with_no_client_open_and_its_history_knows_how_it_ended(shop: World) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1.5)
    async with mcp_session(shop) as agent:
        made = await agent.call(
            "ScheduleTask", prompt="echo fired; exit 3", scheduleType="one_time", scheduledAt=soon.isoformat()
        )

    seen = wait_until(lambda: ended_history(shop, made["scheduleId"]))

    assert [(run["outcome"], run["reason"]) for run in seen["history"]] == [("failed", "command_failed")]
    assert seen["status"] == "completed"
    assert shop.ok("logs", seen["history"][0]["taskId"]) == "fired\n"


def ended_history(world: World, schedule_id: str) -> dict[str, Any] | None:
    found = dict(json.loads(world.ok("schedule", "get", schedule_id, "--json")))
    return found if found["history"] and found["history"][0]["finishedAt"] else None


def test_five_tasks_at_once_all_run_at_the_same_time(shop: World) -> None:
    meet = "echo x >> met; while [ $(wc -l < met) -lt 5 ]; do sleep 0.05; done"

    tasks = [shop.submit(meet) for _ in range(5)]

    assert {shop.wait_for(task)["status"] for task in tasks} == {"completed"}
