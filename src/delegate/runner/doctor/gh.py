"""The GitHub program: there, new enough, and logged in where this repository needs it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from delegate.errors import shown
from delegate.runner.doctor.case import NEUTRAL, PATIENCE, Case, Examination, aside, examined, told
from delegate.runner.doctor.checkout import Checkout
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.forges.github import GitHub, environment, has_login
from delegate.runner.forges.remotes import GITHUB, forge_for
from delegate.runner.git.program import Git
from delegate.runner.process.programs import Done, run_program

TRIED = (2, 23)  # the oldest that we have seen work
VERSION = re.compile(r"(\d+)\.(\d+)[\w.]*")
HOST = re.compile(r"^([A-Za-z0-9][A-Za-z0-9.:-]*):\s*$", re.MULTILINE)
LOGGED_IN_AS = re.compile(r"Logged in to \S+ (?:as|account) (\S+)")
TOKENS = ("GH_TOKEN", "GITHUB_TOKEN")
INSTALL = "install gh from https://cli.github.com, then `gh auth login`"
LOGIN_TIME = PATIENCE * 0.6  # gh asks the host; when that does not answer, the other findings are told all the same


async def examine_gh(case: Case, git: Git | None, checkout: Checkout) -> list[Finding]:
    needed = await _needed_host(case, git, checkout)
    program = case.program(case.settings.gh_command)
    if program is None:
        return [_missing(needed)]
    version = await _gh(case, program, "--version")
    if version.code != 0:
        found = Part.PULL_REQUESTS.problem if needed else Part.PULL_REQUESTS.warning
        return [found("gh", f"does not run: {told(version.words)}", INSTALL)]
    findings = [_version(version.stdout.decode(errors="replace"))]
    hosts = await _hosts(case, needed)
    if not hosts:
        findings.append(Part.PULL_REQUESTS.note("login", "gh is logged in nowhere", "`gh auth login`"))
    logins = [partial(_login, case, program, host, is_needed=host == needed) for host in hosts]
    findings += await examined(
        [Examination(part=Part.PULL_REQUESTS, subject="login", look=look, patience=LOGIN_TIME) for look in logins]
    )
    return [*findings, *_without_github(checkout, needed)]


async def _needed_host(case: Case, git: Git | None, checkout: Checkout) -> str | None:
    """The host on which a task of this repository would open its pull request; None: nowhere but in Delegate."""
    if git is None or checkout.repository is None:
        return None
    forge = await forge_for(git, checkout.repository.url, case.environ, case.settings.gh_command)
    return forge.host if isinstance(forge, GitHub) else None


def _missing(needed: str | None) -> Finding:
    if needed is None:
        return Part.PULL_REQUESTS.note("gh", "is not installed: `--pr` pushes a branch and opens nothing", INSTALL)
    message = f"is not installed: a task with --pr would push its branch to {needed}, and then fail"
    return Part.PULL_REQUESTS.problem("gh", message, INSTALL)


def _version(text: str) -> Finding:
    found = VERSION.search(text)
    if found is None or (int(found[1]), int(found[2])) < TRIED:
        message = f"is {found[0] if found else told(text)}: older than what Delegate was tried with"
        return Part.PULL_REQUESTS.warning("gh", message, "update gh to 2.23 or newer")
    return Part.PULL_REQUESTS.ok("gh", found[0])


async def _hosts(case: Case, needed: str | None) -> list[str]:
    """Where gh has, or should have, a login."""
    config = Path(case.environ.get("XDG_CONFIG_HOME") or Path(case.environ.get("HOME") or "/") / ".config")
    place = Path(case.environ.get("GH_CONFIG_DIR") or config / "gh") / "hosts.yml"
    try:
        written = HOST.findall(await aside(lambda: place.read_text(errors="replace")))
    except OSError:
        written = []
    by_variable = [GITHUB] if any(case.environ.get(name) for name in TOKENS) else []
    return list(dict.fromkeys([*([needed] if needed else []), *by_variable, *written]))


async def _login(case: Case, program: str, host: str, *, is_needed: bool) -> list[Finding]:
    found = Part.PULL_REQUESTS.problem if is_needed else Part.PULL_REQUESTS.warning
    fix = f"`gh auth login --hostname {shown(host)}`"
    if not await has_login(program, host, case.environ):
        return [found("login", f"gh is not logged in to {shown(host)}: no pull request could be opened", fix)]
    status = await _gh(case, program, "auth", "status", f"--hostname={host}")
    if status.code != 0:
        message = f"gh has a login for {shown(host)}, but it does not work"
        return [found("login", message, f"`gh auth status`, then {fix}")]
    name = LOGGED_IN_AS.search((status.stdout + status.stderr).decode(errors="replace"))
    return [Part.PULL_REQUESTS.ok("login", f"{shown(host)} as {told(name[1])}" if name else shown(host))]


def _without_github(checkout: Checkout, needed: str | None) -> list[Finding]:
    if checkout.repository is None or needed is not None:
        return []
    return [
        Part.PULL_REQUESTS.note(
            "forge", "the remote here is not on GitHub: `--pr` pushes a branch, and the review is kept in Delegate"
        )
    ]


async def _gh(case: Case, program: str, *arguments: str) -> Done:
    return await run_program([program, *arguments], cwd=NEUTRAL, env=environment(case.environ), timeout=LOGIN_TIME)
