"""Decides which tasks a runner accepts. The relay asks before it assigns a task, the runner again before it runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

ANY_MACHINE = "*"
ANY_REPOSITORY = "*"
SHELL = "shell"
SEPARATOR = "\t"  # between the parts of a lane; names contain no control characters
GITHUB = "github.com"
HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)"
URL = re.compile(rf"(?:https?|ssh|git|git\+ssh)://(?:[^/@]*@)?{HOST}(?::\d+)?/(?P<path>.+)")
SCP_LIKE = re.compile(rf"(?:[^/@:]+@)?{HOST}:(?!//)(?P<path>.+)")
SHORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")
ALIASES = {"www.github.com": GITHUB, "ssh.github.com": GITHUB}
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Origin(StrEnum):
    """Where a task comes from."""

    PERSON = "person"
    SCHEDULE = "schedule"
    LINEAR = "linear"


class AcceptFrom(StrEnum):
    """Whose tasks a runner accepts."""

    ME = "me"  # the person who paired it, however their tasks are made
    MEMBERS = "members"
    LINEAR = "linear"
    SCHEDULES = "schedules"


SENDERS = {
    Origin.PERSON: AcceptFrom.MEMBERS,
    Origin.LINEAR: AcceptFrom.LINEAR,
    Origin.SCHEDULE: AcceptFrom.SCHEDULES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the owner of a machine lets a runner do; narrow unless they say otherwise."""

    repositories: tuple[str, ...] | None = ()  # normalised; None: all
    directories: tuple[str, ...] = ()  # where it may work in place; empty: everywhere. Only the runner checks this
    agents: tuple[str, ...] = ("claude", "codex")
    accept_from: tuple[AcceptFrom, ...] = (AcceptFrom.ME,)
    in_place: bool = False
    shell: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What decides who may take a task."""

    agent: str
    machine: str = ANY_MACHINE  # the one that has its directory
    in_place: bool = True
    repository: str | None = None  # normalised
    person: str | None = None  # who submitted it; None: the relay's owner
    origin: Origin = Origin.PERSON
    runner: str | None = None  # the name of the only runner that may take it
    tags: tuple[str, ...] = ()  # that its runner must have, sorted


def accepts(policy: Policy | None, placement: Placement, me: str | None) -> str | None:
    """Return why the policy refuses the task, as in "studio {reason}"; None if it accepts it.

    `me` is the person who paired the runner. Without a policy it accepts everything.
    """
    if policy is None:
        return None
    if placement.agent == SHELL and not policy.shell:
        return "does not accept shell tasks"
    if placement.agent != SHELL and placement.agent not in policy.agents:
        return f"does not accept {placement.agent}"
    return _refuses_place(policy, placement) or _refuses_sender(policy, placement, me)


def _refuses_place(policy: Policy, placement: Placement) -> str | None:
    if placement.in_place:
        return None if policy.in_place else "does not accept work in place"
    if policy.repositories is None:
        return None
    if placement.repository is None:  # a checkout on the machine: only the runner can see its remote
        return None if policy.in_place else "does not accept work from a directory"
    if placement.repository in policy.repositories:
        return None
    return f"does not accept {shorten(placement.repository)}"


def _refuses_sender(policy: Policy, placement: Placement, me: str | None) -> str | None:
    if placement.person == me and AcceptFrom.ME in policy.accept_from:
        return None
    if SENDERS[placement.origin] in policy.accept_from:
        return None
    match placement.origin:
        case Origin.PERSON:
            return "accepts only tasks of its owner"
        case Origin.LINEAR:
            return "does not accept work from Linear"
        case Origin.SCHEDULE:
            return "does not accept tasks of schedules"


def repository_key(repository: str) -> str:
    """Return one name for all addresses of a repository: `git@github.com:Acme/Shop.git` is `github.com/acme/shop`."""
    if SHORT.fullmatch(repository):
        repository = f"https://{GITHUB}/{repository}"
    found = URL.fullmatch(repository) or SCP_LIKE.fullmatch(repository)
    if found is None:
        return repository.removeprefix("file://").rstrip("/")
    host = found["host"].lower()
    host = ALIASES.get(host, host)
    path = found["path"].strip("/").removesuffix(".git")
    return f"{host}/{path.lower() if host == GITHUB else path}"


def shorten(key: str) -> str:
    """Return a normalised repository as people write it."""
    return key.removeprefix(f"{GITHUB}/")


def lane_of(placement: Placement, place: str | None = None) -> str:
    """Return the part of the queue whose tasks the same runners may take. `place` replaces the machine."""
    details: dict[str, object] = {
        "d": None if placement.in_place else False,
        "r": placement.repository,
        "p": placement.person,
        "o": None if placement.origin is Origin.PERSON else placement.origin,
        "n": placement.runner,
        "t": placement.tags or None,
    }
    given = {key: value for key, value in details.items() if value is not None}
    rest = json.dumps(given, separators=(",", ":")) if given else ""
    return SEPARATOR.join((place or placement.machine, placement.agent, rest))


def lane_prefix(place: str, agent: str) -> str:
    """Return how the lanes of this agent at this place (a machine, or `*`) begin."""
    return f"{place}{SEPARATOR}{agent}{SEPARATOR}"


def prefix_of(lane: str) -> str:
    place, agent, _ = lane.split(SEPARATOR, 2)
    return lane_prefix(place, agent)


@lru_cache(maxsize=4096)  # every claim reads the same lanes
def placement_of(lane: str) -> Placement:
    place, agent, rest = lane.split(SEPARATOR, 2)
    given = json.loads(rest) if rest else {}
    return Placement(
        agent=agent,
        machine=place,
        in_place=given.get("d", True),
        repository=given.get("r"),
        person=given.get("p"),
        origin=Origin(given.get("o", Origin.PERSON)),
        runner=given.get("n"),
        tags=tuple(given.get("t", ())),
    )


def policy_of(data: Mapping[str, object]) -> Policy:
    """Read a policy from its JSON; a field of another type counts as missing, which is narrower."""
    repositories = data.get("repositories")
    return Policy(
        repositories=None if repositories == ANY_REPOSITORY else tuple(map(repository_key, _texts(repositories))),
        directories=_texts(data.get("directories")),
        agents=_texts(data.get("agents")),
        accept_from=tuple(AcceptFrom(name) for name in _texts(data.get("acceptFrom")) if name in set(AcceptFrom)),
        in_place=data.get("inPlace") is True,
        shell=data.get("shell") is True,
    )


def policy_data(policy: Policy) -> dict[str, object]:
    return {
        "repositories": ANY_REPOSITORY if policy.repositories is None else list(policy.repositories),
        "directories": list(policy.directories),
        "agents": list(policy.agents),
        "acceptFrom": list(policy.accept_from),
        "inPlace": policy.in_place,
        "shell": policy.shell,
    }


def _texts(value: object) -> tuple[str, ...]:
    items: Sequence[object] = value if isinstance(value, list | tuple) else ()
    return tuple(item for item in items if isinstance(item, str))
