"""`delegate mcp`: runs the bridge for MCP clients, and registers it with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from delegate.cli.commands.submit import existing_directory
from delegate.cli.context import CommandContext, command_options, examples, shared_options
from delegate.config.settings import load
from delegate.errors import Refused

NAME = "delegate"
FILE = ".mcp.json"
FILE_MAX = 16 * 1024 * 1024
# They select the relay and are not secret; a client may start its servers with little more than PATH.
FORWARDED_VARIABLES = ("DELEGATE_HOME", "DELEGATE_RELAY_URL")
ADD_TIMEOUT = 60.0  # seconds for an agent's program to write one entry
ServerEntry = dict[str, Any]  # Any: JSON, as MCP clients share it


@click.group(
    "mcp",
    epilog=examples("delegate mcp config --write", "delegate mcp install", "delegate mcp start"),
)
@shared_options
def mcp() -> None:
    """Let other agents submit tasks over MCP."""


@mcp.command(epilog=examples("delegate mcp start", "delegate mcp start -v 2> bridge.log"))
@command_options
def start(context: CommandContext) -> int:
    """Serve MCP on standard input and output. MCP clients start this command."""
    from delegate.mcp_bridge.run import run  # noqa: PLC0415  the fast entry point does not load this module

    return run(verbose=context.verbose)


@mcp.command(epilog=examples("delegate mcp config", "delegate mcp config --write"))
@click.option("--write", is_flag=True, help=f"Write the entry to {FILE} in this directory. Other entries are kept.")
@command_options
def config(context: CommandContext, write: bool) -> None:
    """Print the entry for .mcp.json. Claude Code and other clients read that file."""
    path = Path(existing_directory(None)) / FILE if write else None
    entry = build_entry(context.environ)
    if path is None:
        servers = {"mcpServers": {NAME: entry}}
        context.print([json.dumps(servers) if context.as_json else json.dumps(servers, indent=2)])
        return
    done = merge(path, entry)
    context.print_result({"path": str(path), "done": done}, [f"{path}: {done}"])


@mcp.command(epilog=examples("delegate mcp install", "delegate mcp install --agent codex"))
@click.option("--agent", type=click.Choice(["claude", "codex"]), help="Register with this agent only.")
@command_options
def install(context: CommandContext, agent: str | None) -> None:
    """Register the server with Claude Code and Codex. They use it in all directories."""
    commands = {"claude": context.settings.claude_command, "codex": context.settings.codex_command}
    wanted = {name: command for name, command in commands.items() if agent in {None, name}}
    found = {name: shutil.which(command) for name, command in wanted.items()}
    if not any(found.values()):
        raise Refused(why=f"not found on PATH: {', '.join(wanted.values())}; `delegate mcp config` prints the entry")
    entry = build_entry(context.environ)
    for name, program in found.items():
        done = f"not installed ({wanted[name]} is not on PATH)" if program is None else ADD[name](program, entry)
        context.print_result({"agent": name, "done": done}, [f"{name}: {done}"])


def build_entry(environ: Mapping[str, str]) -> ServerEntry:
    """The entry that makes a client start the bridge: this program, for the relay that this shell uses.

    Invalid settings raise an error: an address with a login in it would be copied.
    """
    load(environ)
    program, *words = own_program()
    carried = {name: environ[name] for name in FORWARDED_VARIABLES if environ.get(name)}
    entry: ServerEntry = {"command": program, "args": [*words, "mcp", "start"]}
    return {**entry, "env": carried} if carried else entry


def own_program() -> list[str]:
    """The program as it was called, so that a link that survives an upgrade is kept."""
    called = Path(os.path.abspath(sys.argv[0]))
    for program in (called, Path(sys.executable).with_name(NAME)):
        if program.name == NAME and program.is_file() and os.access(program, os.X_OK):
            return [str(program)]
    return [sys.executable, "-P", "-m", NAME]


def merge(path: Path, entry: ServerEntry) -> str:
    """Put the entry into the file, and return what was done."""
    known = _read_json(path)
    servers = known.setdefault("mcpServers", {})
    if not isinstance(servers, dict):
        raise Refused(why=f'{path}: "mcpServers" is not a JSON object; fix it, or move the file away')
    before = servers.get(NAME)
    if before == entry:
        return "unchanged"
    servers[NAME] = entry
    try:
        _replace(path.resolve(), json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise Refused(why=f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from error
    return "added" if before is None else "updated"


def _read_json(path: Path) -> ServerEntry:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(why=f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        known = json.loads(text.decode("utf-8-sig")) if text.strip() else {}
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg.lower()}"
        raise Refused(why=f"{path} is not valid JSON ({position}); fix it, or move it away") from error
    except (ValueError, RecursionError) as error:
        raise Refused(why=f"{path} is not valid JSON ({error}); fix it, or move it away") from error
    if not isinstance(known, dict):
        raise Refused(why=f"{path} is not a JSON object; fix it, or move it away")
    return known


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically, and keep its permissions."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("x", encoding="utf-8") as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def add_to_claude(program: str, entry: ServerEntry) -> str:
    """`claude mcp add-json` refuses a name that exists, and no command of claude replaces an entry."""
    before = _claude_entry()
    if before == {"type": "stdio", **entry}:
        return "unchanged"
    done = _add_to_claude(program, {"type": "stdio", **entry})
    if done.returncode == 0:
        return "added"
    if "already exists" not in _output_text(done):
        raise _refusal(program, done)
    remove = [program, "mcp", "remove", "--scope", "user", NAME]
    if before is None:
        raise Refused(why=f"{program} has another server named {NAME}; `{' '.join(remove)}` removes it")
    _run_command(remove)
    second = _add_to_claude(program, {"type": "stdio", **entry})
    if second.returncode:
        _add_to_claude(program, before)
        raise _refusal(program, second)
    return "updated"


def _add_to_claude(program: str, entry: ServerEntry) -> subprocess.CompletedProcess[str]:
    return _run_command([program, "mcp", "add-json", "--scope", "user", NAME, json.dumps(entry)])


def _claude_entry() -> ServerEntry | None:
    """The entry from claude's own file, because none of its commands prints a whole entry."""
    servers = _read_json(Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json").get("mcpServers")
    found = servers.get(NAME) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


def add_to_codex(program: str, entry: ServerEntry) -> str:
    """`codex mcp add` silently replaces an entry of the same name."""
    before = _codex_entry()
    if before == entry:
        return "unchanged"
    carried = [word for pair in entry.get("env", {}).items() for word in ("--env", "=".join(pair))]
    done = _run_command([program, "mcp", "add", NAME, *carried, "--", entry["command"], *entry["args"]])
    if done.returncode:
        raise _refusal(program, done)
    return "added" if before is None else "updated"


def _codex_entry() -> ServerEntry | None:
    """The entry from codex's own file; codex itself reports a file that cannot be read."""
    import tomllib  # noqa: PLC0415  only `install` needs it

    try:
        file = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"
        servers = tomllib.loads(file.read_text(encoding="utf-8")).get("mcp_servers")
    except (OSError, ValueError):
        return None
    found = servers.get(NAME) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


ADD = {"claude": add_to_claude, "codex": add_to_codex}


def _run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ADD_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(why=f"{command[0]} could not be run: {error}") from error


def _output_text(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout}\n{done.stderr}".strip()


def _refusal(program: str, done: subprocess.CompletedProcess[str]) -> Refused:
    last = _output_text(done).splitlines()[-1:] or [f"exit code {done.returncode}"]
    return Refused(why=f"{program} did not accept the entry: {last[0]}; `delegate mcp config` prints it")
