"""Runs all examinations: first gathers the facts that others need, then runs the rest concurrently."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from delegate.runner.agents import agents
from delegate.runner.doctor.agents import agent_examinations, need_of
from delegate.runner.doctor.checkout import Checkout, default_checkout, examine_checkout, find_checkout
from delegate.runner.doctor.context import (
    EXAMINATION_TIMEOUT,
    DoctorContext,
    Examination,
    run_examinations,
    run_in_daemon_thread,
)
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.doctor.gh import examine_gh
from delegate.runner.doctor.git_program import examine_git, find_git
from delegate.runner.doctor.home import examine_disk, examine_home, examine_size
from delegate.runner.doctor.leftovers import examine_kept, examine_orphans, examine_workspaces
from delegate.runner.doctor.memory_limit import examine_memory_limit
from delegate.runner.doctor.pairing import ask_paired_relay
from delegate.runner.doctor.relay import RelayFindings, ask_relay, report_missing_agent
from delegate.runner.doctor.remote import examine_login, examine_remote
from delegate.runner.git.program import Git
from delegate.runner.process.cgroups import MemoryLimits
from delegate.runner.secrets.redaction import Redactor
from delegate.runner.secrets.sources import Secrets

UNANSWERED = DoctorSection.RELAY.warning("relay", f"did not answer within {EXAMINATION_TIMEOUT.total_seconds():g} s")
ORDER = {part: number for number, part in enumerate(DoctorSection)}


@dataclass(slots=True)
class GatheredFacts:
    """As far as they could be gathered in time."""

    checkout: Checkout
    git: Git | None = None
    relay: RelayFindings = field(default_factory=lambda: RelayFindings(findings=[UNANSWERED]))
    redact: Callable[[str], str] = field(default_factory=lambda: Redactor({}).text)


async def examine(context: DoctorContext) -> list[Finding]:
    """Every finding, in the order in which to fix them. Takes seconds at most, even if a program hangs."""
    facts = await _gather_facts(context)
    found = await run_examinations(_examinations(context, facts))
    need = need_of(facts.checkout)
    found += facts.relay.findings
    if facts.relay.data is not None:
        agent = agents(context.settings).get(need.agent)
        if agent is not None and agent.is_available(context.environ):
            found += report_missing_agent(context, facts.relay.data, agent.name)
    found.sort(key=lambda finding: ORDER[finding.section])
    return [_without_secrets(finding, facts.redact) for finding in found]


def _without_secrets(finding: Finding, redact: Callable[[str], str]) -> Finding:
    """Redacts secrets: findings quote programs, whose output may contain one."""
    return replace(finding, message=redact(finding.message), fix=redact(finding.fix))


async def _gather_facts(context: DoctorContext) -> GatheredFacts:
    facts = GatheredFacts(checkout=default_checkout(context))

    async def look_at_repository() -> None:
        facts.git = await find_git(context)
        with suppress(OSError):
            facts.checkout = await find_checkout(context, facts.git)

    async def look_at_relay() -> None:
        ask = ask_paired_relay if context.home.is_profile() else ask_relay
        facts.relay = await run_in_daemon_thread(partial(ask, context))

    async def learn_secrets() -> None:
        facts.redact = (await run_in_daemon_thread(partial(Secrets, context.settings, context.environ))).text

    with anyio.move_on_after(EXAMINATION_TIMEOUT.total_seconds()):
        async with anyio.create_task_group() as group:
            for look in (look_at_repository, look_at_relay, learn_secrets):
                group.start_soon(look)
    return facts


def _examinations(context: DoctorContext, facts: GatheredFacts) -> list[Examination]:
    git, checkout = facts.git, facts.checkout
    limits = MemoryLimits(limit=context.settings.task_memory_max)
    return [
        _thread_examination(DoctorSection.SETTINGS, "memory limit", partial(examine_memory_limit, context, limits)),
        _thread_examination(DoctorSection.HOME, "home", partial(examine_home, context)),
        _thread_examination(DoctorSection.HOME, "disk", partial(examine_disk, context)),
        _thread_examination(DoctorSection.HOME, "size", partial(examine_size, context)),
        Examination(section=DoctorSection.GIT, subject="git", run=partial(examine_git, context, git)),
        *agent_examinations(context, need_of(checkout)),
        *_remote_examinations(context, git, checkout),
        Examination(
            section=DoctorSection.REPOSITORY,
            subject="repository",
            run=partial(examine_checkout, context, git, checkout),
        ),
        Examination(section=DoctorSection.PULL_REQUESTS, subject="gh", run=partial(examine_gh, context, git, checkout)),
        _thread_examination(DoctorSection.LEFTOVERS, "processes", partial(examine_orphans, context)),
        _thread_examination(DoctorSection.LEFTOVERS, "workspaces", partial(examine_workspaces, context)),
        _thread_examination(DoctorSection.LEFTOVERS, "kept work", partial(examine_kept, context)),
    ]


def _remote_examinations(context: DoctorContext, git: Git | None, checkout: Checkout) -> list[Examination]:
    if git is None or checkout.repository is None:
        return []
    remote, login = (
        partial(examine_remote, context, git, checkout.repository),
        partial(examine_login, context, git, checkout.repository),
    )
    return [
        Examination(section=DoctorSection.REPOSITORY, subject="remote", run=remote),
        Examination(section=DoctorSection.REPOSITORY, subject="login", run=login),
    ]


def _thread_examination(section: DoctorSection, subject: str, work: Callable[[], list[Finding]]) -> Examination:
    return Examination(section=section, subject=subject, run=partial(run_in_daemon_thread, work))
