"""Texts that must not be in the relay are removed for good; what happened stays."""

from __future__ import annotations

import httpx2
import pytest
from tests.relay.peers import RelayProcess, chunk, client, fact, problem_of, runner_of, task

pytestmark = pytest.mark.anyio

LEAK = "canary-8c1f0e5d7a"


async def test_a_purged_task_has_left_no_text_in_the_files_of_the_relay(own_relay: RelayProcess) -> None:
    relay = own_relay
    async with client(relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take(prompt=f"prompt {LEAK}", title=f"title {LEAK}", agent="claude")
        await owner.post(f"/api/tasks/{attempt.task_id}/messages", json={"text": f"message {LEAK}"})
        await attempt.record(
            fact(0, text=f"event {LEAK}"),
            fact(1, "check", command=LEAK, ok=True, passed=3, total=3, line=LEAK),
            *(chunk(number, f"output {LEAK}\n".encode() * 1_000) for number in range(2, 10)),
        )
        change = {"baseCommit": "a" * 40, "commit": "b" * 40, "patch": f"+{LEAK}\n" * 1_000, "isCut": False}
        result = {"summary": LEAK, "files": 2, "additions": 5, "deletions": 1}
        await attempt.finish(
            10, message=LEAK, result=result, change=change, checkpoint={"summary": LEAK, "outputTail": [LEAK]}
        )
        purged = await owner.post(f"/api/tasks/{attempt.task_id}/purge", json={})
        detail = (await owner.get(f"/api/tasks/{attempt.task_id}")).json()
        again = await owner.post(f"/api/tasks/{attempt.task_id}/purge", json={})
        problem_of(await owner.post(f"/api/tasks/{attempt.task_id}/retry", json={}), 409, "illegal_move")

    assert purged.status_code == 200, purged.text
    files = [path for path in relay.home.iterdir() if path.is_file()]
    assert [path.name for path in files if LEAK.encode() in path.read_bytes()] == []
    assert (detail["task"]["status"], detail["task"]["prompt"]) == ("completed", "[purged]")
    assert (detail["task"]["result"]["files"], detail["task"]["result"]["additions"]) == (2, 5)
    kinds = {event["kind"]: event["data"] for event in detail["events"]}
    assert kinds["check"] == {"ok": True, "passed": 3, "total": 3}
    assert kinds["finished"]["state"] == "completed"
    assert kinds["warning"]["text"] == "its texts were purged"
    assert again.json()["purgedAt"] == purged.json()["purgedAt"]
    assert any("runners" in line for line in purged.json()["remains"])


async def test_only_an_ended_task_is_purged(owner: httpx2.AsyncClient) -> None:
    submitted = await owner.post("/api/tasks", json=task())

    refused = await owner.post(f"/api/tasks/{submitted.json()['taskId']}/purge", json={})

    assert "delegate cancel" in str(problem_of(refused, 409, "illegal_move")["hint"])
