"""The official client, the real bridge, the real relay: nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.mcp_client import Outer, mcp_session
from tests.fakes.world import World, living, wait_until
from tests.mcp_bridge.conversation import META, Spoken, bridge

DIES_ONCE = "submit.after=kill:{mark}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A home without anything running, whose relay dies once: when a task is on disk and no response was sent."""
    place = tmp_path_factory.mktemp("bridged")
    mark = place / "died"
    mark.touch()
    with living(place / "home", DELEGATE_FAILPOINTS=DIES_ONCE.format(mark=mark)) as made:
        yield made


def spoken_in(world: World, *words: str) -> Any:
    return bridge(
        world.home, *words, cwd=world.work, **{k: v for k, v in world.environment.items() if k != "DELEGATE_HOME"}
    )


def shell_task(client: Spoken, prompt: str) -> str:
    answer = client.tool("DelegateTask", prompt=prompt, agent="shell")["result"]
    assert not answer.get("isError"), answer
    return str(answer["structuredContent"]["taskId"])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_official_client_delegates_looks_and_reads_in_both_protocols(world: World, mode: str) -> None:
    """The first of them finds no relay: it is started while the client waits."""

    async def journey() -> dict[str, Any]:
        async with mcp_session(world, mode) as outer:
            task = await outer.call("DelegateTask", prompt=f"echo {mode} > {mode}.txt", agent="shell")
            with anyio.fail_after(60):
                return await ended(outer, task["taskId"])

    status = anyio.run(journey)

    assert status["status"] == "completed"
    assert (world.work / f"{mode}.txt").read_text() == f"{mode}\n"


async def ended(outer: Outer, task_id: str) -> dict[str, Any]:
    while True:
        await outer.client.call_tool("TaskLogs", {"taskId": task_id}, progress_callback=ignore_progress)
        found = await outer.call("TaskStatus", taskId=task_id)
        task: dict[str, Any] = found.get("task") or found
        if task["status"] in {"completed", "failed", "cancelled"}:
            return task


async def ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Asking for progress makes the call wait for the task."""


@pytest.mark.promise("P8")
def test_a_relay_killed_after_the_commit_and_before_the_answer_submits_once(world: World) -> None:
    with spoken_in(world) as client:
        client.handshake()
        client.call("ping")
        before = {task["taskId"] for task in world.tasks()}
        Path(world.environment["DELEGATE_FAILPOINTS"].partition(":")[2]).unlink()
        task_id = shell_task(client, "true")

        assert client.call("ping")["result"] == {}

    assert {task["taskId"] for task in world.tasks()} - before == {task_id}


@pytest.mark.promise("P8")
def test_calls_made_while_the_relay_is_down_wait_and_succeed(world: World) -> None:
    world.ok("status")
    with spoken_in(world) as client:
        client.handshake()
        first = shell_task(client, "true")
        os.kill(world.relay_pid(), signal.SIGKILL)
        asked = [client.ask("tools/call", status_of(first)) for _ in range(8)]
        answers = [client.read() for _ in asked]

    assert {answer["id"] for answer in answers} == set(asked)
    assert all(first in json.dumps(answer["result"]) for answer in answers)


def status_of(task_id: str) -> dict[str, Any]:
    return {"name": "TaskStatus", "arguments": {"taskId": task_id}}


def test_a_stopped_relay_stays_stopped_until_the_client_wants_something(world: World) -> None:
    world.ok("status")
    with spoken_in(world, "-v") as client:
        client.handshake()
        client.call("ping")
        world.ok("down", "--now")
        assert not (world.home / "relay.json").exists()

        assert shell_task(client, "true")
        assert (world.home / "relay.json").exists()


def test_calls_from_a_file_are_done_although_no_relay_is_running(world: World) -> None:
    world.run("down", "--now")
    call = {"name": "DelegateTask", "arguments": {"prompt": "true", "agent": "shell"}, "_meta": META}
    with spoken_in(world) as client:
        asked = [client.ask("tools/call", call) for _ in range(40)]
        assert client.close() == 0
        answers = [client.read() for _ in asked]

    assert {answer["id"] for answer in answers} == set(asked)
    created = {answer["result"]["structuredContent"]["taskId"] for answer in answers}
    assert len(created) == 40
    assert created <= {json.loads(line)["taskId"] for line in world.ok("status", "-n", "100", "--json").splitlines()}


def test_a_killed_bridge_loses_nothing(world: World) -> None:
    with spoken_in(world) as client:
        client.handshake()
        task_id = shell_task(client, "sleep 1; echo done > outlived.txt")
        client.process.kill()
        client.process.wait()

    assert world.wait_for(task_id)["status"] == "completed"
    assert (world.work / "outlived.txt").exists()


def test_the_task_gets_the_directory_and_machine_of_the_client(world: World) -> None:
    elsewhere = world.work / "ümlaut dir"
    elsewhere.mkdir()
    environment = {k: v for k, v in world.environment.items() if k != "DELEGATE_HOME"}
    with bridge(world.home, cwd=elsewhere, **environment) as client:
        client.handshake()
        task_id = shell_task(client, "pwd > here.txt")

    assert world.wait_for(task_id)["status"] == "completed"
    wait_until((elsewhere / "here.txt").exists)
