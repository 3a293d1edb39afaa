"""Runs Codex: one process per turn, with the prompt on stdin and JSON lines on stdout."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delegate.model import AgentName
from delegate.runner.agents.ask_tool import SERVER, TOKEN_VARIABLE, TOOL
from delegate.runner.agents.base import AgentTurn, Invocation, Roots, agent_environment, find_program, prompt_text
from delegate.runner.agents.codex_reading import THREAD_ID, CodexReading

NODE_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}  # Node's names
# Outside a repository codex would refuse to start.
UNATTENDED = ("--json", "--skip-git-repo-check", "-c", 'approval_policy="never"')
# All other modes, and the default, use the sandbox: the network is open, but only the task's directory, its repository
# and the attempt's TMPDIR are writable, not /tmp. `bypassPermissions` has no sandbox; it must be requested by name.
SANDBOXES = {"plan": "read-only", "bypassPermissions": "danger-full-access"}
WORKSPACE_WRITE = "workspace-write"
# Names that the sandbox protects in each writable directory. It creates an empty directory for one that is missing, and
# removes it at its end, unless it is killed.
PLACEHOLDERS = (".git", ".codex", ".agents", ".aws")
PROFILE = "delegate"  # of Codex's permissions, for a task in place
GIT_SETTINGS = ("config", "config.worktree", "hooks", "info")  # git runs commands that it finds in these
COMMON = "commondir"
GIT_LINKS = (COMMON, "gitdir", "modules", "worktrees")  # git looks for settings behind these
# Set by codex for the commands of a session; a relay started by one of them must not pass them on.
OUTER_SESSION = frozenset(
    {
        "CODEX_CI",
        "CODEX_SANDBOX",
        "CODEX_SANDBOX_NETWORK_DISABLED",
        "CODEX_SESSION_ID",
        "CODEX_THREAD_ID",
        "CODEX_TOOL_CALL_ID",
        "CODEX_VERSION",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codex:
    command: str  # a name on PATH, or a path
    name: str = AgentName.CODEX

    def program(self, environ: Mapping[str, str]) -> str | None:
        found = find_program(self.command, environ)
        return native_program(found) if found else None

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return self.program(environ) is not None

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        env = agent_environment(environ, turn.assignment, turn.ask_endpoint)
        session = turn.session if turn.session and THREAD_ID.fullmatch(turn.session) else None
        verb = ("exec", "resume", session) if session else ("exec",)
        return Invocation(
            argv=(self.program(environ) or self.command, *verb, *UNATTENDED, *_options(turn), "-"),
            env={name: value for name, value in env.items() if name not in OUTER_SESSION},
            # Codex rejects a prompt with lone surrogates.
            initial_input=prompt_text(turn).encode("utf-8", "replace"),
            keep_input_open=False,
            placeholders=tuple(_placeholders(turn)),
            forbidden=tuple(_missing_links(turn)),
        )

    def reading(self, turn: AgentTurn) -> CodexReading:
        return CodexReading(turn)


def native_program(found: str) -> str:
    """The npm command is a Node launcher. A killed launcher leaves the program running, so we start the program itself:
    it is in its own package, beside the launcher's or below it."""
    launcher = Path(found).resolve()
    if launcher.suffix != ".js":
        return found
    package = launcher.parent.parent
    machine = platform.machine().lower()
    native = f"codex-{sys.platform}-{NODE_ARCHITECTURES.get(machine, machine)}"
    for place in (package / "node_modules" / package.parent.name / native, package.parent / native, package):
        for program in sorted(place.glob("vendor/*/bin/codex")):
            if os.access(program, os.X_OK):
                return str(program)
    return found


def _options(turn: AgentTurn) -> list[str]:
    assignment = turn.assignment
    sandbox = SANDBOXES.get(assignment.permission_mode or "", WORKSPACE_WRITE)
    settings: dict[str, object] = {"sandbox_mode": sandbox}
    if sandbox == WORKSPACE_WRITE:
        git = _git_directories(turn)
        settings["sandbox_workspace_write.network_access"] = True
        settings["sandbox_workspace_write.exclude_slash_tmp"] = True
        settings["sandbox_workspace_write.writable_roots"] = [] if turn.workspace is None else list(map(str, git))
        if turn.workspace is None and git:
            settings |= _checkout_permissions(git)
    if assignment.model is not None:
        settings["model"] = assignment.model
    if assignment.effort is not None:
        settings["model_reasoning_effort"] = assignment.effort
    if turn.ask_endpoint is not None:
        settings |= _server(turn.ask_endpoint.url)
    return [word for name, value in settings.items() for word in ("-c", f"{name}={_toml(value)}")]


def _checkout_permissions(git_directories: list[Path]) -> dict[str, object]:
    """In place, git may commit, but the agent cannot write what the user's own git commands would run: configuration,
    hooks and attributes. Codex hides missing files, too. A Codex without such profiles leaves git read-only."""
    files: dict[str, object] = {":root": "read", ":project_roots": {".": "write"}, ":tmpdir": "write"}
    files |= {str(place): "write" for place in git_directories}
    for place in git_directories:
        files |= {str(place / name): "read" for name in GIT_SETTINGS}
        files |= {str(place / name): "read" for name in GIT_LINKS if (place / name).exists()}
    profile = f"permissions.{PROFILE}"
    return {"default_permissions": PROFILE, f"{profile}.filesystem": files, f"{profile}.network": {"enabled": True}}


def _server(url: str) -> dict[str, object]:
    """Adds a server to the user's own; codex continues if it is unreachable. The call is approved here, because codex
    runs unattended and would refuse it in a sandbox."""
    settings: dict[str, object] = {
        "url": url,
        "bearer_token_env_var": TOKEN_VARIABLE,
        "enabled_tools": [TOOL],
        "default_tools_approval_mode": "approve",
    }
    return {f"mcp_servers.{SERVER}.{name}": value for name, value in settings.items()}


def _toml(value: object) -> str:
    """Strings, lists and booleans are the same in JSON and TOML, except characters escaped as surrogate pairs."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(entry)}" for name, entry in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _placeholders(turn: AgentTurn) -> list[Path]:
    """What the sandbox creates; an empty directory of its own names is one that an earlier sandbox left."""
    made = [root / name for root in _writable_directories(turn) for name in PLACEHOLDERS]
    places = _git_directories(turn) if turn.workspace is None else []
    hidden = [place / name for place in places for name in GIT_SETTINGS if not (place / name).exists()]
    return [path for path in made if not path.is_file()] + hidden


def _missing_links(turn: AgentTurn) -> list[Path]:
    """In place, the sandbox cannot protect a file that must be missing for git to work."""
    places = _git_directories(turn) if turn.workspace is None else []
    return [place / COMMON for place in places if not (place / COMMON).exists()]


def _writable_directories(turn: AgentTurn) -> list[Path]:
    directory = turn.assignment.working_directory
    own = turn.workspace.tree if turn.workspace is not None else Path(directory) if directory else None
    return [*([own] if own else ()), *_git_directories(turn)]


def _git_directories(turn: AgentTurn) -> list[Path]:
    """The directories that git writes for a commit; the sandbox protects each one that is not named."""
    directory = turn.assignment.working_directory
    if turn.workspace is not None:
        directories = _workspace_git_directories(turn.workspace)
    else:
        directories = _checkout_git_directories(Path(directory)) if directory else []
    return [place for place in directories if _is_utf8(place)]


def _workspace_git_directories(roots: Roots) -> list[Path]:
    worktrees = roots.git_dir / "worktrees"
    # No links: an earlier turn could have created one that leaves the workspace.
    found = [entry for entry in worktrees.glob("*") if entry.is_dir() and not entry.is_symlink()]
    return [roots.git_dir, *(sorted(found) if not worktrees.is_symlink() else ())]


def _checkout_git_directories(directory: Path) -> list[Path]:
    for folder in (directory, *directory.parents):
        entry = folder / ".git"
        if entry.is_dir():
            return [entry] if _is_git(entry) else []
        if entry.is_file():
            return _linked_git_directories(entry)
    return []


def _linked_git_directories(entry: Path) -> list[Path]:
    """A linked worktree has its own directory and a shared one; a submodule has one."""
    own = entry.parent / _first_line(entry).removeprefix("gitdir:").strip()
    if not _is_git(own):
        return []
    shared = _first_line(own / "commondir")
    directories = [own / shared, own] if shared else [own]
    return [place.resolve() for place in directories if _is_git(place)]


def _is_git(path: Path) -> bool:
    """Only git directories may be writable for the agent, whatever a file in the directory says."""
    return (path / "HEAD").is_file()


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")[0].strip()
    except OSError:
        return ""


def _is_utf8(path: Path) -> bool:
    """Codex does not start with an argument that is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True
