"""Examines git: its version and the author of commits."""

from __future__ import annotations

import re

import anyio

from delegate.errors import DelegateError
from delegate.runner.doctor.context import DoctorContext, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.git.program import Git, GitFailed, read_git
from delegate.runner.process.programs import ProgramMissing, ProgramTimedOut
from delegate.runner.publishing.commits import SIGNING_TIMEOUT
from delegate.runner.workspaces.scratch import bare_repository

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
    return [*findings, _author(git), *await _examine_signing(context, git)]


async def _examine_signing(context: DoctorContext, git: Git) -> list[Finding]:
    """Signs a commit that no repository gets, as a runner would: without asking anybody."""
    if git.signing is None:
        return []
    person = {f"GIT_{role}_{what}": "doctor" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    with bare_repository(git, "", context.scratch) as directory:
        own = {"GIT_DIR": str(directory), **person, **git.signing.env}
        try:
            with anyio.fail_after(SIGNING_TIMEOUT):
                tree = (await git.run("mktree", cwd=directory, extra=own)).decode().strip()
                await git.run(*git.signing.options, "commit-tree", "-S", tree, cwd=directory, extra=own)
        except (GitFailed, TimeoutError) as problem:
            why = problem.why if isinstance(problem, GitFailed) else "it waits for a passphrase or a device"
            message = (
                f"commit.gpgSign is set, but signing fails: {quote_line(why)}; tasks would publish unsigned commits"
            )
            return [DoctorSection.GIT.warning("signing", message, "use a key that an agent has unlocked")]
    return [DoctorSection.GIT.ok("signing", "commits are signed")]


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
