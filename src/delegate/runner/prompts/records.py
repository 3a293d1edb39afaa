"""Describes earlier attempts and tasks for the templates; quotes all text from outside."""

from __future__ import annotations

from dataclasses import replace

from delegate.model import Checkpoint
from delegate.runner.assignment import Assignment, PrecedingTask
from delegate.runner.prompts.rendering import render
from delegate.runner.prompts.sanitize import fence_text, reveal_hidden

FILES_MAX = 50
REQUEST_MAX = 20_000  # characters of another task's prompt
CONTEXT_MAX = 100_000  # bytes; Linux allows 128 KiB for one variable, including its name
CUT = "\n[the rest is omitted]\n"
END_PHRASES = {"completed": "has completed", "failed": "has failed", "cancelled": "was cancelled"}


def quote(name: str, text: str | None) -> str | None:
    return fence_text(name, reveal_hidden(text)) if text and text.strip() else None


def describe_checkpoint(checkpoint: Checkpoint, *, with_location: bool = True) -> dict[str, object]:
    """`place` is the branch and commit; useless to an agent that is on that branch."""
    files = [name.replace("\n", "\\n") for name in checkpoint.dirty_files or ()]
    more = [f"and {len(files) - FILES_MAX} more"] if len(files) > FILES_MAX else []
    location = {"branch": checkpoint.branch, "commit": checkpoint.commit} if with_location else {}
    return {
        "error": quote("error", checkpoint.error),
        "place": ", ".join(f"{name} {value}" for name, value in location.items() if value),
        "files": quote("files", "\n".join([*files[:FILES_MAX], *more])),
        "summary": quote("summary", checkpoint.summary),
        "output": quote("output", "\n".join(checkpoint.output_tail)),
    }


def describe_continued_task(continued_task: PrecedingTask | None) -> dict[str, object] | None:
    if continued_task is None:
        return None
    left = continued_task.checkpoint or Checkpoint()
    error = None if continued_task.status == "completed" else left.error or continued_task.message
    asked = continued_task.prompt
    request = asked if len(asked) <= REQUEST_MAX else asked[:REQUEST_MAX] + CUT
    return {
        "task_id": continued_task.task_id,
        "ended": END_PHRASES.get(continued_task.status, "has not ended"),
        "request": quote("asked", request),
        "left": describe_checkpoint(replace(left, error=error)),
    }


def render_context(assignment: Assignment) -> str | None:
    """The context of a shell task, for an environment variable; None when there is none."""
    checkpoint, continued_task = assignment.checkpoint, assignment.continued_task
    if checkpoint is None and continued_task is None and assignment.context is None:
        return None
    text = render(
        "context.j2",
        context=quote("addition", assignment.context),
        before=describe_checkpoint(checkpoint) if checkpoint else None,
        continued_task=describe_continued_task(continued_task),
    )
    data = text.encode()
    return text if len(data) <= CONTEXT_MAX else data[: CONTEXT_MAX - len(CUT)].decode(errors="ignore") + CUT
