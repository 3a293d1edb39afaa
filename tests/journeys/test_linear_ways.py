"""An issue becomes a pull request on a paired machine: by webhook, by polling only, and with an API key only."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.github import GitHub, living_github
from tests.fakes.linear_deliveries import APP_EVENTS, DATA_EVENTS, Entity
from tests.fakes.linear_standin import LinearStandin
from tests.fakes.scripted_agent import install
from tests.fakes.team import Machine, Team, team_in
from tests.fakes.world import lean_path, wait_until
from tests.journeys.shop import needed

pytestmark = [pytest.mark.slow, pytest.mark.real]
REPOSITORY, LABEL, SECRET = "acme/shop", "delego:claude-sonnet-4-5", "secret-of-the-webhook"
SCRIPT = [
    {"init": {"model": "claude-sonnet-4-5"}},
    {"shell": "echo $DELEGATE_TASK_ID >> limits.txt"},
    {"result": "The limit is in."},
    {"end_of_input": True},
]


@dataclass(slots=True, kw_only=True)
class Studio:
    """A relay without runners that is near Linear, and a paired machine that is near GitHub."""

    team: Team
    machine: Machine
    linear: LinearStandin
    github: GitHub
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(44))

    def add_issue(self) -> Entity:
        number = next(self.numbers)
        return self.linear.add_issue("Rate-limit runners", number=number, description=f"Limit it. [repo={REPOSITORY}]")

    def connect(self, *options: str, has_webhook: bool = False) -> None:
        if self.linear.webhook is not None:
            self.linear.webhook["enabled"] = has_webhook
        self.team.relay.ok("linear", "disconnect")
        self.team.relay.ok("linear", "connect", *options)

    def connect_app(self, *options: str, has_webhook: bool = False) -> None:
        self.connect("--client-id", self.linear.oauth_client_id, *options, has_webhook=has_webhook)

    def state_of(self, issue: Entity) -> str:
        return str(self.linear.rows[issue["stateId"]]["name"])

    def check_end(self, issue: Entity, final: str) -> None:
        """One task, on the paired machine, whose pull request is on the issue."""
        (task,) = [one for one in self.team.relay.tasks() if (one["issue"] or {}).get("key") == issue["identifier"]]
        (pull,) = [one for one in self.github.pulls(REPOSITORY) if one.title.startswith(f"{issue['identifier']} · ")]
        url = f"https://github.com/{REPOSITORY}/pull/{pull.number}"
        wait_until(lambda: self.state_of(issue) == "In Review")
        attached = [row["url"] for row in self.linear.tables["Attachment"].values() if row["issueId"] == issue.id]
        assert f"Pull request: {url}" in final
        assert attached == [url]
        assert self.team.relay.wait_for(task["taskId"])["status"] == "completed"
        log = self.machine.ok("runner", "logs", "--profile", "default")
        assert f'info webhook received issue={issue["identifier"]} repo="{REPOSITORY}"' in log


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    needed("git", "gh")
    root = Path(tempfile.mkdtemp(prefix="delegate-team-"))
    with ExitStack() as stack:
        linear = stack.enter_context(LinearStandin())
        secrets = {"LINEAR_CLIENT_SECRET": linear.client_secret, "LINEAR_API_KEY": linear.api_key}
        surroundings = {"DELEGATE_LINEAR_API_URL": linear.api_url, "LINEAR_WEBHOOK_SECRET": SECRET, **secrets}
        team = stack.enter_context(team_in(root / "team", **surroundings))
        github = stack.enter_context(living_github(root / "github"))
        github.seed(REPOSITORY, {"shop.py": "x = 1\n"})
        script = root / "script.json"
        script.write_text(json.dumps({"steps": SCRIPT}))
        install(root / "bin")
        path = f"{root / 'bin'}{os.pathsep}{lean_path()}"
        own: dict[str, Any] = {"PATH": path, "ANTHROPIC_API_KEY": "test-key", "SCRIPTED_AGENT_FILE": str(script)}
        machine = team.paired_machine("studio", **{**github.env, **own})
        url = f"{team.relay.url}/webhooks/linear"
        linear.webhook = linear.add_webhook(url, [*APP_EVENTS, *DATA_EVENTS], secret=SECRET)
        yield Studio(team=team, machine=machine, linear=linear, github=github)


def wait_for_response(studio: Studio, session: Entity) -> str:
    def look() -> str:
        said = studio.linear.activities(session)
        assert not said or said[-1]["type"] != "error", said[-1]
        return str(said[-1]["body"]) if said and said[-1]["type"] == "response" else ""

    return str(wait_until(look))


def test_a_paired_runner_does_the_work_of_a_delegated_issue(studio: Studio) -> None:
    studio.connect_app("--webhook-secret", has_webhook=True)
    issue = studio.add_issue()
    studio.linear.add_label(issue, LABEL)

    session = studio.linear.delegate_issue(issue)

    studio.check_end(issue, wait_for_response(studio, session))
    assert "healthy" in studio.team.relay.ok("linear", "status")


def test_polling_only_a_delegated_issue_comes_back_with_its_pull_request(studio: Studio) -> None:
    assert studio.linear.webhook is not None
    studio.linear.webhook["enabled"] = False
    issue = studio.add_issue()
    studio.linear.add_label(issue, LABEL)
    session = studio.linear.delegate_issue(issue)

    studio.connect_app()

    studio.check_end(issue, wait_for_response(studio, session))
    assert "not used" in studio.team.relay.ok("linear", "status")


def test_with_an_api_key_only_a_labelled_issue_comes_back_with_its_pull_request(studio: Studio) -> None:
    studio.connect("--api-key")
    issue = studio.add_issue()

    studio.linear.add_label(issue, LABEL)

    def look() -> str:
        written = [row["body"] for row in studio.linear.tables["Comment"].values() if row["issueId"] == issue.id]
        assert len(written) < 2
        return str(written[0]) if written and "Pull request:" in written[0] else ""

    studio.check_end(issue, str(wait_until(look)))
    assert not any(session["issueId"] == issue.id for session in studio.linear.sessions)
