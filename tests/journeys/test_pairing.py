"""The pairing steps of the seed, with real relays and runners."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.team import Team, team_in
from tests.fakes.world import wait_until


@pytest.fixture
def team() -> Iterator[Team]:
    with team_in(Path(tempfile.mkdtemp(prefix="delegate-team-")), TZ="UTC", COLUMNS="100") as made:
        yield made


def test_a_paired_machine_polls_at_once(team: Team) -> None:
    machine = team.paired_machine("studio", "--runners", "2", "--all-repositories")

    state = wait_until(lambda: (found := machine.runner())["state"] == "online" and found)

    assert (state["name"], state["relayUrl"], state["problem"]) == ("studio", team.relay.url, "")
    assert state["slots"] == {"busy": 0, "total": 2}
    page = machine.ok("runner", "status")
    assert "  policy  my tasks · all repositories · claude, codex\n" in page
    assert machine.ok("runner", "stop") == "stopped\n"
    assert machine.runner()["state"] == "stopped"
