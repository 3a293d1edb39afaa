"""Examines every agent: its program, version, login and models, and its permissions when it runs unattended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from delegate.model import AgentName, Field, Source
from delegate.preferences.resolve import SOURCE_NAMES
from delegate.runner.agents import Agent, agents
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.codex import WORKSPACE_WRITE
from delegate.runner.agents.probes import VERSION, Probe, probe
from delegate.runner.doctor.checkout import Checkout
from delegate.runner.doctor.context import DoctorContext, Examination, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding, Level

MODELS_SHOWN = 3
NO_SANDBOX = "allow user namespaces on this machine, or run codex with `--permission-mode bypassPermissions`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the next task here would use."""

    agent: str
    model: str | None
    source: Source  # what chose the agent

    def make_finding(self, name: str, message: str, fix: str = "") -> Finding:
        """A problem for the agent that the next task would use, a warning for any other."""
        level = Level.PROBLEM if name == self.agent else Level.WARNING
        return Finding(level=level, section=DoctorSection.AGENTS, subject=name, message=message, fix=fix)


def need_of(checkout: Checkout) -> Need:
    if checkout.preferences is None:
        return Need(agent=checkout.agent, model=None, source=checkout.default_choice.source)
    source = next(choice.source for choice in checkout.preferences.choices if choice.field is Field.AGENT)
    return Need(agent=checkout.agent, model=checkout.preferences.model, source=source)


def agent_examinations(context: DoctorContext, need: Need) -> list[Examination]:
    known = agents(context.settings)
    shown = [agent for agent in known.values() if _is_relevant(context, agent, need)]
    examinations = [
        Examination(section=DoctorSection.AGENTS, subject=one.name, run=partial(_examine, context, one, need))
        for one in shown
    ]
    if need.agent not in known:
        examinations.append(
            Examination(section=DoctorSection.AGENTS, subject=need.agent, run=partial(_report_unknown_agent, need))
        )
    if known[AgentName.CODEX].is_available(context.environ):
        sandbox = partial(_check_sandbox, context, known[AgentName.CODEX], need)
        examinations.append(Examination(section=DoctorSection.AGENTS, subject="codex sandbox", run=sandbox))
    permissions = partial(_check_permissions, context, known[AgentName.CLAUDE], need)
    return [*examinations, Examination(section=DoctorSection.AGENTS, subject="permissions", run=permissions)]


def _is_relevant(context: DoctorContext, agent: Agent, need: Need) -> bool:
    """Hides the shell, which is always there, and ACP agents of the built-in list that are not installed."""
    if agent.name == AgentName.SHELL:
        return False
    if not isinstance(agent, Acp) or not agent.is_known or agent.name == need.agent:
        return True
    return agent.is_available(context.environ)


async def _examine(context: DoctorContext, agent: Agent, need: Need) -> list[Finding]:
    is_needed = agent.name == need.agent
    if isinstance(agent, Acp) and agent.is_known and not is_needed:
        return [await _check_version(context, agent, need)]
    found = await probe(agent, context.environ)
    if found.problem is None:
        return [DoctorSection.AGENTS.ok(agent.name, _describe_probe(found)), *_check_model(agent, found, need)]
    if not agent.is_available(context.environ) and agent.name in set(AgentName) and not is_needed:
        return [DoctorSection.AGENTS.note(agent.name, "is not installed", found.fix or "")]
    message = quote_line(found.problem.removeprefix(f"{agent.name} "))
    version = f" (version {found.version})" if found.version else ""
    return [need.make_finding(agent.name, f"{message}{version}", quote_line(found.fix or ""))]


async def _check_version(context: DoctorContext, agent: Acp, need: Need) -> Finding:
    """Runs `--version` only: a handshake takes seconds, and some agents then write into the user's home."""
    program = agent.program(context.environ)
    assert program is not None
    done = await context.run(program, "--version")
    if done.code != 0:
        return need.make_finding(agent.name, f"does not run: {quote_line(done.error_text)}")
    version = VERSION.search(done.stdout.decode(errors="replace"))
    return DoctorSection.AGENTS.ok(agent.name, f"{version[0]}" if version else "is installed")


def _describe_probe(found: Probe) -> str:
    logins = {True: "logged in", False: "not logged in", None: "login not checked"}
    parts = [found.version or "version unknown", logins[found.is_logged_in]]
    if found.models:
        more = len(found.models) - MODELS_SHOWN
        models = ", ".join(found.models[:MODELS_SHOWN])
        parts.append(f"models {models}" + (f" and {more} more" if more > 0 else ""))
    return quote_line(", ".join(parts))


def _check_model(agent: Agent, found: Probe, need: Need) -> list[Finding]:
    if agent.name != need.agent or need.model is None or not found.models or need.model in found.models:
        return []
    message = f"model {quote_line(need.model)} is not in the list of models that {agent.name} prints"
    return [DoctorSection.AGENTS.warning(agent.name, message, f"choose one of {quote_line(', '.join(found.models))}")]


async def _report_unknown_agent(need: Need) -> list[Finding]:
    message = f"is chosen by {SOURCE_NAMES[need.source]}, but runners on this machine do not offer it"
    command = need.agent.removeprefix("acp:")
    return [
        need.make_finding(need.agent, message, f'set DELEGATE_ACP_AGENTS="{quote_line(command)}" for `delegate up`')
    ]


async def _check_sandbox(context: DoctorContext, codex: Agent, need: Need) -> list[Finding]:
    """Runs `true` in the sandbox, as codex would run a command."""
    options = ("-c", f'sandbox_mode="{WORKSPACE_WRITE}"', "-c", "sandbox_workspace_write.exclude_slash_tmp=true")
    argv = (codex.program(context.environ) or "", "sandbox", *options, "--", "true")
    done = await context.run(*argv, cwd=context.scratch)
    if done.code == 0:
        return [DoctorSection.AGENTS.ok("codex sandbox", "works")]
    level = Level.PROBLEM if need.agent == codex.name else Level.WARNING
    message = f"does not work on this machine, so codex cannot run commands: {quote_line(done.error_text)}"
    return [
        Finding(level=level, section=DoctorSection.AGENTS, subject="codex sandbox", message=message, fix=NO_SANDBOX)
    ]


async def _check_permissions(context: DoctorContext, claude: Agent, need: Need) -> list[Finding]:
    less = "; restrict a task with `--permission-mode`"
    if not context.is_root:
        message = "agents run unattended as you: claude with its permission checks bypassed, codex in its sandbox"
        return [DoctorSection.AGENTS.note("permissions", message + less)]
    if context.environ.get("IS_SANDBOX") != "0":
        message = "agents run unattended as root: claude with its checks bypassed (IS_SANDBOX=1), codex in its sandbox"
        return [DoctorSection.AGENTS.note("permissions", message + less)]
    if not claude.is_available(context.environ):
        return []
    found = DoctorSection.AGENTS.problem if need.agent == AgentName.CLAUDE else DoctorSection.AGENTS.warning
    message = "IS_SANDBOX=0 is set: claude refuses to bypass its permission checks as root"
    return [found("permissions", message, "unset IS_SANDBOX, or run Delegate as another user")]
