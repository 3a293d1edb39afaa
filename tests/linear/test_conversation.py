"""What people say and do in Linear after they have delegated an issue, and what is unclear before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.linear_deliveries import Entity
from tests.linear.desk import REPOSITORY, Desk, open_desk
from tests.relay.peers import Attempt

from delegate.model import AttemptId
from delegate.queue.questions import ask
from delegate.report.linear import keep_alive

pytestmark = pytest.mark.anyio
REFUSAL = "Only members of the workspace can start work; guests and apps cannot."


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def delegated(desk: Desk, *labels: str) -> tuple[Entity, Entity, dict[str, Any]]:
    """The issue, its session and its task."""
    await desk.map_project()
    issue = desk.per_44(*labels)
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    return issue, session, (await desk.tasks())[0]


async def question_of(desk: Desk, attempt: Attempt, text: str, *options: str) -> None:
    await ask(desk.relay.database, AttemptId(attempt.id), text, options, desk.relay.now())
    await attempt.finish(outcome="waiting", reason="question", sessionId="session-1")
    await desk.settle()


async def test_a_question_is_an_elicitation_and_the_reply_resumes_the_session(desk: Desk) -> None:
    _, session, task = await delegated(desk)
    attempt = await desk.claim()
    await question_of(desk, attempt, "Red or blue?", "red", "blue")
    asked, status = desk.linear.activities(session)[-1], desk.linear.session_status(session)
    desk.linear.reply(session, "blue")
    await desk.settle()
    resumed = await desk.runner.ask()

    assert (asked["type"], asked["body"], asked["signal"]) == ("elicitation", "Red or blue?", "select")
    assert status == "awaitingInput"
    assert resumed is not None
    assert resumed["taskId"] == task["taskId"]
    assert resumed["resumeSession"] == "session-1"
    assert [(one["text"], one["answer"]) for one in resumed["questions"]] == [("Red or blue?", "blue")]
    assert len(await desk.tasks()) == 1


async def test_a_follow_up_reaches_the_running_agent_once(desk: Desk) -> None:
    _, session, _ = await delegated(desk)
    attempt = await desk.claim()
    desk.linear.chaos("duplicate", match="prompted", copies=2, new_id=True)
    desk.linear.reply(session, "Also cover the empty range")
    await desk.settle()

    messages = (await attempt.renew())["messages"]

    assert [message["text"] for message in messages] == ["Also cover the empty range"]
    assert desk.said(session).count(("thought", "Sent to the agent.")) == 1


async def test_a_follow_up_after_the_end_continues_on_the_same_branch(desk: Desk) -> None:
    _, session, first = await delegated(desk)
    await desk.complete(await desk.claim())
    await desk.settle()
    desk.linear.reply(session, "Add a test, please")
    await desk.settle()
    second = await desk.claim()
    await desk.complete(second)
    await desk.settle()

    newest = await desk.task(second.task_id)
    assert (newest["retryOf"], newest["lineage"]) == (first["taskId"], first["taskId"])
    assert newest["context"] == "Add a test, please"
    kinds = [kind for kind, _ in desk.said(session)]
    assert kinds.count("response") == 2
    assert len(desk.linear.tables["Attachment"]) == 1


async def test_stop_cancels_and_is_answered_once(desk: Desk) -> None:
    _, session, task = await delegated(desk)
    attempt = await desk.claim()
    desk.linear.stop(session)
    await desk.settle()
    told = (await attempt.renew())["cancel"]
    await attempt.finish(outcome="cancelled", reason="cancelled", message="cancelled by the user")
    await desk.settle()
    ended = await desk.task(task["taskId"])
    desk.linear.stop(session)
    await desk.settle()

    assert told == "stopped in Linear"
    assert ended["status"] == "cancelled"
    responses = [text for kind, text in desk.said(session) if kind == "response"]
    assert len([text for text in responses if "stopped in Linear" in text]) == 1


@pytest.mark.parametrize("how", ["undelegated", "closed"])
async def test_an_issue_that_is_taken_back_or_closed_is_cancelled(desk: Desk, how: str) -> None:
    issue, session, task = await delegated(desk)
    if how == "closed":
        desk.linear.close_issue(issue)
    else:
        desk.linear.undelegate(issue)
    await desk.settle()

    assert (await desk.task(task["taskId"]))["status"] == "cancelled"
    assert desk.said(session)[-1][0] == "response"


async def test_delegating_again_continues_instead_of_starting_cold(desk: Desk) -> None:
    issue, _, first = await delegated(desk)
    await desk.complete(await desk.claim())
    await desk.settle()
    again = desk.linear.delegate_issue(issue)
    await desk.settle()

    newest = (await desk.tasks())[0]
    assert newest["retryOf"] == first["taskId"]
    assert f"continuing {first['taskId']}" in desk.said(again)[0][1]


async def test_delegating_again_while_it_runs_starts_no_second_agent(desk: Desk) -> None:
    issue, session, task = await delegated(desk)
    await desk.claim()
    again = desk.linear.mention(issue, "how far are you?")
    await desk.settle()

    assert [one["taskId"] for one in await desk.tasks()] == [task["taskId"]]
    assert desk.said(again)[0] == ("thought", f"Already working on it: {task['taskId']}.")
    assert desk.said(session)[-1][0] == "response"


async def test_an_edited_description_reaches_the_running_agent_and_no_ended_one(desk: Desk) -> None:
    issue, session, _ = await delegated(desk)
    await desk.complete(await desk.claim())
    await desk.settle()
    desk.linear.edit_issue(issue, title="A new title")
    await desk.settle()
    tasks_after_end = await desk.tasks()
    desk.linear.reply(session, "Go on")
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.chaos("duplicate", match="Issue.update", copies=3, new_id=True)
    desk.linear.edit_issue(issue, description="Cap at 50 requests")
    await desk.settle()

    assert len(tasks_after_end) == 1
    (message,) = (await attempt.renew())["messages"]
    assert "Cap at 50 requests" in message["text"]


async def test_an_unclear_repository_is_asked_for_and_remembered(desk: Desk) -> None:
    await desk.map_project()
    issue = desk.linear.add_issue("Fix the export")
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    asked, before = desk.linear.activities(session)[-1], await desk.tasks()
    desk.linear.reply(session, "acme/export")
    await desk.settle()

    assert before == []
    assert (asked["type"], asked["body"]) == ("elicitation", "Which repository is this issue for?")
    assert (await desk.tasks())[0]["repository"] == "acme/export"
    assert desk.said(session)[-1][1] == "claude in acme/export (project)"


async def test_a_confident_suggestion_of_linear_is_used(desk: Desk) -> None:
    await desk.map_project()
    issue = desk.linear.add_issue("Fix the export")
    desk.linear.suggest_repository(issue, REPOSITORY, 0.95)
    desk.linear.delegate_issue(issue)
    await desk.settle()

    assert (await desk.tasks())[0]["repository"] == REPOSITORY


async def test_two_executor_labels_are_a_question_before_anything_runs(desk: Desk) -> None:
    await desk.map_project()
    issue = desk.per_44("delegate:claude", "delegate:codex")
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    (kind, text), before = desk.said(session)[-1], await desk.tasks()
    desk.linear.remove_label(issue, "delegate:codex")
    desk.linear.reply(session, "fixed")
    await desk.settle()

    assert (kind, before) == ("elicitation", [])
    assert "two executor labels: " in text
    assert [task["agent"] for task in await desk.tasks()] == ["claude"]


async def test_an_unknown_key_in_a_tag_is_told_with_the_nearest_one(desk: Desk) -> None:
    await desk.map_project()
    session = desk.linear.delegate_issue(desk.per_44("delegate:modell=opus"))
    await desk.settle()

    assert "did you mean model?" in desk.said(session)[-1][1]
    assert await desk.tasks() == []


async def test_a_follow_up_is_the_task_of_who_asks_for_it(desk: Desk) -> None:
    for name in ("ana", "bob"):
        desk.linear.add_user(name.title(), email=f"{name}@example.com")
        await desk.http.post("/api/people", json={"name": name, "email": f"{name}@example.com", "role": "member"})
    await desk.map_project()
    session = desk.linear.delegate_issue(desk.per_44(), by="Ana")
    await desk.settle()
    await desk.complete(await desk.claim())
    await desk.settle()
    desk.linear.reply(session, "Add a test", by="Bob")
    await desk.settle()
    audit = (await desk.http.get("/api/audit")).json()["entries"]

    made = [(one["actor"], one["action"]) for one in audit if one["action"] in ("submit", "resume")]
    assert made == [("bob", "resume"), ("ana", "submit")]


@pytest.mark.parametrize(("change", "why"), [("disable", "disabled"), ("role", "now a viewer")])
async def test_who_may_not_submit_in_delegate_cannot_do_it_through_linear(desk: Desk, change: str, why: str) -> None:
    await desk.map_project()
    marek = desk.linear.add_user("Marek", email="Marek@Example.com")
    await desk.http.post("/api/people", json={"name": "marek", "email": "marek@example.com", "role": "member"})
    await desk.http.post(f"/api/people/marek/{change}", json={"role": "viewer"} if change == "role" else {})
    session = desk.linear.delegate_issue(desk.per_44(), by=marek)
    await desk.settle()

    assert await desk.tasks() == []
    assert desk.said(session) == [("error", f"marek is {why} in Delegate; an admin can change it.")]


async def test_a_guest_starts_nothing_and_is_told_why(desk: Desk) -> None:
    await desk.map_project()
    guest = desk.linear.add_user("Gast")
    guest["guest"] = True
    issue = desk.per_44()
    session = desk.linear.delegate_issue(issue, by=guest)
    await desk.settle()

    assert await desk.tasks() == []
    assert desk.said(session) == [("error", REFUSAL)]


@pytest.mark.parametrize("how", ["reply", "stop"])
async def test_what_a_guest_says_in_a_session_is_not_obeyed(desk: Desk, how: str) -> None:
    _, session, task = await delegated(desk)
    attempt = await desk.claim()
    guest = desk.linear.add_user("Gast")
    guest["guest"] = True
    if how == "stop":
        desk.linear.stop(session, by=guest)
    else:
        desk.linear.reply(session, "Delete everything", by=guest)
    await desk.settle()

    renewed = await attempt.renew()
    assert (renewed["messages"], renewed["cancel"]) == ([], None)
    assert (await desk.task(task["taskId"]))["status"] == "running"
    assert ("thought", REFUSAL) in desk.said(session)


async def test_a_guest_cannot_answer_a_question(desk: Desk) -> None:
    _, session, task = await delegated(desk)
    await question_of(desk, await desk.claim(), "Red or blue?", "red", "blue")
    guest = desk.linear.add_user("Gast")
    guest["guest"] = True
    desk.linear.reply(session, "blue", by=guest)
    await desk.settle()

    assert (await desk.task(task["taskId"]))["status"] == "waiting"
    assert (desk.said(session)[-1], desk.linear.session_status(session)) == (("elicitation", REFUSAL), "awaitingInput")


async def test_a_label_starts_work_in_a_session_of_its_own(desk: Desk) -> None:
    await desk.map_project()
    issue = desk.per_44()
    await desk.settle()
    desk.linear.add_label(issue, "delego:claude-sonnet-4-5")
    await desk.settle()

    (task,) = await desk.tasks()
    (session,) = desk.linear.sessions
    assert task["model"] == "claude-sonnet-4-5"
    assert desk.said(session)[0][1] == f"claude · sonnet-4-5 (label) in {REPOSITORY} (project)"


async def test_with_every_runner_asleep_the_first_thought_says_so(desk: Desk) -> None:
    await desk.map_project()
    desk.clock.advance(4 * 3600)
    session = desk.linear.delegate_issue(desk.per_44())
    await desk.settle()

    assert desk.said(session)[0][1].endswith("Queued; last runner seen 4 h ago.")


async def test_a_session_is_kept_alive_while_its_task_waits(desk: Desk) -> None:
    _, session, _ = await delegated(desk)
    desk.clock.advance(26 * 60)
    await keep_alive(desk.relay.database, desk.relay.now())
    await desk.settle()
    desk.clock.advance(20 * 60)

    assert desk.linear.session_status(session) == "active"
