"""Examines git: its version and the author of commits."""

from __future__ import annotations

import re

from delegate.errors import DelegateError
from delegate.runner.doctor.context import DoctorContext, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.git.program import Git, GitFailed, read_git
from delegate.runner.process.programs import ProgramMissing, ProgramTimedOut

OLDEST_SUPPORTED = (2, 32)  # earlier versions ignore GIT_CONFIG_GLOBAL, with which the runner isolates its settings
VERSION = re.compile(r"(\d+)\.(\d+)[\w.]*")
DEFAULT_AUTHOR = ("Delegate", "delegate@localhost")  # the author when user.name and user.email are not set
INSTALL = "install git 2.32 or newer, for example with `apt install git` or `brew install git`"


async def find_git(context: DoctorContext) -> Git | None:
    """Git as a runner uses it; None when it is missing or does not work."""
    try:
        return await read_git(context.environ, context.scratch / "git")
    except (GitFailed, ProgramMissing, ProgramTimedOut, DelegateError):
        return None


async def examine_git(context: DoctorContext, git: Git | None) -> list[Finding]:
    program = context.program("git")
    if program is None:
        return [DoctorSection.GIT.problem("git", "is not installed: tasks cannot work in a worktree", INSTALL)]
    done = await context.run(program, "--version")
    if done.code != 0:
        return [DoctorSection.GIT.problem("git", f"does not run: {quote_line(done.error_text)}", INSTALL)]
    findings = [_version(done.stdout.decode(errors="replace"))]
    if git is None:
        why = (await context.run(program, "config", "--list")).error_text
        return [
            *findings,
            DoctorSection.GIT.problem("settings", f"cannot be read: {quote_line(why)}", "fix your ~/.gitconfig"),
        ]
    return [*findings, _author(git)]


def _version(text: str) -> Finding:
    found = VERSION.search(text)
    if found is None:
        return DoctorSection.GIT.warning("git", f"prints no version: {quote_line(text)}", INSTALL)
    if (int(found[1]), int(found[2])) < OLDEST_SUPPORTED:
        return DoctorSection.GIT.problem(
            "git", f"is {found[0]}: too old to isolate a worktree from other settings", INSTALL
        )
    return DoctorSection.GIT.ok("git", found[0])


def _author(git: Git) -> Finding:
    author = f"{git.user_name} <{git.user_email}>"
    lacking = {
        "user.name": git.user_name == DEFAULT_AUTHOR[0],
        "user.email": git.user_email == DEFAULT_AUTHOR[1],
    }
    unset = [name for name, is_unset in lacking.items() if is_unset]
    if not unset:
        return DoctorSection.GIT.ok("author", quote_line(author))
    fix = " and ".join(f"`git config --global {name} …`" for name in unset)
    return DoctorSection.GIT.warning(
        "author", f"{' and '.join(unset)} not set: commits would be by {quote_line(author)}", fix
    )
