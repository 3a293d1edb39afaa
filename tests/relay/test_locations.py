"""A directory on the relay's own machine is looked at before a task in it is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.git import run_git
from tests.relay.mcp.test_tools import speaking
from tests.relay.peers import RelayProcess, problem_of, runner_of, task

pytestmark = pytest.mark.anyio


@pytest.fixture
def machine(relay: RelayProcess) -> str:
    return (relay.home / "machine").read_text().strip()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    named = {name: tmp_path / name for name in ("missing", "file", "plain", "bare")}
    named["plain"].mkdir()
    named["file"].touch()
    run_git("init", "-q", "--bare", str(named["bare"]), cwd=tmp_path)
    return named


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("missing", {}, "does not exist"),
    ("file", {}, "is not a directory"),
    ("plain", {"pr": True}, "is not in a git repository"),
    ("plain", {"worktree": True}, "is not in a git repository"),
    ("bare", {"pr": True}, "is a bare repository"),
]


@pytest.mark.parametrize(("place", "fields", "why"), REFUSED)
async def test_a_directory_that_cannot_work_is_refused_over_http_and_mcp(
    relay: RelayProcess,
    owner: httpx2.AsyncClient,
    machine: str,
    places: dict[str, Path],
    place: str,
    fields: dict[str, Any],
    why: str,
) -> None:
    wanted = task(machine=machine, workingDirectory=str(places[place]), agent="claude", **fields)
    at = {"scheduleType": "cron", "cronExpression": "0 2 * * *"}

    async with runner_of(owner, machine):
        submitted = await owner.post("/api/tasks", json=wanted)
        together = await owner.post("/api/tasks/batch", json={"tasks": [wanted]})
        scheduled = await owner.post("/api/schedules", json={**wanted, **at})
        pipeline = await owner.post("/api/pipelines", json={"steps": [wanted, wanted]})
        async with speaking(relay, delegate_machine=machine) as outer:
            call = {"prompt": "x", "workingDirectory": str(places[place]), **fields}
            told = await outer.refusal("DelegateTask", **call)

    for response, field in ((submitted, ""), (together, "tasks.0."), (scheduled, ""), (pipeline, "steps.0.")):
        problem = problem_of(response, 422, "invalid_field")
        assert problem["field"] == f"{field}workingDirectory"
        assert f"{places[place]} {why}" in problem["detail"]
    assert f"workingDirectory: {places[place]} {why}" in told


async def test_a_directory_that_an_earlier_task_makes_or_that_another_machine_has_is_accepted(
    owner: httpx2.AsyncClient, machine: str, places: dict[str, Path]
) -> None:
    first = await owner.post("/api/tasks", json=task(machine=machine, workingDirectory=str(places["plain"])))
    after = {"dependsOn": [first.json()["taskId"]], "workingDirectory": str(places["missing"])}

    later = await owner.post("/api/tasks", json=task(machine=machine, **after))
    elsewhere = await owner.post("/api/tasks", json=task(workingDirectory=str(places["missing"])))

    assert [one.status_code for one in (first, later, elsewhere)] == [201, 201, 201]


async def test_a_repeated_request_gets_its_task_although_the_directory_is_gone(
    owner: httpx2.AsyncClient, machine: str, places: dict[str, Path]
) -> None:
    wanted = task(machine=machine, workingDirectory=str(places["plain"]), requestKey=str(places["plain"])[-60:])
    first = await owner.post("/api/tasks", json=wanted)
    places["plain"].rmdir()

    again = await owner.post("/api/tasks", json=wanted)

    assert (again.status_code, again.json()["taskId"]) == (200, first.json()["taskId"])


async def test_a_path_of_a_repository_that_does_not_exist_is_refused(
    owner: httpx2.AsyncClient, machine: str, places: dict[str, Path]
) -> None:
    wanted = task(machine=machine, workingDirectory=None, agent="claude", repository=str(places["missing"]))

    problem = problem_of(await owner.post("/api/tasks", json=wanted), 422, "invalid_field")

    assert problem["field"] == "repository"


async def test_an_agent_reads_which_parameter_helps(relay: RelayProcess, machine: str, places: dict[str, Path]) -> None:
    async with speaking(relay, delegate_machine=machine) as outer:
        told = await outer.refusal("DelegateTask", prompt="x", workingDirectory=str(places["plain"]), pr=True)

    assert "use `repository`, or leave out `pr` and `worktree` to work in place" in told
