"""Tasks that wait for others, over HTTP."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest
from tests.relay.peers import WAIT, Attempt, Runner, problem_of, task

pytestmark = pytest.mark.anyio


async def send(runner: Runner, *entries: dict[str, Any]) -> httpx2.Response:
    tasks = [task(machine=runner.machine, **entry) for entry in entries]
    return await runner.owner.post("/api/tasks/batch", json={"tasks": tasks})


async def take(runner: Runner) -> tuple[Attempt, dict[str, Any]]:
    given = await runner.ask()
    assert given is not None
    return Attempt(runner=runner, id=given["attemptId"], task_id=given["taskId"], fence=given["fence"]), given


@pytest.mark.promise("P16")
async def test_a_batch_runs_in_the_order_of_its_names(runner: Runner) -> None:
    response = await send(
        runner,
        {"prompt": "test", "name": "test", "agent": "claude", "continueFrom": "build"},
        {"prompt": "build", "name": "build", "agent": "claude"},
        {"prompt": "clean", "dependsOn": ["test", "build"], "onDependencyFailure": "run"},
    )
    assert response.status_code == 201
    test, build, clean = response.json()["tasks"]
    assert test["dependsOn"] == [build["taskId"]]
    assert (clean["dependsOn"], clean["onDependencyFailure"]) == ([test["taskId"], build["taskId"]], "run")

    first, _ = await take(runner)
    await first.finish(sessionId="s-1", checkpoint={"sessionId": "s-1", "outputTail": ["built"]})
    second, given = await take(runner)
    await second.finish(outcome="failed", reason="agent_error")
    third, _ = await take(runner)

    assert [one.task_id for one in (first, second, third)] == [build["taskId"], test["taskId"], clean["taskId"]]
    continued = given["continuedTask"]
    assert (continued["taskId"], continued["status"], continued["prompt"]) == (build["taskId"], "completed", "build")
    assert (continued["checkpoint"]["outputTail"], given["resumeSession"]) == (["built"], "s-1")


async def test_a_graph_shows_what_leads_to_a_task_and_why_it_waits(runner: Runner) -> None:
    attempt = await runner.take()
    near = await runner.submit(dependsOn=[attempt.task_id])
    far = await runner.submit(dependsOn=[near["taskId"]])

    graph = (await runner.owner.get(f"/api/tasks/{near['taskId']}/graph")).json()

    assert [shown["taskId"] for shown in graph["tasks"]] == [attempt.task_id, near["taskId"], far["taskId"]]
    assert [shown["why"] for shown in graph["tasks"]] == [
        None,
        f"waits for {attempt.task_id} (running)",
        f"waits for {near['taskId']} (queued)",
    ]
    assert graph["isCut"] is False
    listed = (await runner.owner.get("/api/tasks?status=queued&limit=2")).json()["tasks"]
    assert [shown["why"] for shown in listed] == [graph["tasks"][2]["why"], graph["tasks"][1]["why"]]
    problem_of(await runner.owner.get("/api/tasks/task-none/graph"), 404, "no_such_task")


async def test_cancelling_tells_the_tasks_behind_it(runner: Runner) -> None:
    first = await runner.submit()
    second = await runner.submit(dependsOn=[first["taskId"]])

    async with runner.owner.stream("GET", f"/api/tasks/{second['taskId']}/stream") as stream:
        await runner.owner.post(f"/api/tasks/{first['taskId']}/cancel", json={})
        with anyio.fail_after(WAIT):
            text = "".join([chunk async for chunk in stream.aiter_text()])

    assert "event: end" in text
    assert f"its dependency {first['taskId']} was cancelled (cancelled)" in text


async def test_refused_dependencies_name_their_field(runner: Runner) -> None:
    failed = await runner.take()
    await failed.finish(outcome="failed", reason="command_failed")
    unknown = await runner.owner.post("/api/tasks", json=task(dependsOn=["task-none"]))
    ended = await runner.owner.post("/api/tasks", json=task(continueFrom=failed.task_id))
    many = await runner.owner.post("/api/tasks", json=task(dependsOn=[f"task-{n}" for n in range(101)]))
    cycle = await send(runner, {"name": "a", "dependsOn": ["b"]}, {"name": "b", "dependsOn": ["a"]})
    unnamed = await send(runner, {"name": "a"}, {"dependsOn": ["b"]})
    empty = await send(runner)

    assert problem_of(unknown, 422, "unknown_dependency")["field"] == "dependsOn"
    assert problem_of(ended, 422, "dependency_failed")["field"] == "continueFrom"
    assert problem_of(many, 422, "invalid_field")["field"] == "dependsOn"
    assert problem_of(cycle, 422, "cycle_detected")["field"] == "tasks"
    assert problem_of(unnamed, 422, "unknown_dependency")["field"] == "tasks.1.dependsOn"
    assert problem_of(empty, 422, "invalid_field")["field"] == "tasks"
