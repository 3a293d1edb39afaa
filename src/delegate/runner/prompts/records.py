"""What earlier attempts and tasks have left, as facts for the templates: all of it quoted."""

from __future__ import annotations

from delegate.runner.prompts.rendering import rendered
from delegate.runner.prompts.sanitize import fenced, visible
from delegate.wire.parts import CheckpointView, ForerunnerView
from delegate.wire.runners import Assignment

FILES_TOLD = 50
REQUEST_TOLD = 20_000  # characters of what another task was asked
CONTEXT_MAX = 100_000  # bytes; Linux takes 128 KiB in one variable, with its name
CUT = "\n[the rest was left out]\n"
ENDED = {"completed": "has completed", "failed": "has failed", "cancelled": "was cancelled"}


def quoted(name: str, text: str | None) -> str | None:
    return fenced(name, visible(text)) if text and text.strip() else None


def left_by(checkpoint: CheckpointView, *, place: bool = True) -> dict[str, object]:
    """`place`: where its repository stood, which is of no use to somebody who is on that branch."""
    files = [name.replace("\n", "\\n") for name in checkpoint.dirty_files or ()]
    more = [f"and {len(files) - FILES_TOLD} more"] if len(files) > FILES_TOLD else []
    stood = {"branch": checkpoint.branch, "commit": checkpoint.commit} if place else {}
    return {
        "error": quoted("error", checkpoint.error),
        "place": ", ".join(f"{name} {value}" for name, value in stood.items() if value),
        "files": quoted("files", "\n".join([*files[:FILES_TOLD], *more])),
        "summary": quoted("summary", checkpoint.summary),
        "output": quoted("output", "\n".join(checkpoint.output_tail)),
    }


def done_before(forerunner: ForerunnerView | None) -> dict[str, object] | None:
    """The task that this one continues."""
    if forerunner is None:
        return None
    left = forerunner.checkpoint or CheckpointView()
    error = None if forerunner.status == "completed" else left.error or forerunner.message
    asked = forerunner.prompt
    request = asked if len(asked) <= REQUEST_TOLD else asked[:REQUEST_TOLD] + CUT
    return {
        "task_id": forerunner.task_id,
        "ended": ENDED.get(forerunner.status, "has not ended"),
        "request": quoted("asked", request),
        "left": left_by(left.model_copy(update={"error": error})),
    }


def spoken_context(assignment: Assignment) -> str | None:
    """For a command, which hears no words: the text of a variable. None: there is nothing to tell."""
    checkpoint, forerunner = assignment.checkpoint, assignment.forerunner
    if checkpoint is None and forerunner is None and assignment.context is None:
        return None
    text = rendered(
        "context.j2",
        context=quoted("addition", assignment.context),
        before=left_by(checkpoint) if checkpoint else None,
        forerunner=done_before(forerunner),
    )
    data = text.encode()
    return text if len(data) <= CONTEXT_MAX else data[: CONTEXT_MAX - len(CUT)].decode(errors="ignore") + CUT
