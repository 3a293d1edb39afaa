"""The HTTP routes for people and their programs."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import httpx2
import pytest
from tests.relay.peers import NOW, RelayProcess, Runner, chunk, fact, problem_of, task

from delegate.model import Stream
from delegate.relay.access import ROUTES
from delegate.relay.feeds import LINES_MAX
from delegate.relay.output_lines import Line, OutputTail

pytestmark = pytest.mark.anyio

TASK_KEYS = {
    "taskId",
    "status",
    "priority",
    "agent",
    "model",
    "prompt",
    "workingDirectory",
    "exitCode",
    "reason",
    "why",
    "createdAt",
    "startedAt",
    "finishedAt",
    "retryOf",
    "parentTaskId",
    "attempt",
    "usage",
}
USAGE_KEYS = {"inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "costUsd", "turns"}


async def test_a_submitted_task_is_answered_in_full(owner: httpx2.AsyncClient) -> None:
    wanted = task(
        agent="claude",
        priority="P0",
        model="claude-sonnet-4-5",
        effort="high",
        permissionMode="plan",
        timeout=5_000,
        maxOutputBuffer=4_096,
        maxBudgetUsd=1.5,
        maxTurns=7,
        rerun=True,
    )

    response = await owner.post("/api/tasks", json=wanted)

    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) >= TASK_KEYS
    assert set(answer["usage"]) == USAGE_KEYS
    assert {name: answer[name] for name in wanted} == wanted
    assert (answer["status"], answer["attempt"], answer["startedAt"]) == ("queued", 0, None)


async def test_what_is_not_asked_for_has_its_default(owner: httpx2.AsyncClient) -> None:
    body = {"prompt": "look around", "workingDirectory": "/tmp", "machine": "nowhere"}

    answer = (await owner.post("/api/tasks", json=body)).json()

    assert (answer["agent"], answer["priority"], answer["rerun"]) == ("claude", "P2", False)
    assert (answer["timeout"], answer["maxOutputBuffer"]) == (30 * 60_000, 10 * 1024 * 1024)


async def test_the_same_request_key_gives_the_same_task(owner: httpx2.AsyncClient) -> None:
    body = task(requestKey="key-of-one-request")

    first = await owner.post("/api/tasks", json=body)
    second = await owner.post("/api/tasks", json=body)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["taskId"] == second.json()["taskId"]


async def test_pages_go_from_the_newest_to_the_oldest_and_meet_every_task_once(runner: Runner) -> None:
    submitted = [(await runner.submit(prompt=f"echo {number}"))["taskId"] for number in range(5)]
    found: list[str] = []
    cursor: dict[str, str] = {}

    while len(found) < 5:
        page = (await runner.owner.get("/api/tasks", params={"limit": 2, **cursor})).json()
        assert set(page) == {"tasks", "next"}
        found += [entry["taskId"] for entry in page["tasks"]]
        cursor = {"cursor": page["next"]}

    assert found[:5] == submitted[::-1]


async def test_tasks_can_be_listed_by_status(runner: Runner) -> None:
    attempt = await runner.take()
    waiting = await runner.submit()

    listed = {
        status: [entry["taskId"] for entry in (await runner.owner.get(f"/api/tasks?status={status}")).json()["tasks"]]
        for status in ("queued", "running")
    }

    assert attempt.task_id in listed["running"]
    assert waiting["taskId"] in listed["queued"]
    assert attempt.task_id not in listed["queued"]


async def test_a_task_in_full_has_its_attempts_and_its_timeline(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(fact(0, "started", pid=7, argv0="sh"), chunk(1, b"hi\n"))
    await attempt.finish(2, exitCode=0, usage={"inputTokens": 5, "costUsd": 0.25})

    detail = await attempt.detail()

    assert set(detail) == {"task", "checkpoint", "attempts", "events"}
    assert [event["kind"] for event in detail["events"]] == ["submitted", "claimed", "started", "finished"]
    assert {"id", "taskId", "attemptId", "kind", "at", "data"} == set(detail["events"][0])
    (only,) = detail["attempts"]
    assert (only["attemptId"], only["state"], only["outputBytes"]) == (attempt.id, "completed", 3)
    ended = detail["task"]
    assert (ended["status"], ended["reason"], ended["exitCode"], ended["attempt"]) == ("completed", "done", 0, 1)
    assert (ended["usage"]["inputTokens"], ended["usage"]["costUsd"]) == (5, 0.25)
    assert ended["startedAt"] <= ended["finishedAt"]


async def test_a_queued_task_says_why_it_waits(owner: httpx2.AsyncClient) -> None:
    submitted = (await owner.post("/api/tasks", json=task(machine="a-machine-nobody-has"))).json()

    shown = (await owner.get(f"/api/tasks/{submitted['taskId']}")).json()["task"]

    assert shown["why"]


async def test_a_queued_task_is_cancelled_at_once(runner: Runner) -> None:
    submitted = await runner.submit()

    response = await runner.owner.post(f"/api/tasks/{submitted['taskId']}/cancel", json={"reason": "not needed"})

    assert response.status_code == 200
    answer = response.json()
    assert (answer["status"], answer["reason"], answer["message"]) == ("cancelled", "cancelled", "not needed")
    assert await runner.ask() is None


async def test_a_running_task_is_asked_to_stop(runner: Runner) -> None:
    attempt = await runner.take()

    answer = (await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})).json()

    assert (answer["status"], answer["why"]) == ("running", "is being cancelled")
    assert (await attempt.renew())["cancel"]


async def test_an_ended_task_cannot_be_cancelled(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.finish()

    response = await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})

    assert "retry" in problem_of(response, 409, "illegal_move")["hint"]


async def test_a_retry_is_a_new_task_that_knows_the_old_one(runner: Runner) -> None:
    attempt = await runner.take(prompt="exit 1", priority="P1")
    await attempt.finish(outcome="failed", reason="command_failed", exitCode=1)

    response = await runner.owner.post(f"/api/tasks/{attempt.task_id}/retry", json={"requestKey": f"k-{attempt.id}"})

    assert response.status_code == 201
    again = response.json()
    assert (again["retryOf"], again["parentTaskId"]) == (attempt.task_id, attempt.task_id)
    assert (again["prompt"], again["priority"], again["status"]) == ("exit 1", "P1", "queued")
    assert (again["exitCode"], again["attempt"], again["retryCount"]) == (None, 0, 1)


async def test_a_task_that_still_runs_is_not_retried(runner: Runner) -> None:
    attempt = await runner.take()

    response = await runner.owner.post(f"/api/tasks/{attempt.task_id}/retry", json={})

    assert problem_of(response, 409, "illegal_move")["detail"].endswith("is running: it cannot be retried")


async def test_a_message_for_an_agent_at_work_is_accepted(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")

    response = await runner.owner.post(f"/api/tasks/{attempt.task_id}/messages", json={"text": "use tabs"})

    assert response.status_code == 202
    assert response.json()["taskId"] == attempt.task_id


@pytest.mark.parametrize("agent", ["shell", "claude"])
async def test_a_message_before_the_start_is_refused(runner: Runner, agent: str) -> None:
    submitted = await runner.submit(agent=agent)

    response = await runner.owner.post(f"/api/tasks/{submitted['taskId']}/messages", json={"text": "use tabs"})

    assert problem_of(response, 409, "illegal_move")["detail"].endswith("is queued: it cannot be sent a message")


async def test_output_is_shown_as_lines_of_both_streams(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(chunk(0, b"one\ntw"), chunk(1, b"oops\r\n", "stderr"), chunk(2, b"o\n\xff\nlast"))

    shown = (await runner.owner.get(f"/api/tasks/{attempt.task_id}/output")).json()

    assert set(shown) == {"lines", "truncatedBytes"}
    assert [(line["stream"], line["text"]) for line in shown["lines"]] == [
        ("stdout", "one"),
        ("stderr", "oops"),
        ("stdout", "two"),
        ("stdout", "\N{REPLACEMENT CHARACTER}"),
        ("stdout", "last"),
    ]
    assert shown["lines"][0]["at"] == NOW.replace("+00:00", "Z")


async def test_the_tail_of_the_output_can_be_asked_for(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(chunk(0, b"".join(b"%d\n" % number for number in range(100))))

    shown = (await runner.owner.get(f"/api/tasks/{attempt.task_id}/output?tail=3")).json()

    assert [line["text"] for line in shown["lines"]] == ["97", "98", "99"]


async def test_a_line_without_end_is_shown_in_pieces(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(*[chunk(seq, b"x" * 100_000) for seq in range(3)], chunk(3, b"y\nlast\n"))

    shown = (await runner.owner.get(f"/api/tasks/{attempt.task_id}/output")).json()

    assert "".join(line["text"] for line in shown["lines"]) == "x" * 300_000 + "y" + "last"
    assert shown["lines"][-1]["text"] == "last"


def test_the_end_of_very_much_output_is_not_more_than_an_answer_should_carry() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    tail = OutputTail(10_000, LINES_MAX)

    for number in range(600):
        tail.add(Line(at, Stream.STDOUT, data) for data in (b"%d" % number, b"x" * 64 * 1024))

    assert tail.lines[-2].text == "599"
    assert sum(len(line.data) for line in tail.lines) <= LINES_MAX


async def test_raw_output_has_the_exact_bytes_of_each_stream(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(chunk(0, b"a\xff\x00"), chunk(1, b"err", "stderr"), chunk(2, b"\r\nb"))
    address = f"/api/tasks/{attempt.task_id}/output/raw"

    shown = {
        stream: await runner.owner.get(address, params={"stream": stream}) for stream in ("stdout", "stderr", "all")
    }

    assert {stream: response.content for stream, response in shown.items()} == {
        "stdout": b"a\xff\x00\r\nb",
        "stderr": b"err",
        "all": b"a\xff\x00err\r\nb",
    }
    assert shown["all"].headers["content-type"] == "application/octet-stream"


async def test_output_beyond_the_limit_has_a_counted_cut(runner: Runner) -> None:
    attempt = await runner.take(maxOutputBuffer=1_024)
    await attempt.record(chunk(0, b"a" * 1_000), chunk(1, b"b" * 1_000))

    raw = (await runner.owner.get(f"/api/tasks/{attempt.task_id}/output/raw")).content
    lines = (await runner.owner.get(f"/api/tasks/{attempt.task_id}/output")).json()

    assert raw == b"a" * 128 + "\n[… 976 bytes left out …]\n".encode() + b"b" * 896
    assert lines["truncatedBytes"] == 976


async def test_a_task_without_attempts_has_no_output(runner: Runner) -> None:
    submitted = await runner.submit()

    raw = await runner.owner.get(f"/api/tasks/{submitted['taskId']}/output/raw")

    assert (raw.status_code, raw.content) == (200, b"")


async def test_the_relay_tells_about_itself_and_its_runners(runner: Runner) -> None:
    attempt = await runner.take()

    shown = (await runner.owner.get("/api/relay")).json()

    assert {"version", "pid", "database", "startedAt", "tasks", "runners"} <= set(shown)
    assert shown["database"] == "sqlite"
    assert shown["tasks"]["running"] >= 1
    assert shown["runners"]["total"] >= 1
    me = await runner.listed()
    assert (me["state"], [task["taskId"] for task in me["tasks"]]) == ("claiming", [attempt.task_id])
    assert [agent["name"] for agent in me["agents"]] == ["shell", "claude"]
    assert me["slots"] == {"busy": 1, "total": 1}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/api/openapi.json"])
async def test_health_and_the_apis_document_need_no_token(owner: httpx2.AsyncClient, path: str) -> None:
    response = await owner.get(path, headers={"authorization": ""})

    assert response.status_code == 200
    assert response.json()


async def test_the_apis_document_names_every_body_and_every_kind_of_refusal(owner: httpx2.AsyncClient) -> None:
    document = (await owner.get("/api/openapi.json")).json()

    posts = [operations["post"] for operations in document["paths"].values() if "post" in operations]
    assert len(posts) == len([route for route in ROUTES if route.startswith("POST /api/")])
    assert all(post["requestBody"]["content"]["application/json"]["schema"]["$ref"] for post in posts)
    assert all("application/problem+json" in post["responses"]["422"]["content"] for post in posts)
    assert document["components"]["schemas"]["SubmitRequest"]["additionalProperties"] is False


async def test_the_apis_document_says_where_the_relay_is_and_names_operations_after_what_they_do(
    relay: RelayProcess, owner: httpx2.AsyncClient
) -> None:
    document = (await owner.get("/api/openapi.json")).json()

    names = [one["operationId"] for operations in document["paths"].values() for one in operations.values()]
    assert document["servers"] == [{"url": relay.url}]
    assert document["paths"]["/api/tasks"]["post"]["operationId"] == "submit_task"
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) and "api" not in name for name in names), names
