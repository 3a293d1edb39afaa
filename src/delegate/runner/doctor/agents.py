"""Every agent: its program, version, login and models, and what it may do unattended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from delegate.model import AgentName, Field, Source
from delegate.preferences.resolve import PLACES
from delegate.runner.agents import Agent, agents
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.codex import WORKSPACE_WRITE
from delegate.runner.agents.probes import VERSION, Probe, probe
from delegate.runner.doctor.case import Case, Examination, told
from delegate.runner.doctor.checkout import Checkout
from delegate.runner.doctor.findings import Finding, Level, Part

MODELS_SHOWN = 3
NO_SANDBOX = "use `--permission-mode bypassPermissions` for it, or allow user namespaces on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the next task here would use."""

    agent: str
    model: str | None
    source: Source  # of the wish for the agent

    def trouble(self, name: str, message: str, fix: str = "") -> Finding:
        """Grave only where the next task would meet it."""
        level = Level.PROBLEM if name == self.agent else Level.WARNING
        return Finding(level=level, part=Part.AGENTS, subject=name, message=message, fix=fix)


def need_of(checkout: Checkout) -> Need:
    if checkout.wanted is None:
        return Need(agent=checkout.agent, model=None, source=checkout.standing.source)
    source = next(choice.source for choice in checkout.wanted.choices if choice.field is Field.AGENT)
    return Need(agent=checkout.agent, model=checkout.wanted.model, source=source)


def agent_examinations(case: Case, need: Need) -> list[Examination]:
    known = agents(case.settings)
    shown = [agent for agent in known.values() if _is_worth_a_look(case, agent, need)]
    looks = [Examination(part=Part.AGENTS, subject=one.name, look=partial(_examine, case, one, need)) for one in shown]
    if need.agent not in known:
        looks.append(Examination(part=Part.AGENTS, subject=need.agent, look=partial(_unknown, need)))
    if known[AgentName.CODEX].is_available(case.environ):
        sandbox = partial(_sandbox, case, known[AgentName.CODEX], need)
        looks.append(Examination(part=Part.AGENTS, subject="codex sandbox", look=sandbox))
    permissions = partial(_permissions, case, known[AgentName.CLAUDE], need)
    return [*looks, Examination(part=Part.AGENTS, subject="permissions", look=permissions)]


def _is_worth_a_look(case: Case, agent: Agent, need: Need) -> bool:
    """A shell is everywhere; of agents that are known by name alone, only those that are there."""
    if agent.name == AgentName.SHELL:
        return False
    if not isinstance(agent, Acp) or not agent.is_known or agent.name == need.agent:
        return True
    return agent.is_available(case.environ)


async def _examine(case: Case, agent: Agent, need: Need) -> list[Finding]:
    is_needed = agent.name == need.agent
    if isinstance(agent, Acp) and agent.is_known and not is_needed:
        return [await _by_version(case, agent, need)]
    found = await probe(agent, case.environ)
    if found.problem is None:
        return [Part.AGENTS.ok(agent.name, _words(found)), *_model(agent, found, need)]
    if not agent.is_available(case.environ) and agent.name in set(AgentName) and not is_needed:
        return [Part.AGENTS.note(agent.name, "is not installed", found.fix or "")]
    message = told(found.problem.removeprefix(f"{agent.name} "))
    version = f" (version {found.version})" if found.version else ""
    return [need.trouble(agent.name, f"{message}{version}", told(found.fix or ""))]


async def _by_version(case: Case, agent: Acp, need: Need) -> Finding:
    """Greeting it would take seconds, and some write into the user's home then."""
    program = agent.program(case.environ)
    assert program is not None
    done = await case.run(program, "--version")
    if done.code != 0:
        return need.trouble(agent.name, f"does not run: {told(done.words)}")
    version = VERSION.search(done.stdout.decode(errors="replace"))
    return Part.AGENTS.ok(agent.name, f"{version[0]}" if version else "is installed")


def _words(found: Probe) -> str:
    logins = {True: "logged in", False: "not logged in", None: "its login shows when it is used"}
    words = [found.version or "version unknown", logins[found.is_logged_in]]
    if found.models:
        more = len(found.models) - MODELS_SHOWN
        models = ", ".join(found.models[:MODELS_SHOWN])
        words.append(f"models {models}" + (f" and {more} more" if more > 0 else ""))
    return told(", ".join(words))


def _model(agent: Agent, found: Probe, need: Need) -> list[Finding]:
    if agent.name != need.agent or need.model is None or not found.models or need.model in found.models:
        return []
    message = f"model {told(need.model)} is not among those that {agent.name} lists"
    return [Part.AGENTS.warning(agent.name, message, f"choose one of {told(', '.join(found.models))}")]


async def _unknown(need: Need) -> list[Finding]:
    message = f"is wanted by {PLACES[need.source]}, but no runner here looks for it"
    command = need.agent.removeprefix("acp:")
    return [need.trouble(need.agent, message, f'set DELEGATE_ACP_AGENTS="{told(command)}" for `delegate up`')]


async def _sandbox(case: Case, codex: Agent, need: Need) -> list[Finding]:
    """A command that does nothing, run as codex would run it."""
    argv = (codex.program(case.environ) or "", "sandbox", "-c", f'sandbox_mode="{WORKSPACE_WRITE}"', "--", "true")
    done = await case.run(*argv, cwd=case.scratch)
    if done.code == 0:
        return [Part.AGENTS.ok("codex sandbox", "works")]
    level = Level.PROBLEM if need.agent == codex.name else Level.WARNING
    message = f"does not work here, so codex could run no command: {told(done.words)}"
    return [Finding(level=level, part=Part.AGENTS, subject="codex sandbox", message=message, fix=NO_SANDBOX)]


async def _permissions(case: Case, claude: Agent, need: Need) -> list[Finding]:
    less = "; `--permission-mode` gives a task less"
    if not case.is_root:
        message = "agents run unattended as you: claude with its permission checks bypassed, codex in its sandbox"
        return [Part.AGENTS.note("permissions", message + less)]
    if case.environ.get("IS_SANDBOX") != "0":
        message = "agents run unattended as root: claude with its checks bypassed (IS_SANDBOX=1), codex in its sandbox"
        return [Part.AGENTS.note("permissions", message + less)]
    if not claude.is_available(case.environ):
        return []
    found = Part.AGENTS.problem if need.agent == AgentName.CLAUDE else Part.AGENTS.warning
    message = "IS_SANDBOX=0 is set: claude refuses to bypass its permission checks as root"
    return [found("permissions", message, "unset IS_SANDBOX, or run Delegate as another user")]
