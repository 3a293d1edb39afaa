"""Finds the forge that a remote belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from delegate.runner.forges.base import Forge
from delegate.runner.forges.github import GitHub, has_login
from delegate.runner.forges.local import Local
from delegate.runner.git.program import NO_REPOSITORY, Git, GitFailed
from delegate.runner.process.programs import ProgramMissing, ProgramTimedOut, run_program
from delegate.runner.workspaces.repositories import Repository

GITHUB = "github.com"
CONFIG_TIMEOUT = timedelta(seconds=10)  # for programs that only read a configuration
NEUTRAL_DIRECTORY = Path("/")

HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)"
NAME = r"(?P<owner>[A-Za-z0-9_][A-Za-z0-9._-]*)/(?P<name>[A-Za-z0-9._-]+?)(?:\.git)?/?"
URL = re.compile(rf"(?P<scheme>https?|ssh|git|git\+ssh)://(?:[^/@]*@)?{HOST}(?::\d+)?/{NAME}")
SCP_LIKE = re.compile(rf"(?:[^/@:]+@)?{HOST}:/?{NAME}")
ALIASES = {"www.github.com": GITHUB, "ssh.github.com": GITHUB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    host: str
    repository: str  # owner/name
    is_ssh: bool


async def forge_for(git: Git, repository: Repository, environ: Mapping[str, str], gh_command: str) -> Forge:
    """GitHub for github.com and every host that gh is logged in to; else `Local`.

    From a fork on the same host, the pull request is on the repository that was fetched; else on the one pushed to.
    """
    pushed = await _find_remote(git, repository.push_url, environ)
    if pushed is None or (pushed.host != GITHUB and not await has_login(gh_command, pushed.host, environ)):
        return Local()
    forge = GitHub(command=gh_command, environ=environ, host=pushed.host, repository=pushed.repository)
    fetched = await _find_remote(git, repository.url, environ) if repository.fork else None
    if fetched is None or fetched.host != pushed.host or fetched.repository.lower() == pushed.repository.lower():
        return forge
    return replace(forge, repository=fetched.repository, fork_owner=pushed.repository.partition("/")[0])


async def _find_remote(git: Git, url: str, environ: Mapping[str, str]) -> Remote | None:
    remote = parse_remote(await _resolve_url(git, url))
    if remote is None or not remote.is_ssh or remote.host == GITHUB:
        return remote
    return replace(remote, host=await _ssh_host(remote.host, environ))


def parse_remote(url: str) -> Remote | None:
    """The host and the repository in a URL; None when it is not the URL of a forge."""
    found = URL.fullmatch(url)
    is_ssh = found is None or found["scheme"] in ("ssh", "git+ssh")
    found = found or SCP_LIKE.fullmatch(url)
    if found is None or found["name"] in (".", ".."):
        return None
    host = found["host"].lower()
    return Remote(host=ALIASES.get(host, host), repository=f"{found['owner']}/{found['name']}", is_ssh=is_ssh)


async def _resolve_url(git: Git, url: str) -> str:
    """The URL after git's `insteadOf` settings."""
    if not git.rewrites_urls:
        return url  # saves a process
    try:
        arguments = ("ls-remote", "--get-url", "--", url)
        shown = await git.run_remote(*arguments, cwd=NEUTRAL_DIRECTORY, timeout=CONFIG_TIMEOUT, extra=NO_REPOSITORY)
    except GitFailed:
        return url
    return shown.decode(errors="replace").strip() or url


async def _ssh_host(alias: str, environ: Mapping[str, str]) -> str:
    """The real host of an alias in the SSH configuration, as used for a second account."""
    try:
        done = await run_program(["ssh", "-G", alias], cwd=NEUTRAL_DIRECTORY, env=environ, timeout=CONFIG_TIMEOUT)
    except (ProgramMissing, ProgramTimedOut):
        return alias
    found = re.search(r"^hostname (\S+)$", done.stdout.decode(errors="replace"), re.MULTILINE)
    named = found[1].lower() if found else alias
    return ALIASES.get(named, named)
