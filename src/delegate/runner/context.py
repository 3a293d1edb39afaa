"""The objects that all parts of a runner share, and how they are built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from delegate import __version__
from delegate.config.home_files import host_name, machine_id, token_for
from delegate.config.observed_time import ObservedClock
from delegate.config.pairing import Pairing, instance_id, read_pairing
from delegate.config.paths import Home
from delegate.config.settings import SECRET_VARIABLES, Settings
from delegate.model import Privacy
from delegate.runner.agents import Agent, agents
from delegate.runner.agents.availability import Trials
from delegate.runner.disk import RunnerDisk, disk_of
from delegate.runner.git.program import GitSetup
from delegate.runner.keeper_link import KeeperLink
from delegate.runner.policy import PolicyGuard
from delegate.runner.process.agent_process import SpareSupervisors
from delegate.runner.process.cgroups import MemoryLimits
from delegate.runner.publishing.effects import EffectJournal
from delegate.runner.secrets.sources import Secrets
from delegate.runner.shutdown import Shutdown
from delegate.runner.slot import Slot
from delegate.runner.upload.privacy import privacy_level
from delegate.runner.upload.relay import RelayLink, RelayTrust
from delegate.runner.upload.task_log import TaskLog
from delegate.runner.wakeup import Wakeup
from delegate.runner.workspaces.mirrors import RepositoryFiles
from delegate.wire.runners import RegisterRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    name: str  # of the runner when this process started
    settings: Settings
    environ: Mapping[str, str]
    slot: Slot
    clock: ObservedClock
    git: GitSetup
    repository_files: RepositoryFiles
    journal: EffectJournal
    secrets: Secrets
    disk: RunnerDisk
    memory_limits: MemoryLimits
    link: RelayLink
    agents: Mapping[str, Agent]
    trials: Trials
    spares: SpareSupervisors
    shutdown: Shutdown
    keeper_link: KeeperLink
    task_log: TaskLog
    policy: PolicyGuard | None = None  # of a paired runner; the pool of a local relay runs everything
    policy_refused: Wakeup = field(default_factory=Wakeup)  # the relay's copy of the policy is not the file's

    @property
    def privacy(self) -> Privacy:
        return self.link.level

    def available_agents(self) -> list[str]:
        """Agents that can be started now; read before each claim, so that a newly installed one is noticed."""
        return find_available_agents(self.agents, self.trials, self.environ)

    def next_untried_agent(self) -> Agent | None:
        """An installed agent that has not been tried yet."""
        return self.trials.next_due(self.agents.values(), self.environ)


def find_available_agents(known: Mapping[str, Agent], trials: Trials, environ: Mapping[str, str]) -> list[str]:
    return [name for name, agent in known.items() if trials.has_passed(agent, environ)]


def build_context(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    slot: Slot,
    name: str,
    url: str,
    keeper_link: KeeperLink | None = None,
) -> RunnerContext:
    """Build the context of the runner in this slot; without `keeper_link` it is never held."""
    secrets = Secrets(settings, environ)
    # No program that the runner starts gets our secrets: every process of the user can read its environment.
    kept = {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}
    environ = {**kept, "TMPDIR": str(slot.temporary)}
    home = Home(settings.home)
    pairing = read_pairing(home) if home.is_profile() else None
    if pairing is not None:  # what runs in an attempt reaches the same relay
        environ["DELEGATE_RELAY_URL"] = pairing.relay_url
    machine = machine_id(home)
    own_name = host_name() if pairing is None else pairing.name
    known = agents(settings)
    trials = Trials(home.agents)

    def build_registration() -> RegisterRequest:
        return RegisterRequest(
            slot=name,
            name=own_name,
            machine=machine,
            instance=None if pairing is None else instance_id(home),
            pid=os.getpid(),
            version=__version__,
            agents=find_available_agents(known, trials, environ),
        )

    link = RelayLink(
        url,
        build_registration,
        (lambda: token_for(settings, urlsplit(url).hostname or "")) if pairing is None else (lambda: pairing.token),
        RelayTrust(ca_file=_ca_file(settings, pairing), environ=environ),
        level=privacy_level(settings, url),
        on_away=None if keeper_link is None or pairing is None else keeper_link.report_away,
    )
    return RunnerContext(
        name=own_name,
        settings=settings,
        environ=environ,
        slot=slot,
        clock=ObservedClock(slot.clock),
        git=GitSetup(environ, slot.git),
        repository_files=RepositoryFiles(),
        journal=EffectJournal(slot.effects),
        secrets=secrets,
        disk=disk_of(settings),
        memory_limits=MemoryLimits(limit=settings.task_memory_max),
        link=link,
        agents=known,
        trials=trials,
        spares=SpareSupervisors(),
        shutdown=Shutdown(),
        keeper_link=keeper_link or KeeperLink(),
        task_log=TaskLog(home.logs / f"tasks-{name}.jsonl"),
        policy=None if pairing is None else PolicyGuard(home.policy),
    )


def _ca_file(settings: Settings, pairing: Pairing | None) -> Path | None:
    """The certificates that were named when the machine was paired, else those of the settings."""
    return settings.ca_file if pairing is None or pairing.ca_file is None else Path(pairing.ca_file)
