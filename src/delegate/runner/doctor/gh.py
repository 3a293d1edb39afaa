"""Examines the GitHub CLI: installed, recent enough, and logged in to the host of this repository."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from delegate.errors import excerpt
from delegate.runner.doctor.checkout import Checkout
from delegate.runner.doctor.context import (
    EXAMINATION_TIMEOUT,
    NEUTRAL_DIRECTORY,
    DoctorContext,
    Examination,
    quote_line,
    run_examinations,
    run_in_daemon_thread,
)
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.forges.github import GitHub, gh_environment, has_login
from delegate.runner.forges.remotes import GITHUB, forge_for
from delegate.runner.git.program import Git
from delegate.runner.process.programs import ProgramResult, run_program

OLDEST_TESTED = (2, 23)  # the oldest version that is tested
VERSION = re.compile(r"(\d+)\.(\d+)[\w.]*")
HOST = re.compile(r"^([A-Za-z0-9][A-Za-z0-9.:-]*):\s*$", re.MULTILINE)
LOGGED_IN_AS = re.compile(r"Logged in to \S+ (?:as|account) (\S+)")
TOKENS = ("GH_TOKEN", "GITHUB_TOKEN")
INSTALL = "install gh from https://cli.github.com, then `gh auth login`"
LOGIN_TIMEOUT = (
    EXAMINATION_TIMEOUT * 0.6
)  # gh contacts the host; if the host does not answer, the other findings are still reported


async def examine_gh(context: DoctorContext, git: Git | None, checkout: Checkout) -> list[Finding]:
    needed = await _needed_host(context, git, checkout)
    program = context.program(context.settings.gh_command)
    if program is None:
        return [_report_missing(needed)]
    version = await _run_gh(context, program, "--version")
    if version.code != 0:
        found = DoctorSection.PULL_REQUESTS.problem if needed else DoctorSection.PULL_REQUESTS.warning
        return [found("gh", f"does not run: {quote_line(version.error_text)}", INSTALL)]
    findings = [_version(version.stdout.decode(errors="replace"))]
    hosts = await _hosts(context, needed)
    if not hosts:
        findings.append(DoctorSection.PULL_REQUESTS.note("login", "gh is not logged in to any host", "`gh auth login`"))
    logins = [partial(_check_login, context, program, host, is_needed=host == needed) for host in hosts]
    findings += await run_examinations(
        [
            Examination(section=DoctorSection.PULL_REQUESTS, subject="login", run=look, timeout=LOGIN_TIMEOUT)
            for look in logins
        ]
    )
    return [*findings, *_report_no_github(checkout, needed)]


async def _needed_host(context: DoctorContext, git: Git | None, checkout: Checkout) -> str | None:
    """The host on which a task of this repository would open its pull request; None: in Delegate only."""
    if git is None or checkout.repository is None:
        return None
    forge = await forge_for(git, checkout.repository, context.environ, context.settings.gh_command)
    return forge.host if isinstance(forge, GitHub) else None


def _report_missing(needed: str | None) -> Finding:
    if needed is None:
        return DoctorSection.PULL_REQUESTS.note(
            "gh", "is not installed: `--pr` pushes a branch, but opens no pull request", INSTALL
        )
    message = f"is not installed: a task with `--pr` would push its branch to {needed} and then fail"
    return DoctorSection.PULL_REQUESTS.problem("gh", message, INSTALL)


def _version(text: str) -> Finding:
    found = VERSION.search(text)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TESTED:
        message = f"is {found[0] if found else quote_line(text)}: older than any version that Delegate is tested with"
        return DoctorSection.PULL_REQUESTS.warning("gh", message, "update gh to 2.23 or newer")
    return DoctorSection.PULL_REQUESTS.ok("gh", found[0])


async def _hosts(context: DoctorContext, needed: str | None) -> list[str]:
    """The hosts where gh has, or should have, a login."""
    config = Path(context.environ.get("XDG_CONFIG_HOME") or Path(context.environ.get("HOME") or "/") / ".config")
    path = Path(context.environ.get("GH_CONFIG_DIR") or config / "gh") / "hosts.yml"
    try:
        configured = HOST.findall(await run_in_daemon_thread(lambda: path.read_text(errors="replace")))
    except OSError:
        configured = []
    by_variable = [GITHUB] if any(context.environ.get(name) for name in TOKENS) else []
    return list(dict.fromkeys([*([needed] if needed else []), *by_variable, *configured]))


async def _check_login(context: DoctorContext, program: str, host: str, *, is_needed: bool) -> list[Finding]:
    found = DoctorSection.PULL_REQUESTS.problem if is_needed else DoctorSection.PULL_REQUESTS.warning
    fix = f"`gh auth login --hostname {excerpt(host)}`"
    if not await has_login(program, host, context.environ):
        return [found("login", f"gh is not logged in to {excerpt(host)}: no pull request could be opened", fix)]
    status = await _run_gh(context, program, "auth", "status", f"--hostname={host}")
    if status.code != 0:
        message = f"gh has a login for {excerpt(host)}, but it does not work"
        return [found("login", message, f"`gh auth status`, then {fix}")]
    name = LOGGED_IN_AS.search((status.stdout + status.stderr).decode(errors="replace"))
    return [
        DoctorSection.PULL_REQUESTS.ok("login", f"{excerpt(host)} as {quote_line(name[1])}" if name else excerpt(host))
    ]


def _report_no_github(checkout: Checkout, needed: str | None) -> list[Finding]:
    if checkout.repository is None or needed is not None:
        return []
    return [
        DoctorSection.PULL_REQUESTS.note(
            "forge", "the remote is not on GitHub: `--pr` pushes a branch, and the review stays in Delegate"
        )
    ]


async def _run_gh(context: DoctorContext, program: str, *arguments: str) -> ProgramResult:
    return await run_program(
        [program, *arguments], cwd=NEUTRAL_DIRECTORY, env=gh_environment(context.environ), timeout=LOGIN_TIMEOUT
    )
