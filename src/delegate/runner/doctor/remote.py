"""The remote of this repository: whether it answers, what logs in there, and what becomes of pull requests."""

from __future__ import annotations

import os
import re
from pathlib import Path

from delegate.config.values import without_login
from delegate.runner.doctor.case import NEUTRAL, PATIENCE, Case, told
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.forges.remotes import Remote, parse
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.repositories import Repository

DEFAULT_BRANCH = re.compile(rb"^ref: refs/heads/(\S+)\s+HEAD$", re.MULTILINE)
ASKING = ("GIT_ASKPASS", "SSH_ASKPASS")
# Nobody is to be asked for a login by a window.
UNASKED = {"SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}
# One look at a remote, in less time than an examination has, so that its own words are told and not our impatience.
LOOK_TIME = PATIENCE * 0.8


async def examine_remote(case: Case, git: Git, repository: Repository) -> list[Finding]:
    """Asks the remote for its default branch, which needs the way there and, often, the login."""
    url = repository.url
    address = case.place(Path(url)) if url.startswith("/") else told(url)
    try:
        words = ("ls-remote", "--symref", "--", url, "HEAD")
        answer = await git.reach(*words, cwd=NEUTRAL, timeout=LOOK_TIME, extra=UNASKED)
    except GitFailed as failed:
        message = f"{address} cannot be reached: {told(_complaint(failed))}"
        fix = f"make `git ls-remote {address}` work by hand"
        if failed.done is None:
            return [Part.REPOSITORY.warning("remote", message, fix)]
        return [Part.REPOSITORY.problem("remote", message, fix)]
    found = DEFAULT_BRANCH.search(answer)
    if found is None:
        message = f"{address} answers, but has no default branch"
        return [Part.REPOSITORY.problem("remote", message, "push a first commit to it, or name a branch with --base")]
    return [Part.REPOSITORY.ok("remote", f"{address}, default branch {told(found[1].decode(errors='replace'))}")]


def _complaint(failed: GitFailed) -> str:
    """What git says before it says what to make sure of."""
    said = failed.done.stderr.decode(errors="replace") if failed.done else failed.why
    lines = [line for line in said.partition("\nPlease make sure")[0].splitlines() if line.strip()]
    return "; ".join(lines[:2]) or failed.why


async def examine_login(case: Case, git: Git, repository: Repository) -> list[Finding]:
    """What a push would log in with; nothing is asked for, and no secret is read."""
    remote = parse(await real_address(git, repository.url))
    if remote is None:
        return []
    if remote.is_ssh:
        return [] if case.program("ssh") else [_no_ssh(remote)]
    if await _has_login(case, git, repository.url):
        return [Part.REPOSITORY.ok("login", f"git knows where to get one for {remote.host}")]
    message = f"git has no credential helper for {remote.host}: a push would have no login"
    fix = "`gh auth setup-git`, or `git config --global credential.helper …`"
    return [Part.REPOSITORY.warning("login", message, fix)]


def _no_ssh(remote: Remote) -> Finding:
    return Part.REPOSITORY.problem("login", f"{remote.host} is reached by ssh, which is not installed", "install ssh")


async def real_address(git: Git, url: str) -> str:
    """With the short names that the user has for addresses written out."""
    answer = await git.reach("ls-remote", "--get-url", "--", url, cwd=NEUTRAL, timeout=PATIENCE)
    return answer.decode(errors="replace").strip() or url


async def _has_login(case: Case, git: Git, url: str) -> bool:
    if any(case.environ.get(name) for name in ASKING) or without_login(url) != url:
        return True
    if (Path(case.environ.get("HOME") or os.devnull) / ".netrc").exists():
        return True
    for name in ("credential.helper", "http.extraHeader"):
        try:
            await git.reach("config", "--get-urlmatch", name, url, cwd=NEUTRAL, timeout=PATIENCE)
        except GitFailed:
            continue
        return True
    return False
