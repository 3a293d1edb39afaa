"""The words for each kind of turn."""

from __future__ import annotations

from delegate.model import AgentName, Mode
from delegate.preferences.repofile import RepoFile
from delegate.runner.checks import Checks
from delegate.runner.prompts.records import done_before, left_by, quoted
from delegate.runner.prompts.rendering import rendered
from delegate.runner.prompts.sanitize import fenced, visible
from delegate.wire.runners import Assignment

OUTPUT_MAX = 20_000  # characters of all red checks together


def anew_words(assignment: Assignment, repofile: RepoFile) -> str:
    """For an agent that knows nothing yet; with what is left of the attempt before, if there was one."""
    if assignment.agent == AgentName.SHELL:
        return assignment.prompt  # a command line: every word around it would be run
    return rendered(
        "work.j2",
        request=fenced("request", _request(assignment)),
        context=quoted("addition", assignment.context),
        before=left_by(assignment.checkpoint, place=False) if assignment.checkpoint else None,
        forerunner=done_before(assignment.forerunner),
        is_reviewed=assignment.mode is Mode.PULL_REQUEST,
        additions=repofile.prompt.strip(),
        checks=repofile.checks,
        protected=repofile.protected,
    )


def resumed_words(assignment: Assignment) -> str:
    """For an agent whose session goes on; the shell has none."""
    checkpoint = assignment.checkpoint
    return rendered(
        "resumed.j2",
        request=fenced("request", _request(assignment)),
        context=quoted("addition", assignment.context),
        error=quoted("error", checkpoint.error if checkpoint else None),
        is_reviewed=assignment.mode is Mode.PULL_REQUEST,
    )


def in_place_words(assignment: Assignment) -> tuple[str, str]:
    """In the user's own directory the prompt goes as it is: to an agent that knows nothing yet, and to one whose
    session goes on. Only what is left of earlier work, or added to it, is put around it."""
    if assignment.agent == AgentName.SHELL:
        return assignment.prompt, assignment.prompt
    if assignment.checkpoint is not None or assignment.context is not None:
        return _continued_words(assignment)
    if assignment.forerunner is not None:
        return _continuing_words(assignment, is_same_session=False), _continuing_words(assignment, is_same_session=True)
    return assignment.prompt, assignment.prompt


def _continued_words(assignment: Assignment) -> tuple[str, str]:
    """After an earlier attempt, or an earlier task of the same chain."""
    checkpoint = assignment.checkpoint
    facts = {
        "request": fenced("request", visible(assignment.prompt)),
        "context": quoted("addition", assignment.context),
        "is_unfinished": checkpoint is None or checkpoint.error is not None,
    }
    before = left_by(checkpoint) if checkpoint else None
    anew = rendered("continued.j2", before=before, forerunner=done_before(assignment.forerunner), **facts)
    if assignment.context is None:
        return anew, assignment.prompt
    return anew, rendered("continued.j2", before=None, forerunner=None, **facts)


def _continuing_words(assignment: Assignment, *, is_same_session: bool) -> str:
    """After another task, whose session this may be."""
    return rendered(
        "continues.j2",
        forerunner=done_before(assignment.forerunner),
        request=fenced("request", visible(assignment.prompt)),
        is_same_session=is_same_session,
    )


def red_check_words(checks: Checks) -> str:
    share = OUTPUT_MAX // max(len(checks.red), 1)
    red = [
        {"command": result.command, "how": result.how, "output": quoted("output", result.tail[-share:])}
        for result in checks.red
    ]
    return rendered("checks_red.j2", red=red, total=len(checks.results))


def _request(assignment: Assignment) -> str:
    """Title, issue and prompt, all of them from outside."""
    issue = assignment.issue
    head = [f"{issue.key} · {issue.title}", issue.url] if issue else [assignment.title]
    about = "\n".join(line for line in head if line)
    return visible(f"{about}\n\n{assignment.prompt}" if about else assignment.prompt)
