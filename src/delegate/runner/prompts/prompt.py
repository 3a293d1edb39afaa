"""Builds the prompt for each kind of turn."""

from __future__ import annotations

from delegate.model import AgentName, Mode
from delegate.preferences.repofile import RepoFile
from delegate.runner.assignment import Assignment
from delegate.runner.checks import Checks
from delegate.runner.prompts.records import describe_checkpoint, describe_continued_task, quote
from delegate.runner.prompts.rendering import render
from delegate.runner.prompts.sanitize import fence_text, reveal_hidden

OUTPUT_MAX = 20_000  # characters of all failed checks together


def fresh_prompt(assignment: Assignment, repofile: RepoFile, folder: str | None = None) -> str:
    """For a new session, with the record of the previous attempt if there was one.

    `folder` is where in the repository the task was submitted; None at its top.
    """
    if assignment.agent == AgentName.SHELL:
        return assignment.prompt  # a command line: the shell would run any text around it
    return render(
        "work.j2",
        request=fence_text("request", _request(assignment)),
        folder=quote("folder", folder),
        context=quote("addition", assignment.context),
        before=describe_checkpoint(assignment.checkpoint, with_location=False) if assignment.checkpoint else None,
        continued_task=describe_continued_task(assignment.continued_task),
        is_reviewed=assignment.mode is Mode.PULL_REQUEST,
        additions=repofile.prompt.strip(),
        checks=repofile.checks,
        protected=repofile.protected,
    )


def resumed_prompt(assignment: Assignment) -> str:
    """For a resumed session; the shell has none."""
    checkpoint = assignment.checkpoint
    return render(
        "resumed.j2",
        request=fence_text("request", _request(assignment)),
        context=quote("addition", assignment.context),
        error=quote("error", checkpoint.error if checkpoint else None),
        is_reviewed=assignment.mode is Mode.PULL_REQUEST,
    )


def in_place_prompts(assignment: Assignment) -> tuple[str, str]:
    """The prompts for a new and for a resumed session in the user's own directory.

    The request is sent unchanged, unless there is a record of earlier work or an addition to include.
    """
    if assignment.agent == AgentName.SHELL:
        return assignment.prompt, assignment.prompt
    if assignment.checkpoint is not None or assignment.context is not None:
        return _continued_prompts(assignment)
    if assignment.continued_task is not None:
        return _follow_up_prompt(assignment, is_same_session=False), _follow_up_prompt(assignment, is_same_session=True)
    return assignment.prompt, assignment.prompt


def _continued_prompts(assignment: Assignment) -> tuple[str, str]:
    """After an earlier attempt, or an earlier task of the same chain."""
    checkpoint = assignment.checkpoint
    facts = {
        "request": fence_text("request", reveal_hidden(assignment.prompt)),
        "context": quote("addition", assignment.context),
        "is_unfinished": checkpoint is None or checkpoint.error is not None,
    }
    before = describe_checkpoint(checkpoint) if checkpoint else None
    fresh = render(
        "continued.j2", before=before, continued_task=describe_continued_task(assignment.continued_task), **facts
    )
    if assignment.context is None:
        return fresh, assignment.prompt
    return fresh, render("continued.j2", before=None, continued_task=None, **facts)


def _follow_up_prompt(assignment: Assignment, *, is_same_session: bool) -> str:
    """After another task, perhaps in that task's session."""
    return render(
        "continues.j2",
        continued_task=describe_continued_task(assignment.continued_task),
        request=fence_text("request", reveal_hidden(assignment.prompt)),
        is_same_session=is_same_session,
    )


def failed_checks_prompt(checks: Checks) -> str:
    share = OUTPUT_MAX // max(len(checks.red), 1)
    red = [
        {"command": result.command, "how": result.summary, "output": quote("output", result.tail[-share:])}
        for result in checks.red
    ]
    return render("checks_red.j2", red=red, total=len(checks.results))


def _request(assignment: Assignment) -> str:
    """Title, issue and prompt; all of it untrusted text."""
    issue = assignment.issue
    head = [f"{issue.key} · {issue.title}", issue.url] if issue else [assignment.title]
    about = "\n".join(line for line in head if line)
    return reveal_hidden(f"{about}\n\n{assignment.prompt}" if about else assignment.prompt)
