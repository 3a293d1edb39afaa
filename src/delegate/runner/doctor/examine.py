"""All examinations together: first what the others must know, then everything at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from delegate.runner.agents import agents
from delegate.runner.doctor.agents import agent_examinations, need_of
from delegate.runner.doctor.case import PATIENCE, Case, Examination, aside, examined
from delegate.runner.doctor.ceiling import examine_ceiling
from delegate.runner.doctor.checkout import Checkout, examine_checkout, find_checkout, unseen_checkout
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.doctor.gh import examine_gh
from delegate.runner.doctor.git_program import examine_git, known_git
from delegate.runner.doctor.leftovers import examine_kept, examine_orphans, examine_workspaces
from delegate.runner.doctor.place import examine_disk, examine_home, examine_size
from delegate.runner.doctor.relay import RelayLook, agent_missing, ask_relay
from delegate.runner.doctor.remote import examine_login, examine_remote
from delegate.runner.git.program import Git
from delegate.runner.process.cgroups import Ceilings
from delegate.runner.secrets.redaction import Redactor
from delegate.runner.secrets.sources import Secrets

UNANSWERED = Part.RELAY.warning("relay", f"gave no answer within {PATIENCE.total_seconds():g} s")
ORDER = {part: number for number, part in enumerate(Part)}


@dataclass(slots=True)
class Sights:
    """As far as they could be seen in time."""

    checkout: Checkout
    git: Git | None = None
    relay: RelayLook = field(default_factory=lambda: RelayLook(findings=[UNANSWERED]))
    conceal: Callable[[str], str] = field(default_factory=lambda: Redactor({}).text)


async def examine(case: Case) -> list[Finding]:
    """Every finding, what is to be mended first on top. Takes seconds at most, whatever hangs."""
    around = await _look_around(case)
    found = await examined(_examinations(case, around))
    need = need_of(around.checkout)
    found += around.relay.findings
    if around.relay.data is not None:
        agent = agents(case.settings).get(need.agent)
        if agent is not None and agent.is_available(case.environ):
            found += agent_missing(around.relay.data, agent.name)
    found.sort(key=lambda finding: ORDER[finding.part])
    return [_without_secrets(finding, around.conceal) for finding in found]


def _without_secrets(finding: Finding, conceal: Callable[[str], str]) -> Finding:
    """Programs are quoted, and one may have quoted a secret."""
    return replace(finding, message=conceal(finding.message), fix=conceal(finding.fix))


async def _look_around(case: Case) -> Sights:
    around = Sights(checkout=unseen_checkout(case))

    async def look_at_repository() -> None:
        around.git = await known_git(case)
        with suppress(OSError):
            around.checkout = await find_checkout(case, around.git)

    async def look_at_relay() -> None:
        around.relay = await aside(partial(ask_relay, case))

    async def learn_secrets() -> None:
        around.conceal = (await aside(partial(Secrets, case.settings, case.environ))).text

    with anyio.move_on_after(PATIENCE.total_seconds()):
        async with anyio.create_task_group() as group:
            for look in (look_at_repository, look_at_relay, learn_secrets):
                group.start_soon(look)
    return around


def _examinations(case: Case, around: Sights) -> list[Examination]:
    git, checkout = around.git, around.checkout
    data = around.relay.data
    running = {runner["taskId"] for runner in data["runners"] if runner["taskId"]} if data else set()
    ceilings = Ceilings(limit=case.settings.task_memory_max)
    return [
        _aside(Part.SETTINGS, "memory ceiling", partial(examine_ceiling, case, ceilings)),
        _aside(Part.HOME, "home", partial(examine_home, case)),
        _aside(Part.HOME, "disk", partial(examine_disk, case)),
        _aside(Part.HOME, "size", partial(examine_size, case)),
        Examination(part=Part.GIT, subject="git", look=partial(examine_git, case, git)),
        *agent_examinations(case, need_of(checkout)),
        *_of_remote(case, git, checkout),
        Examination(part=Part.REPOSITORY, subject="repository", look=partial(examine_checkout, case, git, checkout)),
        Examination(part=Part.PULL_REQUESTS, subject="gh", look=partial(examine_gh, case, git, checkout)),
        _aside(Part.LEFTOVERS, "processes", partial(examine_orphans, case)),
        _aside(Part.LEFTOVERS, "workspaces", partial(examine_workspaces, case, running)),
        _aside(Part.LEFTOVERS, "kept work", partial(examine_kept, case)),
    ]


def _of_remote(case: Case, git: Git | None, checkout: Checkout) -> list[Examination]:
    if git is None or checkout.repository is None:
        return []
    remote, login = (
        partial(examine_remote, case, git, checkout.repository),
        partial(examine_login, case, git, checkout.repository),
    )
    return [
        Examination(part=Part.REPOSITORY, subject="remote", look=remote),
        Examination(part=Part.REPOSITORY, subject="login", look=login),
    ]


def _aside(part: Part, subject: str, work: Callable[[], list[Finding]]) -> Examination:
    return Examination(part=part, subject=subject, look=partial(aside, work))
