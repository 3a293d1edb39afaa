"""Which tasks a runner accepts."""

from __future__ import annotations

from typing import Any

import pytest

from delegate.placement import (
    AcceptFrom,
    Origin,
    Placement,
    Policy,
    accepts,
    lane_of,
    placement_of,
    policy_data,
    policy_of,
    prefix_of,
    repository_key,
)

ME, EVE = "user-1", "user-2"
SHOP = "github.com/acme/shop"
TASK: dict[str, Any] = {"agent": "claude", "in_place": False, "repository": SHOP, "person": ME}
NARROW = Policy(repositories=(SHOP,))
A = AcceptFrom
CASES: list[tuple[str | None, Policy | None, dict[str, Any]]] = [
    (None, None, {"agent": "shell", "in_place": True}),
    (None, NARROW, {}),
    ("does not accept acme/other", NARROW, {"repository": "github.com/acme/other"}),
    (None, Policy(repositories=None), {"repository": "example.org/any"}),
    ("does not accept acp:opencode", NARROW, {"agent": "acp:opencode"}),
    ("does not accept shell tasks", NARROW, {"agent": "shell"}),
    (None, Policy(repositories=(SHOP,), shell=True), {"agent": "shell"}),
    ("does not accept work in place", NARROW, {"in_place": True, "repository": None}),
    (None, Policy(in_place=True), {"in_place": True, "repository": None}),
    ("does not accept work from a directory", NARROW, {"repository": None, "machine": "desk"}),
    (None, Policy(in_place=True), {"repository": None, "machine": "desk"}),
    ("accepts only tasks of its owner", NARROW, {"person": EVE}),
    ("accepts only tasks of its owner", NARROW, {"person": None}),
    (None, Policy(repositories=None, accept_from=(A.MEMBERS,)), {"person": EVE}),
    (None, NARROW, {"origin": Origin.SCHEDULE}),
    ("does not accept tasks of schedules", NARROW, {"origin": Origin.SCHEDULE, "person": EVE}),
    (None, Policy(repositories=None, accept_from=(A.SCHEDULES,)), {"origin": Origin.SCHEDULE, "person": EVE}),
    ("does not accept work from Linear", NARROW, {"origin": Origin.LINEAR, "person": EVE}),
    (None, Policy(repositories=None, accept_from=(A.LINEAR,)), {"origin": Origin.LINEAR, "person": EVE}),
    ("does not accept work from Linear", Policy(repositories=None, accept_from=(A.MEMBERS,)),
     {"origin": Origin.LINEAR, "person": EVE}),
    ("accepts only tasks of its owner", Policy(repositories=None, accept_from=()), {}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "policy", "task"), CASES)
def test_a_policy_accepts_what_it_names_and_says_what_it_does_not(
    reason: str | None, policy: Policy | None, task: dict[str, Any]
) -> None:
    assert accepts(policy, Placement(**{**TASK, **task}), ME) == reason


@pytest.mark.parametrize(
    "address",
    [
        "acme/shop",
        "https://github.com/acme/shop",
        "https://github.com/Acme/Shop.git",
        "https://someone:secret@github.com/acme/shop.git/",
        "git@github.com:acme/shop.git",
        "ssh://git@ssh.github.com:443/acme/shop.git",
        "git://www.github.com/acme/shop",
    ],
)
def test_all_addresses_of_a_repository_are_one(address: str) -> None:
    assert repository_key(address) == SHOP


def test_other_addresses_stay_different() -> None:
    assert repository_key("git@example.org:Acme/Shop.git") == "example.org/Acme/Shop"
    assert repository_key("/srv/git/shop.git/") == "/srv/git/shop.git"
    assert repository_key("file:///srv/git/shop.git") == "/srv/git/shop.git"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"in_place": False, "repository": SHOP},
        {"person": ME, "origin": Origin.SCHEDULE},
        {"runner": "studio", "tags": ("gpu", "mac")},
        {"machine": "desk-1", "agent": "acp:open/code --x=1"},
    ],
)
def test_a_lane_tells_everything_that_decides_who_may_take_its_tasks(more: dict[str, Any]) -> None:
    placement = Placement(**{"agent": "claude", **more})

    lane = lane_of(placement)

    assert placement_of(lane) == placement
    assert lane.startswith(prefix_of(lane))


def test_a_policy_survives_its_journey_and_nonsense_narrows_it() -> None:
    wide = Policy(repositories=None, agents=("claude",), accept_from=(A.MEMBERS, A.LINEAR), in_place=True, shell=True)

    assert policy_of(policy_data(wide)) == wide
    nothing = Policy(agents=(), accept_from=())
    assert policy_of({}) == nothing
    strange = {"repositories": 7, "agents": "claude", "acceptFrom": ["all"], "inPlace": "yes", "shell": 1}
    assert policy_of(strange) == nothing
