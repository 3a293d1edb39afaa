"""kill -9 of relay and runner while an issue of Linear is in work and its deliveries are repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial

import pytest
from tests.fakes.linear_deliveries import Entity
from tests.fakes.storm import relay, runners, strike
from tests.fakes.world import wait_until
from tests.journeys.test_linear_cases import FIX, Office, open_office

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P6")]
COPIES = 2  # of every delivery


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with open_office(tmp_path_factory.mktemp("office"), retry_after=(0.5, 1, 2, 4, 8)) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(5))
def test_one_task_one_pull_request_and_one_report_whatever_is_killed(office: Office, seed: int) -> None:
    dice, world = random.Random(seed), office.shop.world
    office.play({"shell": "sleep 1"}, FIX)
    office.linear.chaos("duplicate", times=100, match=".", copies=COPIES, new_id=dice.random() < 0.5)
    issue = office.add_issue(f"Killed with seed {seed}")
    session = office.linear.delegate_issue(issue)
    kinds = [relay, *dice.sample([relay, relay, runners, runners], 2)]  # three lost runners would be poison
    dice.shuffle(kinds)
    for number, kind in enumerate(kinds):
        wait_until(partial(has_said, office, session, number + dice.randint(0, 1)))
        strike(world, [kind], dice)

    end = office.wait_for(session, "response", "error")
    wait_until(lambda: waiting(office) == (0, 0))
    said = [kind for kind, _ in office.said(session)]

    assert end.startswith("- Pull request: ")
    assert (said.count("response"), said.count("error"), said[-1]) == (1, 0, "response")
    assert [task["status"] for task in office.tasks(issue)] == ["completed"]
    assert len(office.pulls(issue)) == 1
    attached = [row for row in office.linear.tables["Attachment"].values() if row["issueId"] == issue.id]
    assert len(attached) == 1


def has_said(office: Office, session: Entity, count: int) -> bool:
    return len(office.said(session)) >= count


def waiting(office: Office) -> tuple[int, int]:
    found = json.loads(office.shop.world.ok("linear", "status", "--json"))
    return found["inboxWaiting"], found["outboxWaiting"]
