"""From a delegated issue to the pull request on it: real claude, git and gh, with stand-ins for what they talk to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.linear_deliveries import APP_EVENTS, DATA_EVENTS, Entity
from tests.fakes.linear_standin import LinearStandin
from tests.fakes.world import wait_until
from tests.journeys.shop import CHECK, FIXED, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real]
FIX = {"command": f"cat > shop.py <<'EOF'\n{FIXED}EOF\n", "description": "Read the discount as a percentage"}
COUNTED = f"{CHECK} && echo 'Tests: 1 passed, 1 total'"
TITLE = "Rate-limit runner endpoints to block unauthenticated DDOS"
QUESTION = {"question": "Percent or per mille?", "options": ["percent", "per mille"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A Delegate that is connected to Linear, and a repository that its project is mapped to."""

    shop: Shop
    linear: LinearStandin

    def per_44(self) -> Entity:
        project = self.linear.get("Project", "shop")
        issue = self.linear.add_issue(TITLE, number=44, projectId=project.id, description="Read the discount right.")
        self.linear.add_label(issue, "delego:claude-sonnet-4-5")
        return issue

    def activities(self, session: Entity) -> list[dict[str, Any]]:
        return [one for one in self.linear.activities(session) if one["type"] != "prompt"]

    def wait_for(self, session: Entity, *kinds: str) -> list[dict[str, Any]]:
        """What the app said, as soon as the last of it is of such a kind."""
        return list(wait_until(lambda: (said := self.activities(session))[-1:] and said[-1]["type"] in kinds and said))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    patient = {"DELEGATE_LEASE": "30", "DELEGATE_RECLAIM_AFTER": "60"}
    with LinearStandin() as linear:
        surroundings = {
            "DELEGATE_LINEAR_API_URL": linear.api_url,
            "LINEAR_CLIENT_SECRET": linear.client_secret,
            "LINEAR_WEBHOOK_SECRET": "secret-of-the-webhook",
            **patient,
        }
        with audited_market(tmp_path / "market", "git", "gh", "claude", runners=1, **surroundings) as market:
            shop, world = open_shop(market, tmp_path, checks=(COUNTED,)), market.world
            url = f"{world.info()['url']}/webhooks/linear"
            linear.sender.tls = world.tls
            linear.webhook = linear.add_webhook(url, [*APP_EVENTS, *DATA_EVENTS], secret="secret-of-the-webhook")
            linear.add_project("shop")
            world.ok("linear", "connect", "--client-id", linear.oauth_client_id, "--webhook-secret")
            world.ok("linear", "map", "--project", "shop", shop.repository)
            yield Office(shop=shop, linear=linear)


def test_claude_asks_in_linear_and_continues_with_the_reply(office: Office) -> None:
    steps = [
        {"tool": "mcp__delegate_ask__ask_user", "input": QUESTION},
        {"text": "I have asked, and wait."},
        {"tool": "Bash", "input": FIX, "expect": "percent"},
        {"text": "The discount is a percentage now."},
    ]
    office.shop.market.claude.define("default", {"steps": steps})
    session = office.linear.delegate_issue(office.per_44())
    asked = office.wait_for(session, "elicitation", "response", "error")[-1]
    (task,) = office.shop.world.tasks()
    office.shop.world.wait_for(task["taskId"], "waiting")
    office.linear.reply(session, "percent")
    said = office.wait_for(session, "response", "error")

    assert (asked["type"], asked["body"], asked["signal"]) == ("elicitation", "Percent or per mille?", "select")
    assert said[-1]["type"] == "response", said[-1]
    assert len(office.shop.pulls) == 1
    assert len(office.shop.world.tasks()) == 1


def test_stop_in_linear_stops_the_agent(office: Office) -> None:
    office.shop.market.claude.define("default", {"steps": [{"hang": True}]})
    session = office.linear.delegate_issue(office.per_44())
    wait_until(lambda: any("session opened" in one.get("body", "") for one in office.activities(session)))
    office.linear.stop(session)
    said = office.wait_for(session, "response", "error")

    assert "stopped in Linear" in said[-1]["body"]
    assert [one["type"] for one in said].count("response") == 1
    assert office.shop.pulls == []
