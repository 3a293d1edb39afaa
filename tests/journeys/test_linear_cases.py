"""What people do in Linear besides delegating an issue: each case with a relay, a runner, git and gh, and a scripted
agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import scripted_agent
from tests.fakes.github_repositories import Pull
from tests.fakes.linear_deliveries import APP_EVENTS, DATA_EVENTS, Entity
from tests.fakes.linear_standin import LinearStandin
from tests.fakes.world import wait_until
from tests.journeys.shop import FIXED, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real]
FIX = {"shell": f"cat > shop.py <<'EOF'\n{FIXED}EOF\n"}
NOTES = {"shell": "echo more > NOTES.md"}
REFUSAL = "Only members of the workspace can start work; guests and apps cannot."


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A Delegate that is connected to Linear, with one runner, and a repository that its project is mapped to."""

    shop: Shop
    linear: LinearStandin
    script: Path

    def play(self, *steps: dict[str, Any]) -> None:
        """What the agent does from now on."""
        self.script.write_text(json.dumps({"steps": [{"init": {}}, *steps, {"result": "Done."}]}))

    def add_issue(self, title: str, *labels: str, **fields: Any) -> Entity:
        project = self.linear.get("Project", "shop")
        return self.linear.add_issue(title, **{"projectId": project.id, "labels": labels, **fields})

    def said(self, session: Entity) -> list[tuple[str, str]]:
        found = [one for one in self.linear.activities(session) if one["type"] != "prompt"]
        return [(one["type"], one.get("body") or "") for one in found]

    def wait_for(self, session: Entity, *kinds: str, count: int = 1) -> str:
        """The text of the last activity of such a kind, as soon as there are so many."""

        def look() -> list[str]:
            texts = [text for kind, text in self.said(session) if kind in kinds]
            return texts if len(texts) >= count else []

        return str(wait_until(look)[-1])

    def wait_for_text(self, session: Entity, words: str) -> None:
        wait_until(lambda: any(words in text for _, text in self.said(session)))

    def tasks(self, issue: Entity) -> list[dict[str, Any]]:
        """Oldest first."""
        listed = self.shop.world.tasks()[::-1]
        return [one for one in listed if (one.get("issue") or {}).get("key") == issue["identifier"]]

    def pulls(self, issue: Entity) -> list[Pull]:
        return [one for one in self.shop.pulls if one.title.startswith(f"{issue['identifier']} ")]

    def guest(self) -> Entity:
        guest = self.linear.add_user("Gast")
        guest["guest"] = True
        return guest

    def done(self, title: str) -> tuple[Entity, Entity]:
        """An issue whose work has ended with a pull request, and its session."""
        self.play(FIX)
        issue = self.add_issue(title)
        session = self.linear.delegate_issue(issue)
        assert self.wait_for(session, "response", "error").startswith("- Pull request: ")
        return issue, session


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with open_office(tmp_path_factory.mktemp("office")) as opened:
        yield opened


@contextmanager
def open_office(place: Path, **sender_options: Any) -> Iterator[Office]:
    with LinearStandin(**sender_options) as linear:
        surroundings = {
            "DELEGATE_LINEAR_API_URL": linear.api_url,
            "LINEAR_CLIENT_SECRET": linear.client_secret,
            "LINEAR_WEBHOOK_SECRET": "secret-of-the-webhook",
            "DELEGATE_CLAUDE_COMMAND": str(scripted_agent.install(place / "bin")),
            "SCRIPTED_AGENT_FILE": str(place / "script.json"),
            "DELEGATE_LEASE": "30",
            "DELEGATE_RECLAIM_AFTER": "60",
        }
        with audited_market(place / "market", "git", "gh", runners=1, **surroundings) as market:
            shop, world = open_shop(market, place), market.world
            url = f"{world.info()['url']}/webhooks/linear"
            linear.sender.tls = world.tls
            linear.webhook = linear.add_webhook(url, [*APP_EVENTS, *DATA_EVENTS], secret="secret-of-the-webhook")
            linear.add_project("shop")
            world.ok("linear", "connect", "--client-id", linear.oauth_client_id, "--webhook-secret")
            world.ok("linear", "map", "--project", "shop", shop.repository)
            yield Office(shop=shop, linear=linear, script=place / "script.json")


def test_a_follow_up_reaches_the_running_agent(office: Office) -> None:
    office.play({"read": 1}, FIX)
    issue = office.add_issue("Follow up while it runs")
    session = office.linear.delegate_issue(issue)
    office.wait_for_text(session, "session opened")
    office.linear.reply(session, "Also cover the empty range")
    end = office.wait_for(session, "response", "error")

    (task,) = office.tasks(issue)
    messages = [e["data"]["text"] for e in office.shop.world.task(task["taskId"])["timeline"] if e["kind"] == "message"]
    assert any("Also cover the empty range" in text for text in messages)
    assert ("thought", "Sent to the agent.") in office.said(session)
    assert end.startswith("- Pull request: ")


def test_a_follow_up_after_the_end_continues_on_the_same_branch_and_pull_request(office: Office) -> None:
    issue, session = office.done("Follow up after the end")
    office.play(NOTES)
    office.linear.reply(session, "Add notes, please")
    end = office.wait_for(session, "response", "error", count=2)

    (pull,) = office.pulls(issue)
    first, second = office.tasks(issue)
    assert second["retryOf"] == first["taskId"]
    assert end.startswith(f"- Pull request: https://github.com/{office.shop.repository}/pull/{pull.number}")
    assert office.shop.on_remote(pull.head, "NOTES.md") == "more"
    attached = [row for row in office.linear.tables["Attachment"].values() if row["issueId"] == issue.id]
    assert len(attached) == 1


def test_delegating_again_continues_on_the_same_branch_and_pull_request(office: Office) -> None:
    issue, _ = office.done("Delegate again")
    office.play(NOTES)
    again = office.linear.delegate_issue(issue)
    end = office.wait_for(again, "response", "error")

    (pull,) = office.pulls(issue)
    first, second = office.tasks(issue)
    assert f", continuing {first['taskId']}" in office.said(again)[0][1]
    assert second["retryOf"] == first["taskId"]
    assert end.startswith("- Pull request: ")
    assert office.shop.on_remote(pull.head, "NOTES.md") == "more"


@pytest.mark.parametrize("how", ["stop", "undelegated"])
def test_work_that_is_stopped_or_taken_back_ends_and_is_answered_once(office: Office, how: str) -> None:
    office.play({"hang": True})
    issue = office.add_issue("Take it back")
    session = office.linear.delegate_issue(issue)
    office.wait_for_text(session, "session opened")
    if how == "stop":
        office.linear.stop(session)
    else:
        office.linear.undelegate(issue)
    end = office.wait_for(session, "response", "error")

    (task,) = office.tasks(issue)
    reason = "stopped in Linear" if how == "stop" else f"{issue['identifier']} is no longer delegated"
    assert office.shop.world.wait_for(task["taskId"])["status"] == "cancelled"
    assert end == f"Stopped: {reason}."
    assert [kind for kind, _ in office.said(session)].count("response") == 1
    assert office.pulls(issue) == []


def test_an_ambiguous_repository_is_asked_for_and_remembered(office: Office) -> None:
    office.play(FIX)
    issue = office.add_issue("Which repository?", projectId=None)
    session = office.linear.delegate_issue(issue)
    asked = office.wait_for(session, "elicitation")
    before, options = office.tasks(issue), office.linear.all_activities(session)[-1]["signalMetadata"]["options"]
    office.linear.reply(session, office.shop.repository)
    end = office.wait_for(session, "response", "error")
    office.play(NOTES)
    again = office.linear.delegate_issue(issue)
    office.wait_for(again, "response", "error")

    assert (asked, before) == ("Which repository is this issue for?", [])
    assert options == [{"value": office.shop.repository}]
    assert end.startswith("- Pull request: ")
    assert "elicitation" not in [kind for kind, _ in office.said(again)]
    assert len(office.pulls(issue)) == 1


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (("delegate:claude", "delegate:model=gpt-5.2"), "model gpt-5.2 is not a Claude model"),
        (("delegate:modell=opus",), "has an unknown key; did you mean model?"),
    ],
    ids=["wrong model", "unknown label"],
)
def test_what_cannot_run_is_told_in_a_sentence_before_anything_runs(
    office: Office, labels: tuple[str, ...], sentence: str
) -> None:
    issue = office.add_issue("Cannot run", *labels)
    session = office.linear.delegate_issue(issue)
    told = office.wait_for(session, "elicitation", "response", "error")

    assert sentence in told
    assert office.tasks(issue) == []
    assert office.linear.rows[issue["stateId"]]["name"] == "Todo"


def test_two_executor_labels_are_asked_about_and_the_work_starts_when_one_is_left(office: Office) -> None:
    office.play(FIX)
    issue = office.add_issue("Two executors", "delegate:claude", "delegate:codex")
    session = office.linear.delegate_issue(issue)
    told, before = office.wait_for(session, "elicitation"), office.tasks(issue)
    office.linear.remove_label(issue, "delegate:codex")
    office.linear.reply(session, "fixed")
    end = office.wait_for(session, "response", "error")

    assert "two executor labels: codex and claude; keep one of them" in told
    assert before == []
    assert end.startswith("- Pull request: ")
    assert [task["agent"] for task in office.tasks(issue)] == ["claude"]


def test_a_blocked_issue_waits_for_its_blockers_by_name_and_is_released(office: Office) -> None:
    office.play(FIX)
    blockers = [office.add_issue("First this"), office.add_issue("And this")]
    issue = office.add_issue("Then this", blocked_by=blockers)
    keys = [blocker["identifier"] for blocker in reversed(blockers)]
    session = office.linear.delegate_issue(issue)
    queued = office.wait_for(session, "thought")
    (task,) = office.tasks(issue)
    page = office.shop.world.ok("status", task["taskId"])
    office.linear.close_issue(blockers[0])
    office.linear.close_issue(blockers[1])
    end = office.wait_for(session, "response", "error")

    waits = f"waits for {', '.join(keys)}, which block its issue"
    assert (task["status"], task["why"]) == ("queued", waits)
    assert f"Queued: {waits}." in queued
    assert keys[0] in page
    assert end.startswith("- Pull request: ")


def test_all_open_sub_issues_become_pull_requests_in_the_order_of_their_blockers(office: Office) -> None:
    office.play(FIX)
    parent = office.add_issue("Two steps")
    first = office.add_issue("Step one", parentId=parent.id)
    second = office.add_issue("Step two", parentId=parent.id, blocked_by=[first])
    session = office.linear.delegate_issue(parent)
    office.wait_for(session, "elicitation")
    options = office.linear.all_activities(session)[-1]["signalMetadata"]["options"]
    office.linear.reply(session, options[1]["value"])
    end = office.wait_for(session, "response", "error")

    assert [option["value"] for option in options] == ["This issue only", "All 2 sub-issues"]
    assert all(f"{one['identifier']}: completed · https://" in end for one in (first, second))
    (one,), (two,) = office.tasks(first), office.tasks(second)
    assert two["dependsOn"] == [one["taskId"]]
    assert (len(office.pulls(first)), len(office.pulls(second)), office.tasks(parent)) == (1, 1, [])


def test_a_guest_starts_nothing_and_what_a_guest_says_is_not_obeyed(office: Office) -> None:
    gate = office.script.with_name("gate")
    office.play({"wait": str(gate)}, FIX)
    guest = office.guest()
    theirs = office.add_issue("For a guest")
    refused = office.linear.delegate_issue(theirs, by=guest)
    issue = office.add_issue("For a member")
    session = office.linear.delegate_issue(issue)
    office.wait_for_text(session, "session opened")
    office.linear.reply(session, "Delete everything", by=guest)
    office.linear.stop(session, by=guest)
    wait_until(lambda: [text for _, text in office.said(session)].count(REFUSAL) == 2)
    gate.touch()
    end = office.wait_for(session, "response", "error")

    assert office.said(refused) == [("error", REFUSAL)]
    assert office.tasks(theirs) == []
    assert end.startswith("- Pull request: ")
    assert ("thought", "Sent to the agent.") not in office.said(session)
