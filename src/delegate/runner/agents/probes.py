"""Examines an agent's program without calling a model: its version, login and models."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import anyio

from delegate.errors import excerpt
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.base import Agent, users_environment
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.lines import as_list, as_object, as_text, one_line
from delegate.runner.process.programs import ProgramMissing, ProgramResult, ProgramTimedOut, ask_program, run_program

PROBE_TIMEOUT = timedelta(seconds=20)  # a Node program on a cold disk takes seconds to print its version
NEUTRAL_DIRECTORY = Path("/")  # has no repository and no project settings
VERSION = re.compile(r"\d+\.\d+[\w.+-]*")
VERSION_MAX = 100
XDG_VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
MODELS_MAX = 200
CLAUDE_LOGINS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
)
FIXES = {
    "claude": "npm install -g @anthropic-ai/claude-code, or set DELEGATE_CLAUDE_COMMAND",
    "codex": "npm install -g @openai/codex, or set DELEGATE_CODEX_COMMAND",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    version: str | None = None
    is_logged_in: bool | None = None  # None: only a model call would show it
    models: tuple[str, ...] = ()  # as far as the program lists them
    problem: str | None = None  # what would make a task fail
    fix: str | None = None


class AgentEntry(TypedDict):
    """An agent in the relay's list of runners, as JSON."""

    name: str
    version: str | None
    isLoggedIn: bool | None


class ProbeFailed(Exception):
    """The program exists, but does not work; str is the sentence for the user."""


async def probe(agent: Agent, environ: Mapping[str, str]) -> Probe:
    """Starts an agent's program, but calls no model and spends no money."""
    if not agent.is_available(environ):
        return Probe(problem=f"{agent.name} is not installed", fix=FIXES.get(agent.name))
    try:
        return await _probe_program(agent, agent.program(environ) or "", environ)
    except ProbeFailed as problem:
        return Probe(problem=str(problem), fix=FIXES.get(agent.name))


async def list_agents(known: Iterable[Agent], environ: Mapping[str, str]) -> list[AgentEntry]:
    """Probe the installed agents, all at once."""
    installed = [agent for agent in known if agent.is_available(environ)]
    found: dict[str, Probe] = {}

    async def examine(agent: Agent) -> None:
        found[agent.name] = await probe(agent, environ)

    async with anyio.create_task_group() as group:
        for agent in installed:
            group.start_soon(examine, agent)
    return [
        AgentEntry(name=agent.name, version=found[agent.name].version, isLoggedIn=found[agent.name].is_logged_in)
        for agent in installed
        if agent.program(environ) is None or found[agent.name].version is not None  # the shell has no program
    ]


async def _probe_program(agent: Agent, program: str, environ: Mapping[str, str]) -> Probe:
    match agent:
        case Claude():
            return await _probe_claude(program, environ)
        case Codex():
            return await _probe_codex(program, environ)
        case Acp():
            return await _probe_acp(agent, environ)
    return Probe()  # a shell needs nothing


async def can_start(agent: Agent, environ: Mapping[str, str]) -> bool:
    """Whether the program starts, checked cheaply and with few traces."""
    program = agent.program(environ)
    if program is None:
        return agent.is_available(environ)
    if not isinstance(agent, Acp):
        return await _can_print_version(program, environ)
    if agent.is_known and await _can_print_version(program, environ):
        return True
    try:
        await _read_initialize_result(agent, environ)
    except ProbeFailed:
        return False
    return True


async def _can_print_version(program: str, environ: Mapping[str, str]) -> bool:
    """Redirects the XDG directories: some programs create files there even to print their version."""
    with TemporaryDirectory(prefix="delegate-trial-") as scratch:
        try:
            await _read_output([program, "--version"], {**environ, **dict.fromkeys(XDG_VARIABLES, scratch)})
        except ProbeFailed:
            return False
    return True


async def _run(argv: list[str], environ: Mapping[str, str]) -> ProgramResult:
    try:
        return await run_program(argv, cwd=NEUTRAL_DIRECTORY, env=users_environment(environ), timeout=PROBE_TIMEOUT)
    except (ProgramMissing, ProgramTimedOut) as problem:
        raise ProbeFailed(str(problem)) from problem


async def _read_output(argv: list[str], environ: Mapping[str, str]) -> str:
    """The output of a command; raises ProbeFailed when it fails."""
    done = await _run(argv, environ)
    if done.code != 0:
        command = f"{Path(argv[0]).name} {' '.join(argv[1:])}"
        raise ProbeFailed(f"`{command}` ended with exit code {done.code}: {excerpt(done.error_text)}")
    return done.stdout.decode("utf-8", "replace")


def _version(text: str) -> str:
    found = VERSION.search(text)
    return one_line(found[0] if found else text, VERSION_MAX)


async def _probe_claude(program: str, environ: Mapping[str, str]) -> Probe:
    version = _version(await _read_output([program, "--version"], environ))
    is_logged_in = claude_login(environ)
    if is_logged_in is False:
        fix = "start `claude` once and log in, or set ANTHROPIC_API_KEY"
        return Probe(version=version, is_logged_in=False, problem="claude is not logged in", fix=fix)
    return Probe(version=version, is_logged_in=is_logged_in)


def claude_login(environ: Mapping[str, str]) -> bool | None:
    """Whether there is a login, which may have expired; None: it may be where we do not look."""
    if any(environ.get(name) for name in CLAUDE_LOGINS):
        return True
    directory = Path(environ.get("CLAUDE_CONFIG_DIR") or Path(environ.get("HOME", "~")).expanduser() / ".claude")
    if (directory / ".credentials.json").is_file():
        return True
    if sys.platform == "darwin" or "apiKeyHelper" in _json_file(directory / "settings.json"):
        return None  # the keychain, or a helper program
    return False


def _json_file(path: Path) -> dict[str, object]:
    try:
        return as_object(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


async def _probe_codex(program: str, environ: Mapping[str, str]) -> Probe:
    version = _version(await _read_output([program, "--version"], environ))
    models = _codex_models(await _read_output([program, "debug", "models", "--bundled"], environ))
    if environ.get("CODEX_API_KEY"):
        return Probe(version=version, is_logged_in=True, models=models)
    status = await _run([program, "login", "status"], environ)
    if status.code == 0:
        return Probe(version=version, is_logged_in=True, models=models)
    if codex_provider(environ) != "openai":
        return Probe(version=version, is_logged_in=None, models=models)  # another service, with its own key
    problem, fix = "codex is not logged in", "run `codex login`, or set CODEX_API_KEY"
    return Probe(version=version, is_logged_in=False, models=models, problem=problem, fix=fix)


def codex_provider(environ: Mapping[str, str]) -> str:
    """The service in the user's settings."""
    directory = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".codex")
    try:
        settings: dict[str, object] = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "openai"
    return as_text(settings.get("model_provider")) or "openai"


def _codex_models(text: str) -> tuple[str, ...]:
    try:
        catalog = as_object(json.loads(text))
    except ValueError:
        return ()
    names = (as_text(as_object(model).get("slug")) for model in as_list(catalog.get("models"))[:MODELS_MAX])
    return tuple(one_line(name, VERSION_MAX) for name in names if name)


async def _probe_acp(agent: Acp, environ: Mapping[str, str]) -> Probe:
    """Models and login are visible only in a session, which some agents store in the user's home."""
    initialized = await _read_initialize_result(agent, environ)
    version = as_text(as_object(initialized.get("agentInfo")).get("version"))
    methods = [as_object(way) for way in as_list(initialized.get("authMethods"))]
    descriptions = [as_text(way.get("description")) or as_text(way.get("name")) for way in methods]
    fix = f"if it is not logged in, log in: {excerpt('; '.join(descriptions))}" if any(descriptions) else None
    return Probe(version=_version(version) or None, fix=fix)


async def _read_initialize_result(agent: Acp, environ: Mapping[str, str]) -> dict[str, object]:
    """The agent's response to `initialize`."""
    from delegate.runner.agents.acp_messages import initialize  # noqa: PLC0415 - a third of a second

    try:
        printed = await ask_program(
            agent.argv(environ),
            cwd=NEUTRAL_DIRECTORY,
            env=users_environment(environ),
            timeout=PROBE_TIMEOUT,
            question=initialize(1),
            is_answer=lambda data: _find_response(data) is not None,
        )
    except (ProgramMissing, ProgramTimedOut) as problem:
        raise ProbeFailed(str(problem)) from problem
    answer = _find_response(printed)
    if answer is None or "result" not in answer:
        raise ProbeFailed(f"`{agent.command}` does not speak the Agent Client Protocol")
    return as_object(answer["result"])


def _find_response(data: bytes) -> dict[str, object] | None:
    for line in data.split(b"\n")[:-1]:
        try:
            message = as_object(json.loads(line))
        except (ValueError, RecursionError):
            continue
        if message.get("id") == 1 and "method" not in message:
            return message
    return None
