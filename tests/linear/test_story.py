"""PER-44 by webhook: from the delegation to the response on the issue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.linear.desk import REPOSITORY, Desk, open_desk
from tests.relay.peers import fact

from delegate.relay.linear import outbox
from delegate.relay.linear.loops import run_linear

pytestmark = pytest.mark.anyio
PULL_REQUEST = f"https://github.com/{REPOSITORY}/pull/324"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def test_a_delegated_issue_becomes_a_task_and_ends_with_its_pull_request(desk: Desk) -> None:
    await desk.map_project()
    issue = desk.per_44("delego:claude-sonnet-4-5", "delegate:high")
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    queued = desk.said(session)
    attempt = await desk.claim()
    plan = [{"title": "Add the middleware", "state": "in_progress"}]
    await attempt.record(
        fact(0, "workspace", base="main", branch="per-44-runner-ratelimit"),
        fact(1, "session", sessionId="s-1", model="claude-sonnet-4-5"),
        fact(2, "todo", items=plan),
    )
    desk.clock.advance(60)
    await attempt.record(fact(3, "tool", name="Edit", summary="route.ts +48 −12", id="t"))
    await desk.settle()
    working = desk.state_of(issue)
    await attempt.record(fact(4, "check", command="pnpm test", ok=True, passed=17, total=17, line="17/17 1.2s"))
    await desk.complete(attempt, seq=5)
    await desk.settle()

    (task,) = await desk.tasks()
    assert (task["agent"], task["model"], task["effort"]) == ("claude", "claude-sonnet-4-5", "high")
    assert (task["repository"], task["mode"], task["issue"]["key"]) == (REPOSITORY, "pull_request", "PER-44")
    assert queued[0] == ("thought", f"claude · sonnet-4-5 · high (label) in {REPOSITORY} (project)")
    assert working == "In Progress"
    said = desk.said(session)
    assert ("thought", "Worktree created from main: branch `per-44-runner-ratelimit`.") in said
    assert ("thought", "Claude session opened · model sonnet-4-5 · thinking high.") in said
    assert ("action", "Check pnpm test") in said
    kind, response = said[-1]
    assert kind == "response"
    assert PULL_REQUEST in response
    assert "Checks: 1 of 1 passed" in response
    assert "9 files, +108 −18" in response
    assert session["plan"] == [{"content": "Add the middleware", "status": "inProgress"}]
    assert [link["url"] for link in session["externalLinks"]] == [PULL_REQUEST]
    assert [row["url"] for row in desk.linear.tables["Attachment"].values()] == [PULL_REQUEST]
    assert desk.state_of(issue) == "In Review"
    assert desk.linear.unmodelled == set()
    assert {answer.status_code for answer in desk.answers} == {200}


async def test_the_timeline_begins_with_where_the_work_came_from(desk: Desk) -> None:
    await desk.map_project()
    desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    (task,) = await desk.tasks()

    detail = (await desk.http.get(f"/api/tasks/{task['taskId']}")).json()

    assert [event["kind"] for event in detail["events"]] == ["submitted", "triggered"]
    data = detail["events"][1]["data"]
    assert data == {"from": "Linear", "issue": "PER-44", "by": "Marek", "because": "PER-44 was delegated"}


async def test_a_failure_is_an_error_with_the_reason_and_the_fix(desk: Desk) -> None:
    await desk.map_project()
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    await attempt.finish(outcome="failed", reason="checks_failed", message="pnpm test failed")
    await desk.settle()

    kind, text = desk.said(session)[-1]
    assert kind == "error"
    assert "pnpm test failed" in text
    assert "What to do: `delegate logs`" in text


@pytest.mark.parametrize(("patience", "is_posted"), [(60.0, True), (0.0, False)])
async def test_the_runner_learns_whether_linear_has_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, patience: float, is_posted: bool
) -> None:
    monkeypatch.setattr(outbox, "END_TIMEOUT", patience)
    await desk.map_project()
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()
    attempt = await desk.claim()
    async with anyio.create_task_group() as group:
        group.start_soon(run_linear, desk.link)
        await anyio.wait_all_tasks_blocked()
        finished = await attempt.finish(message="done")
        said = desk.said(session)
        group.cancel_scope.cancel()

    assert finished["isPosted"] is is_posted
    assert not is_posted or said[-1][0] == "response"
