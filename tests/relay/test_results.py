"""The input and the results of a task, over the routes of owners and of runners."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.relay.peers import Attempt, Runner, fact, problem_of, runner_of

pytestmark = pytest.mark.anyio

COMMIT, BASE_COMMIT = "1" * 40, "2" * 40
PUSH = {"kind": "push", "target": "work-1", "expected": COMMIT}
RESULT = {
    "summary": "did it",
    "base": "main",
    "baseCommit": BASE_COMMIT,
    "branch": "work-1",
    "commit": COMMIT,
    "pullRequest": "https://github.example/o/n/pull/7",
    "files": 2,
    "additions": 10,
    "deletions": 3,
    "checksPassed": 17,
    "checksTotal": 17,
    "isKept": False,
}
CHANGE = {"baseCommit": BASE_COMMIT, "commit": COMMIT, "patch": "--- a\n+++ b\n", "isCut": False}
USAGE = {
    "inputTokens": 1,
    "outputTokens": 2,
    "cacheReadTokens": 3,
    "cacheWriteTokens": 4,
    "costUsd": 0.5,
    "turns": 5,
}
CHECKPOINT = {
    "sessionId": "s-1",
    "branch": "work-1",
    "baseCommit": BASE_COMMIT,
    "commit": COMMIT,
    "dirtyFiles": ["a.py"],
    "outputTail": ["last words"],
    "error": "red",
    "summary": "nearly",
    "isWorkDone": True,
    "usage": USAGE,
}
ISSUE = {"key": "PER-44", "title": "rate limit", "url": "https://linear.example/PER-44", "reviewState": None}
FAILED: dict[str, Any] = {"outcome": "failed", "reason": "checks_failed", "sessionId": "s-1", "checkpoint": CHECKPOINT}


async def publishing(runner: Runner, **fields: Any) -> Attempt:
    return await runner.take(**{"agent": "claude", "pr": True, **fields})


async def of(http: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    response = await http.get(path)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def for_anybody(owner: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A task for any machine, withdrawn at once: the runners of other tests would claim it."""
    answered = (await owner.post("/api/tasks", json={"prompt": "hi", "repository": "owner/name", **fields})).json()
    await owner.post(f"/api/tasks/{answered['taskId']}/cancel", json={})
    return dict(answered)


async def test_a_submit_is_answered_with_the_preferences_and_who_decided_them(owner: httpx2.AsyncClient) -> None:
    fields = {
        "pr": True,
        "base": "main",
        "title": "a title",
        "issue": ISSUE,
        "labels": ["delegate:claude-sonnet-4-5", "bug"],
    }

    answered = await for_anybody(owner, **fields)

    wanted = {"mode": "pull_request", "repository": "owner/name", "base": "main", "title": "a title", "issue": ISSUE}
    assert {name: answered[name] for name in wanted} == wanted
    assert (answered["machine"], answered["workingDirectory"]) == ("*", None)
    assert (answered["lineage"], answered["result"]) == (answered["taskId"], None)
    assert [(choice["field"], choice["value"], choice["source"]) for choice in answered["choices"]] == [
        ("agent", "claude", "label"),
        ("model", "claude-sonnet-4-5", "label"),
        ("repository", "owner/name", "request"),
        ("base", "main", "request"),
        ("mode", "pull_request", "request"),
    ]


async def test_a_repository_alone_means_a_fresh_worktree(owner: httpx2.AsyncClient) -> None:
    answered = await for_anybody(owner)

    assert (answered["mode"], answered["agent"]) == ("worktree", "claude")


async def test_a_path_of_a_machine_is_a_repository_too(owner: httpx2.AsyncClient) -> None:
    body = {"prompt": "hi", "repository": "/srv/git/name.git", "machine": "attic"}

    assert (await owner.post("/api/tasks", json=body)).json()["machine"] == "attic"


async def test_the_end_of_a_task_shows_its_result_and_its_change(runner: Runner, owner: httpx2.AsyncClient) -> None:
    attempt = await publishing(runner)

    await attempt.finish(result=RESULT, change=CHANGE)

    assert (await attempt.detail())["task"]["result"] == RESULT
    assert await of(owner, f"/api/tasks/{attempt.task_id}/diff") == CHANGE


async def test_a_task_without_a_change_has_no_diff(runner: Runner, owner: httpx2.AsyncClient) -> None:
    submitted = await runner.submit()

    response = await owner.get(f"/api/tasks/{submitted['taskId']}/diff")

    assert problem_of(response, 409, "no_change")["detail"].endswith("has no changes to show")


async def test_the_prompt_has_its_own_address_and_is_not_in_the_timeline(
    runner: Runner, owner: httpx2.AsyncClient
) -> None:
    attempt = await publishing(runner, prompt="fix it")
    address = f"/api/tasks/{attempt.task_id}/prompt"

    before = await of(owner, address)
    await attempt.record(fact(0, "prompt", turn=1, text="You are to fix it."))

    assert before == {"text": "fix it", "isRendered": False}
    assert await of(owner, address) == {"text": "You are to fix it.", "isRendered": True}
    assert (await attempt.detail())["events"][-1]["data"] == {"turn": 1, "characters": 18}


async def test_a_resume_gives_the_next_attempt_all_it_needs_to_continue(
    runner: Runner, owner: httpx2.AsyncClient
) -> None:
    attempt = await publishing(runner, issue=ISSUE)
    await attempt.tell("effect", **PUSH, state="intent")
    await attempt.tell("effect", **PUSH, state="done", externalId=COMMIT)
    await attempt.finish(**FAILED)

    resumed = await owner.post(f"/api/tasks/{attempt.task_id}/resume", json={"context": "try the other one"})
    assignment = await runner.ask()

    assert resumed.status_code == 201
    assert assignment is not None
    assert (assignment["taskId"], assignment["lineage"]) == (resumed.json()["taskId"], attempt.task_id)
    assert (assignment["context"], assignment["resumeSession"]) == ("try the other one", "s-1")
    assert (assignment["mode"], assignment["issue"]) == ("pull_request", ISSUE)
    assert assignment["checkpoint"] == CHECKPOINT
    assert assignment["effects"] == [
        {**PUSH, "taskId": attempt.task_id, "fence": 1, "state": "done", "externalId": COMMIT}
    ]


async def test_a_restarted_runner_gets_what_the_attempt_before_has_left(runner: Runner) -> None:
    attempt = await publishing(runner)
    await attempt.tell("release", reason="handed_back", checkpoint=CHECKPOINT)
    again = await runner.ask()
    assert again is not None

    [held] = (await of(runner.http, "/api/runners/attempts"))["assignments"]

    assert held == again
    assert held["checkpoint"] == CHECKPOINT


async def test_a_task_that_is_not_over_cannot_be_resumed(runner: Runner, owner: httpx2.AsyncClient) -> None:
    submitted = await runner.submit(agent="claude")

    response = await owner.post(f"/api/tasks/{submitted['taskId']}/resume", json={})

    assert problem_of(response, 409, "illegal_move")["detail"].endswith("is queued: it cannot be resumed")


@pytest.mark.promise("P2")
async def test_a_task_is_not_done_while_an_effect_is_only_announced(runner: Runner) -> None:
    attempt = await publishing(runner)
    answered = await attempt.tell("effect", **PUSH, state="intent")

    refused = await attempt.tell("finish", nextSeq=0, outcome="completed", reason="done")

    assert answered.json() == {
        "nextSeq": 0,
        "cancel": None,
        "messages": [],
        "asked": False,
        "hasChildren": False,
        "isPosted": None,
    }
    problem_of(refused, 409, "effects_open")
    await attempt.tell("effect", **PUSH, state="done", externalId=COMMIT)
    await attempt.finish()


@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
async def test_an_effect_of_a_stale_attempt_is_refused(runner: Runner) -> None:
    attempt = await publishing(runner)
    await attempt.finish(**FAILED)

    response = await attempt.tell("effect", **PUSH, state="intent")

    assert problem_of(response, 409, "stale_fence")["detail"] == f"attempt {attempt.id} is not held with fence 1"


async def test_the_effects_of_a_task_are_shown_to_the_runners_that_had_it(
    runner: Runner, owner: httpx2.AsyncClient
) -> None:
    attempt = await publishing(runner)
    await attempt.tell("effect", **PUSH, state="intent")
    await attempt.finish(**FAILED)
    address = f"/api/runners/tasks/{attempt.task_id}/effects"

    found = await of(runner.http, address)

    assert found["status"] == "failed"
    assert [(effect["state"], effect["expected"]) for effect in found["effects"]] == [("intent", COMMIT)]
    async with runner_of(owner) as stranger:
        problem_of(await stranger.http.get(address), 403, "forbidden")
        problem_of(await stranger.http.get("/api/runners/tasks/task-none/effects"), 404, "no_such_task")


async def test_a_task_released_for_another_agent_is_claimed_by_a_runner_that_has_it(runner: Runner) -> None:
    attempt = await publishing(runner)

    await attempt.tell("release", reason="handed_back", wantsAgent="codex", message="codex is not here")

    assert await runner.ask() is None
    assignment = await runner.ask(agents=["codex"])
    assert assignment is not None
    assert (assignment["agent"], assignment["number"]) == ("codex", 1)
    problem_of(await attempt.tell("release", reason="handed_back", wantsAgent="nobody"), 422, "unknown_agent")
