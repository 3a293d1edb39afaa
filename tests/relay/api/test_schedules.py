"""Schedules and pipelines over HTTP, fired by the relay's own clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.hostile import NO_MOMENTS
from tests.relay.peers import WAIT, Attempt, Runner, client, end, problem_of, runner_of, start_relay, task

pytestmark = pytest.mark.anyio
LATER = "2099-01-31T08:00:00Z"


def cron(**fields: Any) -> dict[str, Any]:
    return task(scheduleType="cron", **{"cronExpression": "0 2 1 1 *", **fields})


def once(**fields: Any) -> dict[str, Any]:
    return task(scheduleType="one_time", **{"scheduledAt": soon(), **fields})


def soon() -> str:
    return (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()


async def made(owner: httpx2.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await owner.post("/api/schedules", json=body)
    assert response.status_code == 201, response.text
    return dict(response.json()["schedule"])


async def seen(owner: httpx2.AsyncClient, schedule_id: str) -> dict[str, Any]:
    return dict((await owner.get(f"/api/schedules/{schedule_id}")).json())


async def taken(runner: Runner) -> Attempt:
    """The next task that comes without anybody asking for it."""
    assignment = await runner.ask(wait=WAIT)
    assert assignment is not None
    return Attempt(runner=runner, id=assignment["attemptId"], task_id=assignment["taskId"], fence=assignment["fence"])


async def test_a_schedule_shows_when_it_runs_and_what_its_tasks_are_made_from(owner: httpx2.AsyncClient) -> None:
    wanted = cron(prompt="back up", timezone="America/New_York", missedRunPolicy="catchup", maxRuns=2, pr=False)

    schedule = await made(owner, wanted)

    assert schedule["scheduleId"].startswith("schedule-")
    assert (schedule["status"], schedule["scheduleType"]) == ("active", "cron")
    assert (schedule["cronExpression"], schedule["timezone"]) == ("0 2 1 1 *", "America/New_York")
    assert schedule["task"] == task(prompt="back up", pr=False)
    assert len(schedule["nextRuns"]) == 2
    assert schedule["nextRunAt"] == schedule["nextRuns"][0]
    assert await seen(owner, schedule["scheduleId"]) == {"schedule": schedule, "history": []}


async def test_what_is_due_starts_without_anybody_asking_and_its_end_is_in_the_history(
    owner: httpx2.AsyncClient, runner: Runner
) -> None:
    schedule = await made(owner, once(machine=runner.machine))

    attempt = await taken(runner)
    await attempt.finish(outcome="failed", reason="command_failed", message="exit code 3", exitCode=3)

    found = await seen(owner, schedule["scheduleId"])
    (run,) = found["history"]
    assert (run["taskId"], run["outcome"], run["reason"]) == (attempt.task_id, "failed", "command_failed")
    assert (found["schedule"]["status"], found["schedule"]["lastTaskId"]) == ("completed", attempt.task_id)
    listed = (await owner.get("/api/schedules", params={"limit": 1})).json()["schedules"]
    assert [one["lastOutcome"] for one in (schedule, found["schedule"], *listed)] == [None, "failed", "failed"]
    assert (await attempt.detail())["task"]["scheduleId"] == schedule["scheduleId"]


async def test_a_pipeline_runs_its_steps_one_after_the_other(owner: httpx2.AsyncClient, runner: Runner) -> None:
    prompts = ["make build", "make test", "make deploy"]
    body = {"steps": [task(prompt=prompt, machine=runner.machine) for prompt in prompts], "requestKey": runner.id}

    created = await owner.post("/api/pipelines", json=body)
    assert created.status_code == 201, created.text
    again = await owner.post("/api/pipelines", json=body)
    done = []
    for _ in prompts:
        attempt = await taken(runner)
        await attempt.finish()
        done.append((await attempt.detail())["task"])

    assert again.status_code == 200
    assert [step["scheduleId"] for step in again.json()["steps"]] == [
        step["scheduleId"] for step in created.json()["steps"]
    ]
    waiting = created.json()["steps"][1]
    assert waiting["why"] == f"waits for a run of {created.json()['pipelineId']} to succeed"
    assert [one["prompt"] for one in done] == prompts
    assert [one["continueFrom"] for one in done] == [None, done[0]["taskId"], done[1]["taskId"]]


async def test_a_schedule_is_paused_resumed_listed_and_cancelled_with_its_task(
    owner: httpx2.AsyncClient, runner: Runner
) -> None:
    once_only = await made(owner, once(machine=runner.machine))
    attempt = await taken(runner)
    schedule = await made(owner, cron(requestKey=runner.id))
    path = f"/api/schedules/{schedule['scheduleId']}"

    paused = (await owner.post(f"{path}/pause", json={"reason": "holidays"})).json()
    listed = (await owner.get("/api/schedules", params={"status": "paused", "limit": 1})).json()
    resumed = (await owner.post(f"{path}/resume", json={})).json()
    cancelled = (await owner.post(f"{path}/cancel", json={"reason": "enough", "cancelTasks": True})).json()
    same = await owner.post("/api/schedules", json=cron(requestKey=runner.id))
    stopped = await owner.post(f"/api/schedules/{once_only['scheduleId']}/cancel", json={"cancelTasks": True})

    assert (paused["status"], paused["nextRunAt"], paused["message"]) == ("paused", None, "paused: holidays")
    assert [one["scheduleId"] for one in listed["schedules"]] == [schedule["scheduleId"]]
    assert listed["next"].startswith("s")
    assert (resumed["status"], resumed["nextRunAt"]) == ("active", schedule["nextRunAt"])
    assert (cancelled["schedule"]["status"], cancelled["tasks"]) == ("cancelled", [])
    assert (same.status_code, same.json()["schedule"]["status"]) == (200, "cancelled")
    assert [one["taskId"] for one in stopped.json()["tasks"]] == [attempt.task_id]
    assert (await attempt.renew())["cancel"] == "cancelled by the user"
    problem_of(await owner.post(f"{path}/resume", json={}), 409, "schedule_ended")


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (cron(cronExpression="* * * *"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="60 * * * *"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="0 0 31 2 *"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="0 0 2 * * *"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="0 0 2 * * * *"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="@every 0s"), "invalid_schedule", "cronExpression"),
        (cron(cronExpression="\x00 * * * *"), "invalid_schedule", "cronExpression"),
        (cron(timezone="Mars/Base"), "invalid_schedule", "timezone"),
        (cron(timezone="../../etc/passwd"), "invalid_field", "timezone"),
        (cron(maxRuns=0), "invalid_field", "maxRuns"),
        (cron(expiresAt="2020-01-01T00:00:00Z"), "invalid_schedule", "expiresAt"),
        (cron(afterSchedule="schedule-0"), "invalid_schedule", "afterSchedule"),
        (once(scheduledAt="2020-01-01T00:00:00Z"), "invalid_schedule", "scheduledAt"),
        (once(scheduledAt="2099-01-01T00:00:00"), "invalid_field", "scheduledAt"),
        (once(scheduledAt="9999-12-31T23:59:59-12:00"), "invalid_field", "scheduledAt"),
        (once(scheduledAt=LATER, timeout=0), "invalid_field", "timeout"),
        (once(scheduledAt=LATER, dependsOn=["task-0"]), "unknown_dependency", "dependsOn"),
        (once(scheduledAt=LATER, agent="nobody"), "unknown_agent", "agent"),
    ],
)
async def test_a_bad_schedule_is_refused_by_its_field(
    owner: httpx2.AsyncClient, body: dict[str, Any], code: str, field: str
) -> None:
    refusal = problem_of(await owner.post("/api/schedules", json=body), 422, code)

    assert refusal["field"] == field


async def test_an_unknown_schedule_is_not_found(owner: httpx2.AsyncClient) -> None:
    for name in ("schedule-0", "%00", "a" * 300):
        response = await owner.get(f"/api/schedules/{name}")
        assert problem_of(response, 404, "no_such_schedule")["detail"].startswith("no schedule ")


async def test_a_pipeline_of_one_step_is_refused(owner: httpx2.AsyncClient) -> None:
    response = await owner.post("/api/pipelines", json={"steps": [task()]})

    assert problem_of(response, 422, "invalid_field")["field"] == "steps"


@pytest.mark.slow
@pytest.mark.promise("P14")
@pytest.mark.parametrize("point", ["fire.before", "fire.after"])
async def test_a_relay_that_is_killed_while_it_fires_fires_once(tmp_path: Path, point: str) -> None:
    first = start_relay(tmp_path, DELEGATE_FAILPOINTS=f"{point}=kill")
    async with client(first.url) as owner:
        schedule = await made(owner, once(missedRunPolicy="catchup"))
    first.process.wait(WAIT * 2)
    end(first)

    second = start_relay(tmp_path)
    try:
        async with client(second.url) as owner, runner_of(owner, "nowhere") as runner:
            attempt = await taken(runner)
            assert await runner.ask() is None
            (run,) = (await seen(owner, schedule["scheduleId"]))["history"]
            assert (run["taskId"], run["outcome"]) == (attempt.task_id, "started")
    finally:
        end(second)


async def test_what_cannot_be_accepted_is_refused_in_our_own_words(owner: httpx2.AsyncClient) -> None:
    refused = [
        await owner.post("/api/schedules", json=cron(cronExpression="")),
        await owner.post("/api/schedules", json=cron(continueFrom="")),
        await owner.post("/api/schedules", json=cron(prompt="")),
        await owner.post("/api/pipelines", json={"steps": [task(), task(prompt="")]}),
        await owner.post("/api/schedules", json=cron(timezone="x" * 101)),
        await owner.post("/api/schedules", json=cron(colour="red")),
        await owner.post("/api/pipelines", json={}),
        await owner.post("/api/pipelines", json={"steps": [task()]}),
        await owner.get("/api/schedules", params={"cursor": "1"}),
    ]

    assert [problem_of(response, 422, "invalid_field")["detail"] for response in refused] == [
        "cronExpression: is empty; give it a value, or leave it out",
        "continueFrom: is empty; give it a value, or leave it out",
        "prompt: is empty; give it a value",
        "steps.1.prompt: is empty; give it a value",
        "timezone: has more than 100 characters",
        "colour: is not a known field",
        "steps: is missing",
        "steps: needs at least 2 entries, not 1",
        "cursor: is not a valid cursor; send `next` of the previous page unchanged",
    ]


@pytest.mark.parametrize("moment", NO_MOMENTS, ids=repr)
@pytest.mark.parametrize("field", ["scheduledAt", "expiresAt"])
async def test_a_moment_is_written_out_with_its_zone(owner: httpx2.AsyncClient, field: str, moment: object) -> None:
    refusal = problem_of(await owner.post("/api/schedules", json=once(**{field: moment})), 422, "invalid_field")

    assert refusal["detail"] == f"{field}: is not an ISO 8601 time with a zone; write it like 2030-02-19T08:00:00Z"


async def test_the_last_moment_there_is_can_be_scheduled(owner: httpx2.AsyncClient) -> None:
    last = "9999-12-31T23:59:59Z"

    schedule = await made(owner, once(scheduledAt=last, expiresAt=None))
    over = await owner.post("/api/schedules", json=once(scheduledAt="9999-12-31T23:59:59-01:00"))

    assert schedule["nextRuns"] == [last]
    assert problem_of(over, 422, "invalid_field")["detail"].endswith("is outside the years 1 to 9999 in UTC")
    await owner.post(f"/api/schedules/{schedule['scheduleId']}/cancel", json={})
