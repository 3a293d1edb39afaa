"""The words for each kind of turn."""

from __future__ import annotations

from delegate.model import AgentName, Mode
from delegate.repofile import RepoFile
from delegate.runner.checks import Checks
from delegate.runner.prompts.quoted import fenced, visible
from delegate.runner.prompts.rendering import rendered
from delegate.wire.parts import CheckpointView
from delegate.wire.runners import Assignment

OUTPUT_MAX = 20_000  # characters of all red checks together
FILES_TOLD = 50


def anew_words(assignment: Assignment, repofile: RepoFile) -> str:
    """For an agent that knows nothing yet; with what is left of the attempt before, if there was one."""
    if assignment.agent == AgentName.SHELL:
        return assignment.prompt  # a command line: every word around it would be run
    return rendered(
        "work.j2",
        request=fenced("request", _request(assignment)),
        context=_quoted("addition", assignment.context),
        before=_before(assignment.checkpoint) if assignment.checkpoint else None,
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
        context=_quoted("addition", assignment.context),
        error=_quoted("error", checkpoint.error if checkpoint else None),
        is_reviewed=assignment.mode is Mode.PULL_REQUEST,
    )


def in_place_words(assignment: Assignment) -> tuple[str, str]:
    """In the user's own directory the prompt goes as it is: to an agent that knows nothing yet, and to one whose
    session goes on. Only what is left of an earlier task, or added to it, is put around it."""
    checkpoint = assignment.checkpoint
    if assignment.agent == AgentName.SHELL or (checkpoint is None and assignment.context is None):
        return assignment.prompt, assignment.prompt
    facts = {
        "request": fenced("request", visible(assignment.prompt)),
        "context": _quoted("addition", assignment.context),
        "is_unfinished": checkpoint is None or checkpoint.error is not None,
    }
    anew = rendered("continued.j2", before=_before(checkpoint) if checkpoint else None, **facts)
    goes_on = rendered("continued.j2", before=None, **facts) if assignment.context else assignment.prompt
    return anew, goes_on


def red_check_words(checks: Checks) -> str:
    share = OUTPUT_MAX // max(len(checks.red), 1)
    red = [
        {"command": result.command, "how": result.how, "output": _quoted("output", result.tail[-share:])}
        for result in checks.red
    ]
    return rendered("checks_red.j2", red=red, total=len(checks.results))


def _request(assignment: Assignment) -> str:
    """Title, issue and prompt, all of them from outside."""
    issue = assignment.issue
    head = [f"{issue.key} · {issue.title}", issue.url] if issue else [assignment.title]
    about = "\n".join(line for line in head if line)
    return visible(f"{about}\n\n{assignment.prompt}" if about else assignment.prompt)


def _before(checkpoint: CheckpointView) -> dict[str, object]:
    files = checkpoint.dirty_files
    more = [f"and {len(files) - FILES_TOLD} more"] if len(files) > FILES_TOLD else []
    return {
        "error": _quoted("error", checkpoint.error),
        "files": _quoted("files", "\n".join([*files[:FILES_TOLD], *more])),
        "summary": _quoted("summary", checkpoint.summary),
        "output": _quoted("output", "\n".join(checkpoint.output_tail)),
    }


def _quoted(name: str, text: str | None) -> str | None:
    return fenced(name, visible(text)) if text and text.strip() else None
