"""Examines the remote of this repository: whether it answers, and whether git has a login for it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from delegate.config.values import mask_login
from delegate.runner.doctor.context import EXAMINATION_TIMEOUT, NEUTRAL_DIRECTORY, DoctorContext, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.forges.remotes import Remote, parse_remote
from delegate.runner.git.program import NO_REPOSITORY, Git, GitFailed
from delegate.runner.workspaces.repositories import Repository

DEFAULT_BRANCH = re.compile(rb"^ref: refs/heads/(\S+)\s+HEAD$", re.MULTILINE)
ASKPASS_VARIABLES = ("GIT_ASKPASS", "SSH_ASKPASS")
# Credential helpers must not open a login window.
NO_PROMPTS = {**NO_REPOSITORY, "SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}
# Shorter than an examination, so that the finding quotes git's error and not our own timeout.
REMOTE_TIMEOUT = EXAMINATION_TIMEOUT * 0.8


async def examine_remote(context: DoctorContext, git: Git, repository: Repository) -> list[Finding]:
    """Asks the remote for its default branch, which tests the connection and, often, the login."""
    url = repository.url
    address = context.display_path(Path(url)) if url.startswith("/") else quote_line(url)
    try:
        arguments = ("ls-remote", "--symref", "--", url, "HEAD")
        answer = await git.run_remote(*arguments, cwd=NEUTRAL_DIRECTORY, timeout=REMOTE_TIMEOUT, extra=NO_PROMPTS)
    except GitFailed as failed:
        message = f"{address} cannot be reached: {quote_line(_error_message(failed))}"
        fix = f"make `git ls-remote {address}` work in a terminal"
        if failed.done is None:
            return [DoctorSection.REPOSITORY.warning("remote", message, fix)]
        return [DoctorSection.REPOSITORY.problem("remote", message, fix)]
    found = DEFAULT_BRANCH.search(answer)
    if found is None:
        message = f"{address} answers, but has no default branch"
        return [
            DoctorSection.REPOSITORY.problem(
                "remote", message, "push a first commit to it, or name a branch with `--base`"
            )
        ]
    pushed = f"; branches go to {quote_line(repository.fork)}" if repository.fork else ""
    branch = quote_line(found[1].decode(errors="replace"))
    return [DoctorSection.REPOSITORY.ok("remote", f"{address}, default branch {branch}{pushed}")]


def _error_message(failed: GitFailed) -> str:
    """Git's error without the general advice that follows it."""
    output = failed.done.stderr.decode(errors="replace") if failed.done else failed.why
    lines = [line for line in output.partition("\nPlease make sure")[0].splitlines() if line.strip()]
    return "; ".join(lines[:2]) or failed.why


async def examine_login(context: DoctorContext, git: Git, repository: Repository) -> list[Finding]:
    """Checks that git has a login for a push; prompts for nothing and reads no secret."""
    remote = parse_remote(await resolve_url(git, repository.push_url))
    if remote is None:
        return []
    if remote.is_ssh:
        return [] if context.program("ssh") else [_report_missing_ssh(remote)]
    if await _has_login(context, git, repository.push_url):
        return [DoctorSection.REPOSITORY.ok("login", f"git has a login for {remote.host}")]
    message = f"git has no credential helper for {remote.host}: a push would fail"
    fix = "`gh auth setup-git`, or `git config --global credential.helper …`"
    return [DoctorSection.REPOSITORY.warning("login", message, fix)]


def _report_missing_ssh(remote: Remote) -> Finding:
    return DoctorSection.REPOSITORY.problem(
        "login", f"{remote.host} is reached by ssh, which is not installed", "install ssh"
    )


async def resolve_url(git: Git, url: str) -> str:
    """The URL after git's `insteadOf` settings."""
    answer = await git.run_remote(
        "ls-remote", "--get-url", "--", url, cwd=NEUTRAL_DIRECTORY, timeout=EXAMINATION_TIMEOUT, extra=NO_REPOSITORY
    )
    return answer.decode(errors="replace").strip() or url


async def _has_login(context: DoctorContext, git: Git, url: str) -> bool:
    if any(context.environ.get(name) for name in ASKPASS_VARIABLES) or mask_login(url) != url:
        return True
    if (Path(context.environ.get("HOME") or os.devnull) / ".netrc").exists():
        return True
    for name in ("credential.helper", "http.extraHeader"):
        try:
            await git.run_remote(
                "config",
                "--get-urlmatch",
                name,
                url,
                cwd=NEUTRAL_DIRECTORY,
                timeout=EXAMINATION_TIMEOUT,
                extra=NO_REPOSITORY,
            )
        except GitFailed:
            continue
        return True
    return False
