"""Git itself: its version, who commits, and what logs in at a remote."""

from __future__ import annotations

import re

from delegate.errors import DelegateError
from delegate.runner.doctor.case import Case, told
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.git.program import Git, GitFailed, read_git
from delegate.runner.process.programs import ProgramMissing, ProgramTimedOut

NEEDED = (2, 32)  # earlier ones pass over GIT_CONFIG_GLOBAL, by which the runner keeps foreign settings out
VERSION = re.compile(r"(\d+)\.(\d+)[\w.]*")
STAND_IN = ("Delegate", "delegate@localhost")  # who commits when the user's settings name nobody
INSTALL = "install git 2.32 or newer, as in `apt install git` or `brew install git`"


async def known_git(case: Case) -> Git | None:
    """Git as a runner has it; None when there is none that works."""
    try:
        return await read_git(case.environ, case.scratch / "git")
    except (GitFailed, ProgramMissing, ProgramTimedOut, DelegateError):
        return None


async def examine_git(case: Case, git: Git | None) -> list[Finding]:
    program = case.program("git")
    if program is None:
        return [Part.GIT.problem("git", "is not installed: no task can work in a worktree", INSTALL)]
    done = await case.run(program, "--version")
    if done.code != 0:
        return [Part.GIT.problem("git", f"does not run: {told(done.words)}", INSTALL)]
    findings = [_version(done.stdout.decode(errors="replace"))]
    if git is None:
        why = (await case.run(program, "config", "--list")).words
        return [*findings, Part.GIT.problem("settings", f"cannot be read: {told(why)}", "mend your ~/.gitconfig")]
    return [*findings, _author(git)]


def _version(text: str) -> Finding:
    found = VERSION.search(text)
    if found is None:
        return Part.GIT.warning("git", f"does not tell its version: {told(text)}", INSTALL)
    if (int(found[1]), int(found[2])) < NEEDED:
        return Part.GIT.problem("git", f"is {found[0]}: too old to keep a worktree apart from other settings", INSTALL)
    return Part.GIT.ok("git", found[0])


def _author(git: Git) -> Finding:
    author = f"{git.user_name} <{git.user_email}>"
    lacking = {
        "user.name": git.user_name == STAND_IN[0],
        "user.email": git.user_email == STAND_IN[1],
    }
    unset = [name for name, is_unset in lacking.items() if is_unset]
    if not unset:
        return Part.GIT.ok("author", told(author))
    fix = " and ".join(f"`git config --global {name} …`" for name in unset)
    return Part.GIT.warning("author", f"{' and '.join(unset)} not set: commits would be by {told(author)}", fix)
