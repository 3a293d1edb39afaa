"""Starts a paired runner with its machine: a systemd user unit that lingers, or a launchd agent."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from delegate.cli.context import CommandContext
from delegate.config.home_files import explain_write_error, make_directory, write_private
from delegate.errors import Refused

IS_MACOS = sys.platform == "darwin"
COMMAND_TIMEOUT = 30.0  # seconds for systemctl, loginctl or launchctl
STOP_TIMEOUT = 90  # seconds that systemd waits before it kills; an agent gets its grace, then hands its task back
# A service does not have the environment of the user's shell: what agents, git and ssh need from it is written down.
# Nothing secret: every program of the user can read a unit.
CAPTURED = (
    "PATH",
    "SSH_AUTH_SOCK",
    "SHELL",
    "LANG",
    "LC_ALL",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "GH_CONFIG_DIR",
    "GIT_SSH_COMMAND",
)
NOT_CAPTURED = frozenset({"DELEGATE_RELAY_URL", "DELEGATE_TOKEN", "DELEGATE_DATABASE_URL", "DELEGATE_SECRET_KEY"})
UNIT = """\
[Unit]
Description=Delegate runner (profile {profile})
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={command}
{environment}
Restart=on-failure
RestartSec=10
# 3: the profile is damaged; 4: the runner was revoked; 5: its home is a copy. A restart would not help.
RestartPreventExitStatus=3 4 5
# Only the keeper is asked to stop: it lets its runners hand their tasks back.
KillMode=mixed
TimeoutStopSec={stop_timeout}

[Install]
WantedBy=default.target
"""


def service_environment(own: CommandContext) -> dict[str, str]:
    """The part of the user's environment that the service gets, and the home of which the profile is a part."""
    kept = {name: value for name, value in own.environ.items() if _is_captured(name) and value}
    return {**kept, "DELEGATE_HOME": str(own.home.root.parents[1])}


def _is_captured(name: str) -> bool:
    is_setting = name.startswith("DELEGATE_") and name not in NOT_CAPTURED
    is_of_task = name in {"DELEGATE_TASK_ID", "DELEGATE_ATTEMPT_ID", "DELEGATE_CONTEXT", "DELEGATE_FAILPOINTS"}
    return name in CAPTURED or (is_setting and not is_of_task)


def service_command(profile: str) -> list[str]:
    return [sys.executable, "-P", "-m", "delegate", "runner", "start", "--foreground", "--profile", profile]


def systemd_unit(profile: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    return UNIT.format(
        profile=profile,
        command=" ".join(_quote(word.replace("$", "$$")) for word in command),
        environment="\n".join(f"Environment={_quote(f'{name}={value}')}" for name, value in sorted(environ.items())),
        stop_timeout=STOP_TIMEOUT,
    )


def _quote(word: str) -> str:
    """As systemd reads words: quotes and backslashes escaped, and its specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def launchd_plist(profile: str, command: Sequence[str], environ: Mapping[str, str], log: Path) -> bytes:
    return plistlib.dumps(
        {
            "Label": label_of(profile),
            "ProgramArguments": list(command),
            "EnvironmentVariables": dict(sorted(environ.items())),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False, "Crashed": True},
            "ThrottleInterval": 10,
            "ExitTimeOut": STOP_TIMEOUT,
            "ProcessType": "Standard",
            "StandardErrorPath": str(log),
        }
    )


def label_of(profile: str) -> str:
    return f"dev.delegate.runner.{profile}"


def unit_path(environ: Mapping[str, str], profile: str) -> Path:
    home = Path(environ.get("HOME") or "~").expanduser()
    if IS_MACOS:
        return home / "Library" / "LaunchAgents" / f"{label_of(profile)}.plist"
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return config / "systemd" / "user" / f"delegate-runner-{profile}.service"


def read_environment(environ: Mapping[str, str], profile: str) -> dict[str, str] | None:
    """The environment that the installed service gives the runner; None: no service is installed."""
    path = unit_path(environ, profile)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if IS_MACOS:
        return {str(name): str(value) for name, value in plistlib.loads(data)["EnvironmentVariables"].items()}
    pairs = [
        line.removeprefix('Environment="').removesuffix('"').partition("=")
        for line in data.decode().splitlines()
        if line.startswith('Environment="')
    ]
    return {name: _unquote(value) for name, _, value in pairs}


def _unquote(text: str) -> str:
    return text.replace("%%", "%").replace('\\"', '"').replace("\\\\", "\\")


def install(own: CommandContext, profile: str) -> list[str]:
    """Write and start the service; returns lines for the user."""
    command, environ, path = service_command(profile), service_environment(own), unit_path(own.environ, profile)
    make_directory(path.parent)
    make_directory(own.home.logs)
    _warn_of_temporary_program(own)
    if IS_MACOS:
        log = own.home.logs / "service.log"
        _write(path, launchd_plist(profile, command, environ, log).decode())
        with suppress(Refused):  # it is not loaded yet
            _run(["launchctl", "bootout", f"gui/{os.getuid()}/{label_of(profile)}"])
        _run(["launchctl", "bootstrap", f"gui/{os.getuid()}", str(path)])
        return [f"installed {path}", "the runner starts when you log in"]
    _write(path, systemd_unit(profile, command, environ))
    _run(["systemctl", "--user", "daemon-reload"])
    _run(["systemctl", "--user", "enable", "--now", path.name])
    lines = [f"installed {path}; `systemctl --user status {path.name}` shows it"]
    try:
        _run(["loginctl", "enable-linger"])
    except Refused as problem:
        own.say(
            f"the runner starts only when you log in: {problem.data['why']}",
            "`sudo loginctl enable-linger $USER` lets it start with the machine",
        )
    else:
        lines.append("the runner starts with the machine, and stays when you log out")
    return lines


def uninstall(own: CommandContext, profile: str) -> None:
    path = unit_path(own.environ, profile)
    if not path.exists():
        return
    with suppress(Refused):
        if IS_MACOS:
            _run(["launchctl", "bootout", f"gui/{os.getuid()}/{label_of(profile)}"])
        else:
            _run(["systemctl", "--user", "disable", path.name])  # the keeper itself drains afterwards
    path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    try:
        write_private(path, text)
    except OSError as error:
        raise explain_write_error(path, error) from error


def _warn_of_temporary_program(own: CommandContext) -> None:
    """`uvx` runs from a cache that is cleaned now and then."""
    if "/uv/archive-v" in sys.executable or "/uv/environments-v" in sys.executable:
        own.say(
            f"the service would run {sys.executable}, which is in uv's cache and may be removed",
            "`uv tool install` Delegate, then run `delegate runner start --install-service`",
        )


def _run(command: list[str]) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise Refused(why=f"{command[0]} is not installed; use `delegate runner start` instead of a service")
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(why=f"{' '.join(command[:3])}: {error}") from error
    if done.returncode != 0:
        raise Refused(why=f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip() or done.returncode}")
