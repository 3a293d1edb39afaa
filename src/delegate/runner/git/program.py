"""Runs git for the runner: with Delegate's configuration, never with that of a working tree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from delegate.config.home_files import make_directory
from delegate.config.values import REPOSITORY_VARIABLES
from delegate.runner.process.programs import OUTPUT_MAX, ProgramMissing, ProgramResult, ProgramTimedOut, run_program
from delegate.runner.removal import remove

LOCAL_TIMEOUT = timedelta(minutes=30)  # a checkout of 100,000 files takes about a minute, on a slow disk many
CONFIG_TIMEOUT = timedelta(seconds=30)
SCRATCH_PREFIX = "publish-"
# Git must not run programs that a hostile tree could configure: hooks, filters and monitors. Settings are passed as
# variables, not as files: they win over those of a repository, and no agent can change them.
OUR_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.alternateRefsCommand": ":",  # no git runs in the repositories that objects are borrowed from
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "protocol.ext.allow": "never",
    "advice.detachedHead": "false",
    # Git trusts its object caches without checking them, and an agent can write them.
    "core.commitGraph": "false",
    "core.multiPackIndex": "false",
    "pack.useBitmaps": "false",
}
# The user's settings that remote commands keep: what reaches a remote, and the user's identity.
REMOTE_CONFIG_PREFIXES = ("credential.", "url.", "http.", "https.", "ssh.", "protocol.", "user.", "safe.")
REMOTE_CONFIG_KEYS = frozenset({"core.sshcommand", "core.askpass", "core.gitproxy"})
GIT_PROTOCOLS = ("file", "git", "http", "https", "ssh")
USER_PROTOCOL = re.compile(r"protocol\.([^.]+)\.allow|url\.([^:.]+)::.*")
# Beginnings of variables with which an outer git or the user's shell may redirect git.
REDIRECTING_VARIABLES = (
    *REPOSITORY_VARIABLES,
    "GIT_CONFIG",
    "GIT_CEILING",
    "GIT_EXTERNAL_DIFF",
    "GIT_EDITOR",
    "GIT_TRACE",
)
FIXED_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "LC_ALL": "C",
}
FALSE_VALUES = frozenset({"false", "no", "off", "0", ""})
SIGNING_VARIABLES = ("HOME", "USER", "GNUPGHOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR")
NO_QUESTIONS = {"SSH_ASKPASS_REQUIRE": "never", "SSH_ASKPASS": "", "GPG_TTY": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
# For commands that need no repository: git must not find one above the current directory.
NO_REPOSITORY = {"GIT_DIR": os.devnull}


class GitFailed(Exception):
    """A git command failed."""

    def __init__(self, arguments: tuple[str, ...], done: ProgramResult | None, why: str) -> None:
        self.done = done
        self.why = why
        super().__init__(f"git {arguments[0] if arguments else ''}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """How the user signs commits: program and key from the settings outside of any repository."""

    options: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    program: str
    local_env: Mapping[str, str]  # for Delegate's own repositories: inherits nothing from the user
    remote_env: Mapping[str, str]  # for fetch and push: the user's environment and remote settings
    user_name: str
    user_email: str
    excludes: str  # the user's ignore lines for all repositories
    trusted: tuple[str, ...]  # directories of other users that the user lets git read
    scratch: Path  # for temporary repositories
    rewrites_urls: bool = False  # the user has `url.…` settings, such as insteadOf
    push_default: str | None = None  # the user's remote.pushDefault, for checkouts that set none
    signing: Signing | None = None  # the user's commit.gpgSign

    async def run(
        self, *arguments: str, cwd: Path, input: bytes = b"", extra: Mapping[str, str] | None = None
    ) -> bytes:
        """Run a local command; returns its output or raises GitFailed."""
        call = _GitCall(arguments=arguments, cwd=cwd, env={**self.local_env, **(extra or {})}, input=input)
        return await self._output_of(call, LOCAL_TIMEOUT)

    async def run_remote(
        self, *arguments: str, cwd: Path, timeout: timedelta, extra: Mapping[str, str] | None = None
    ) -> bytes:
        """Run a command that connects to a remote as the user would; it is killed when this process dies."""
        env = {**self.remote_env, **(extra or {})}
        call = _GitCall(arguments=self._pass_on_trust(arguments), cwd=cwd, env=env, is_remote=True)
        return await self._output_of(call, timeout)

    def _pass_on_trust(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """Git drops settings in variables for the other side of a local remote, which checks who owns it."""
        verb, url = arguments[0], arguments[arguments.index("--") + 1] if "--" in arguments else ""
        if not self.trusted or not url.startswith(("/", "file://")):
            return arguments
        side = "receive-pack" if verb == "push" else "upload-pack"
        words = [word for directory in self.trusted for word in ("-c", f"safe.directory={directory}")]
        return verb, f"--{side}={shlex.join(['git', *words, side])}", *arguments[1:]

    async def _output_of(self, call: _GitCall, timeout: timedelta) -> bytes:
        try:
            done = await run_program(
                [self.program, *call.arguments],
                cwd=call.cwd,
                env=call.env,
                timeout=timeout,
                input=call.input,
                kill_with_parent=call.is_remote,
            )
        except (ProgramMissing, ProgramTimedOut) as problem:
            raise GitFailed(call.arguments, None, str(problem)) from problem
        if done.code != 0:
            raise GitFailed(call.arguments, done, done.error_text or f"ended with exit code {done.code}")
        if done.is_truncated:
            raise GitFailed(call.arguments, done, f"printed more than {OUTPUT_MAX // 1024**2} MiB")
        return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class _GitCall:
    arguments: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    input: bytes = b""
    is_remote: bool = False


class GitSetup:
    """The user's git setup, read on first use at the runner's start."""

    def __init__(self, environ: Mapping[str, str], directory: Path) -> None:
        self._environ = environ
        self._directory = directory
        self._read_lock = anyio.Lock()
        self._git: Git | None = None

    async def get(self) -> Git:
        async with self._read_lock:
            if self._git is None:
                self._git = await read_git(self._environ, self._directory)
            return self._git


async def read_git(environ: Mapping[str, str], directory: Path) -> Git:
    """Read the user's git setup; temporary repositories are created in `directory`, which no other process uses."""
    program = shutil.which("git", path=environ.get("PATH", os.defpath))
    if program is None:
        raise GitFailed((), None, "git is not installed")
    own = {name: value for name, value in environ.items() if not name.startswith(REDIRECTING_VARIABLES)}
    theirs = await _read_settings(
        program, {**own, **_config_variables(environ), **NO_REPOSITORY, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    )
    settings = dict(theirs)
    _prepare_scratch(directory)
    who = {
        "user.name": settings.get("user.name", "Delegate"),
        "user.email": settings.get("user.email", "delegate@localhost"),
    }
    return Git(
        program=program,
        local_env={
            "PATH": environ.get("PATH", os.defpath),
            "HOME": os.devnull,
            **FIXED_ENVIRONMENT,
            **_settings_variables([*who.items(), *OUR_CONFIG.items()]),
        },
        remote_env={
            **own,
            **FIXED_ENVIRONMENT,
            **_settings_variables([*_remote_settings(theirs), *OUR_CONFIG.items()]),
            "GIT_ALLOW_PROTOCOL": environ.get("GIT_ALLOW_PROTOCOL") or ":".join(_protocols(theirs)),
        },
        user_name=who["user.name"],
        user_email=who["user.email"],
        excludes=_read_excludes(settings, own),
        trusted=tuple(value for name, value in theirs if name == "safe.directory"),
        scratch=directory,
        rewrites_urls=any(name.startswith("url.") for name, _ in theirs),
        push_default=settings.get("remote.pushdefault"),
        signing=_read_signing(settings, own),
    )


def _prepare_scratch(directory: Path) -> None:
    """Create the directory, and remove the repositories that a killed process left in it."""
    make_directory(directory)
    for leftover in directory.glob(f"{SCRATCH_PREFIX}*"):
        remove(directory, leftover.name)


async def _read_settings(program: str, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """All settings outside of any repository, in git's order: a later one wins."""
    root = Path("/")
    done = await run_program(
        [program, "config", "--list", "--includes", "-z"], cwd=root, env=env, timeout=CONFIG_TIMEOUT
    )
    if done.code != 0:
        raise GitFailed(("config",), done, done.error_text)
    entries = (entry.split("\n", 1) for entry in done.stdout.decode(errors="surrogateescape").split("\0") if entry)
    # A name without a value means true, one with an empty value false.
    return [(name, value[0] if value else "true") for name, *value in entries]


def _config_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that move the user's git configuration or set values in it."""
    names = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT")
    prefixes = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")
    return {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}


def _remote_settings(settings: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair in settings if pair[0].startswith(REMOTE_CONFIG_PREFIXES) or pair[0] in REMOTE_CONFIG_KEYS]


def _read_signing(settings: Mapping[str, str], environ: Mapping[str, str]) -> Signing | None:
    if settings.get("commit.gpgsign", "false").lower() in FALSE_VALUES:
        return None
    own = {name: value for name, value in settings.items() if name.startswith("gpg.") or name == "user.signingkey"}
    env = {name: environ[name] for name in SIGNING_VARIABLES if name in environ}
    options = tuple(part for name, value in own.items() for part in ("-c", f"{name}={value}"))
    return Signing(options=options, env={**env, **NO_QUESTIONS})


def _read_excludes(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    default = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config") / "git" / "ignore"
    named = settings.get("core.excludesfile")
    path = Path(named.replace("~/", f"{environ.get('HOME', '')}/", 1)) if named else default
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _protocols(settings: list[tuple[str, str]]) -> list[str]:
    """Git's own protocols and those that the user's settings name, except `ext`, which runs any command."""
    named = dict.fromkeys(GIT_PROTOCOLS, dict(settings).get("protocol.allow", "always"))
    for name, value in settings:
        if found := USER_PROTOCOL.fullmatch(name):
            named |= {found[1]: value} if found[1] else {found[2]: "always"}
    return [name for name, allowed in named.items() if allowed != "never" and name != "ext"]


def _settings_variables(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The settings as variables. Git drops them for the other side of a local remote, whose own hooks must run."""
    pairs = list(enumerate(settings))
    keys = {f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in pairs}
    return {
        **keys,
        **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in pairs},
        "GIT_CONFIG_COUNT": str(len(pairs)),
    }
